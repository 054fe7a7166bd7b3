"""What others read of the router's core: a snapshot, whole and taken on the event loop."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import itertools
import urllib.request
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from router_loads import worker_load
from simulated import submits

import tandem_router
from tandem.endings import Outcome
from tandem.free_ports import FreePorts
from tandem_router.config import RouterConfig
from tandem_router.core import events
from tandem_router.core.group import Side
from tandem_router.core.machine import RouterCore
from tandem_router.core.values import Bounds, Fingerprint, Phase, Profile
from tandem_router.core.worker import Worker
from tandem_router.discovery.static import StaticDiscovery
from tandem_router.links import WorkerLink
from tandem_router.policies import LeastLoaded
from tandem_router.server import running

FINGERPRINT = Fingerprint("tiny", "1", "sim", "1", "f32", 16, "f32", "nhd", 1, "sha", 1)
SECONDS = 60.0


def _profile(phase: Phase) -> Profile:
    return Profile(
        name="w", phase=phase, fingerprint=FINGERPRINT, max_sequences=2, context_length=100
    )


def _core() -> RouterCore:
    core = RouterCore(
        bounds=Bounds(max_queue=7),
        prefill_policy=LeastLoaded,
        decode_policy=LeastLoaded,
        new_room=itertools.count(1).__next__,
    )
    ups = [
        events.WorkerUp(worker=each.value, listed_as=each, profile=_profile(each)) for each in Phase
    ]
    core.handle(0.0, [events.FrontendUp(1), *ups])
    return core


def _submit(first: int, n: int = 1) -> events.Submit:
    return submits.submit(first, n=n, model="tiny", timeout_seconds=9.0, task=b"")


def test_a_snapshot_tells_what_is_open_now() -> None:
    core = _core()
    core.handle(0.0, [_submit(1, 3), worker_load("decode", 3), events.Drain()])
    seen = core.snapshot()
    assert (seen.queue_length, seen.queue_limit, seen.open_sequences) == (1, 7, 3)
    assert (seen.frontends, seen.ready_pairs, seen.draining) == (1, 1, True)
    decode = next(each for each in seen.workers if each.phase is Phase.DECODE)
    assert decode == ("decode", Phase.DECODE, True, 2, 1, 2, 0, False)


def test_a_snapshot_is_not_changed_by_what_happens_later() -> None:
    core = _core()
    core.handle(0.0, [_submit(1)])
    seen = core.snapshot()
    before = dataclasses.replace(core.snapshot())
    closed = events.LegClosed("decode", 2, Outcome.FINISHED)
    core.handle(1.0, [closed, events.Cancel(1, 1), events.WorkerDown("prefill", "gone")])
    assert seen.workers == before.workers
    assert seen.counts.legs == {}
    assert sum(seen.counts.queue_seconds.counts) == 1
    assert core.snapshot().counts.legs[Phase.DECODE, Outcome.FINISHED] == 1


async def test_a_scrape_never_sees_the_fleet_while_it_changes(
    monkeypatch: pytest.MonkeyPatch, free: FreePorts
) -> None:
    address = free.address()

    def scrape() -> str:
        body: bytes = urllib.request.urlopen(f"http://{address}/metrics", timeout=SECONDS).read()
        return body.decode()

    config = RouterConfig(listen="127.0.0.1:0", metrics_listen=address)
    nobody = StaticDiscovery(prefill=(), decode=())
    with ThreadPoolExecutor(1) as pool:
        async with running(config, discovery=nobody, with_admin=True) as served:
            for phase in Phase:
                link = WorkerLink()
                served.relay.worker_up(phase.value, link, listed_as=phase, profile=_profile(phase))
            scrapes = []
            remove = Side.remove

            def interrupted(self: Side, worker: Worker) -> None:
                """What follows finds the worker nowhere, until it is put where it belongs."""
                remove(self, worker)
                scrapes.append(pool.submit(scrape))
                wait(scrapes, timeout=0.5)

            monkeypatch.setattr(Side, "remove", interrupted)
            served.relay.handle(events.WorkerDraining("decode", True))
            served.relay.handle(events.WorkerDraining("decode", False))
            texts = [await asyncio.wait_for(asyncio.wrap_future(each), SECONDS) for each in scrapes]
    assert len(texts) == 2
    for text in texts:
        assert 'tandem_router_routable_workers{phase="prefill"} 1.0' in text
        assert "tandem_router_ready_pairs 1.0" in text


def test_nothing_outside_the_core_touches_its_state() -> None:
    root = Path(tandem_router.__file__).parent
    touched = [
        f"{path.relative_to(root)}:{node.lineno}"
        for path in sorted(root.rglob("*.py"))
        if path.relative_to(root).parts[0] != "core"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("state", "_state")
    ]
    assert touched == []
