"""A prefill worker in a network of its own, whose packets the kernel drops. Needs root: it makes a
network namespace, and rules in it alone.
"""

from __future__ import annotations

import asyncio
import ctypes
import dataclasses
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from random import Random

from chaotic.fleet import Fleet
from chaotic.process_faults import LONGER, LOST, PREFILL, SHORTER
from chaotic.trial import Kind, stalls

_NAME = f"chaos{os.getpid()}"
_DEVICE = f"{_NAME}a"
"""On both sides: UCX knows the devices of a namespace by the machine's /sys."""
_OUTSIDE, _INSIDE = "10.211.77.1", "10.211.77.2"
_PEERS = ("decode_worker-0", "decode_worker-1")
_PORT, _METRICS_PORT = 20_101, 20_102
_NEW_NETWORK = 0x40000000
"""CLONE_NEWNET, of setns(2)."""
_LOSSY_SECONDS = 5.0
_LOSSY = ("-m", "statistic", "--mode", "random", "--probability", "0.1")


@cache
def left_out() -> str:
    """Why there can be no namespace here, or nothing."""
    if os.geteuid():
        return "it needs root"
    missing = [tool for tool in ("ip", "iptables") if shutil.which(tool) is None]
    if missing:
        return f"there is no {' and no '.join(missing)}"
    try:
        with _namespace():
            _drop("-A")
    except subprocess.CalledProcessError as error:
        return f"this machine does not let it: {error}"
    return ""


async def lose(fleet: Fleet, rng: Random, *, seconds: float, rule: tuple[str, ...] = ()) -> None:
    """The worker's packets are lost for a while, all or those that `rule` chooses."""
    with _namespace():
        for name in _PEERS:  # which by themselves take KV over loopback alone
            await fleet.replace(name, UCX_NET_DEVICES=f"lo,{_DEVICE}")
        await _move(fleet)
        await asyncio.sleep(1)
        fleet.struck()
        _drop("-A", *rule)
        await asyncio.sleep(seconds)
        _drop("-D", *rule)
        await fleet.ready(PREFILL)
        await asyncio.sleep(2)
        await fleet.end(PREFILL, grace_seconds=10)
        fleet.proxies[PREFILL].target = fleet.launch(PREFILL).address
        for name in (PREFILL, *_PEERS):
            await fleet.replace(name)


async def _move(fleet: Fleet) -> None:
    """The worker ends, and starts inside the namespace."""
    await fleet.end(PREFILL, grace_seconds=10)
    address, metrics = f"{_INSIDE}:{_PORT}", f"{_INSIDE}:{_METRICS_PORT}"
    launch = fleet.launch(PREFILL)
    fleet.stack.components[PREFILL].launch = dataclasses.replace(
        launch,
        address=address,
        metrics=metrics,
        flags=(*launch.flags, f"--listen={address}", f"--metrics-listen={metrics}"),
    )
    await asyncio.to_thread(_inside, fleet)
    fleet.proxies[PREFILL].target = address
    await fleet.ready(PREFILL)
    await fleet.connected()


def _inside(fleet: Fleet) -> None:
    """This thread enters the namespace, starts the worker there, and leaves it."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as outside, open(f"/run/netns/{_NAME}") as inside:
        for place, then in ((inside, fleet.stack.restart), (outside, None)):
            if libc.setns(place.fileno(), _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "setns")
            if then is not None:
                then(PREFILL)


@contextmanager
def _namespace() -> Iterator[None]:
    """A network namespace, joined to this one by a pair of devices."""
    _ip("netns", "add", _NAME)
    try:
        _ip("link", "add", _DEVICE, "type", "veth", "peer", "name", _DEVICE, "netns", _NAME)
        _ip("addr", "add", f"{_OUTSIDE}/30", "dev", _DEVICE)
        _ip("link", "set", _DEVICE, "up")
        _ip("-n", _NAME, "addr", "add", f"{_INSIDE}/30", "dev", _DEVICE)
        for device in (_DEVICE, "lo"):
            _ip("-n", _NAME, "link", "set", device, "up")
        yield
        _ip("link", "del", _DEVICE)  # else it goes a while after the namespace
    finally:
        _ip("netns", "del", _NAME)


def _drop(change: str, *rule: str) -> None:
    for chain, way in (("INPUT", "-i"), ("OUTPUT", "-o")):
        _ip("netns", "exec", _NAME, "iptables", change, chain, way, _DEVICE, *rule, "-j", "DROP")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


KINDS: tuple[Kind, ...] = (
    *(
        Kind(
            name=f"packets lost for {seconds:.0f} s (namespace): prefill",
            strike=partial(lose, seconds=seconds),
            codes=LOST["prefill"] if seconds == LONGER else frozenset(),
            shows=stalls(0.8 * SHORTER),
            left_out=left_out,
        )
        for seconds in (SHORTER, LONGER)
    ),
    Kind(
        name="1 of 10 packets lost (namespace): prefill",
        strike=partial(lose, seconds=_LOSSY_SECONDS, rule=_LOSSY),
        codes=LOST["prefill"],
        left_out=left_out,
    ),
)
