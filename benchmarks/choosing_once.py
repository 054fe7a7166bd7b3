"""What is lost where an endpoint is picked as a request arrives, against a router that holds it
until a pair is free.

Three arms serve the same arrivals at the same time, each behind a listener of one Envoy, with two
prefill and two decode workers, of which each decode has four slots. In the first a router has all
workers. In the others each endpoint is a pair with a router of its own, and a picker chooses
between the two: by the open legs of their prefill workers, as its last look at their metrics said,
or by the requests that it sent there and that have no end yet, which it knows exactly. Answers are
short or long, as those of chats are. Then one decode worker of each arm is killed and stays away.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import gateway_envoy
import load
import token_cost
from gateway_envoy import Way

from tandem.cli.plan import COMPONENTS, StackOptions
from tandem.cli.stack import Stack

SLOTS = 4
STEP_MS = 50
"""Long steps, so that the machine's own speed decides little."""
SECONDS = 40
CALM, FAILING = 6.0, 3.0
"""Requests a second: about two thirds of what eight slots serve, then of what four do."""
ANSWERS = (6, 6, 6, 6, 60)
"""Tokens, as often as they stand here."""
PATIENCE = 30
LATE = 0.5
ROUTER = "router"
PREFILL_LEGS = "picker: prefill's legs"
IN_FLIGHT = "picker: all in flight"


@dataclass
class Seen:
    """What the clients of an arm saw: seconds to the first token of those that were served."""

    firsts: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


@dataclass
class Arm:
    """One way to serve: its address, and the stacks behind it."""

    address: str
    stacks: list[Stack]

    def kill(self) -> None:
        """Take away one decode worker of two."""
        self.stacks[0].components["decode_worker-0"].process.kill()


def stack(workers: int) -> StackOptions:
    """A prompt takes as long as a step, and prefill has room for all: decode's slots count."""
    options = (f"step_ms={STEP_MS}", f"prefill_base_ms={STEP_MS}")
    slots = {"prefill_worker": 8 * SLOTS, "decode_worker": SLOTS}
    flags = {name: (f"--max-sequences={slots[name]}",) for name in COMPONENTS if name in slots}
    return StackOptions(
        model_path=token_cost.MODEL,
        engine="sim",
        prefill=workers,
        decode=workers,
        engine_options=options,
        flags=flags,
    )


@contextmanager
def arms() -> Iterator[Mapping[str, Arm]]:
    from inference_gateway import picker

    with ExitStack() as held:
        folder = Path(held.enter_context(TemporaryDirectory()))
        layout = {ROUTER: [2], PREFILL_LEGS: [1, 1], IN_FLIGHT: [1, 1]}
        stacks = {
            name: [
                held.enter_context(Stack(stack(workers), run_dir=folder / f"{name} {number}"))
                for number, workers in enumerate(sizes)
            ]
            for name, sizes in layout.items()
        }
        for each in (one for several in stacks.values() for one in several):
            each.wait_ready(timeout_seconds=120)
        ways = {}
        for name, several in stacks.items():
            frontends = [each.components["frontend"].address for each in several]
            if name == ROUTER:
                ways[name] = Way(frontends[0])
                continue
            flags = [f"--endpoints={','.join(frontends)}"]
            if name == PREFILL_LEGS:
                metrics = [each.components["prefill_worker-0"].launch.metrics for each in several]
                flags.append(f"--prefill-metrics={','.join(metrics)}")
            address, _ = held.enter_context(picker(*flags))
            ways[name] = Way(picker=address, sent=gateway_envoy.WHOLE)
        envoy = held.enter_context(gateway_envoy.running(ways, folder))
        yield {name: Arm(envoy.addresses[name], stacks[name]) for name in stacks}


async def ask(address: str, tokens: int, seed: int, seen: Seen) -> None:
    host, _, port = address.rpartition(":")
    began, received = time.perf_counter(), b""
    writer = None
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(load.request(address, "tandem-tiny", tokens, 48, seed))
            first = 0.0
            while b"data: [DONE]" not in received:
                data = await reader.read(1 << 16)
                received += data
                if not first and load.EVENT in received:
                    first = time.perf_counter() - began
                if not data or not received.startswith(b"HTTP/1.1 200") or b'"error"' in received:
                    raise ConnectionError(received.decode().partition("\r\n")[0] or "no answer")
        seen.firsts.append(first)
    except (OSError, TimeoutError) as error:
        seen.failed.append(str(error) or type(error).__name__)
    finally:
        if writer is not None:
            writer.close()


async def arrivals(serving: Mapping[str, Arm], rate: float, seed: int) -> dict[str, Seen]:
    """The same requests at the same moments to all arms, in a Poisson stream of SECONDS."""
    chance = random.Random(seed)
    seen = {name: Seen() for name in serving}
    asked: set[asyncio.Task[None]] = set()
    due, end = time.monotonic(), time.monotonic() + SECONDS
    number = 0
    while (due := due + chance.expovariate(rate)) < end:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        tokens, number = chance.choice(ANSWERS), number + 1
        for name, arm in serving.items():
            asked.add(asyncio.create_task(ask(arm.address, tokens, number, seen[name])))
    await asyncio.wait(asked)
    return seen


def table() -> Iterator[str]:
    with arms() as serving:
        asyncio.run(arrivals(serving, 2.0, 0))
        calm = asyncio.run(arrivals(serving, CALM, 1))
        for arm in serving.values():
            arm.kill()
        failing = asyncio.run(arrivals(serving, FAILING, 2))
    yield from rows(f"{CALM:g} requests a second, all workers", calm)
    yield ""
    yield from rows(f"{FAILING:g} requests a second, from the moment a decode worker died", failing)


def rows(title: str, seen: Mapping[str, Seen]) -> Iterator[str]:
    yield f"{title}: TTFT of what was served, in ms"
    yield f"{'':<24}{'served':>7}{'failed':>7}{'p50':>8}{'p90':>8}{'p99':>8}{'late':>7}"
    for name, each in seen.items():
        cuts = statistics.quantiles(each.firsts, n=100, method="inclusive")
        late = sum(first > LATE for first in each.firsts) / len(each.firsts)
        yield (
            f"{name:<24}{len(each.firsts):7d}{len(each.failed):7d}"
            + "".join(f"{1e3 * cuts[percent - 1]:8.0f}" for percent in (50, 90, 99))
            + f"{late:7.1%}"
        )
    yield f"late: after {LATE:g} s"
    for name, each in seen.items():
        for reason, times in Counter(each.failed).items():
            yield f"failed, {name}: {times} by {reason}"
