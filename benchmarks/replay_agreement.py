"""Whether `tandem replay` says what a live stack does: the same small trace on both.

A trace is made: conversations whose lengths fit the tiny model, at random times. A live stack with
the sim engine is sent it over HTTP, each request at its time, and the client takes the times of
tokens. The replay is given the times of the sim engine's settings, and what one request on the idle
stack takes beyond them. The medians of both are compared, over several runs.

The load is small, with long steps and few sequences: a stack that has to wait for CPUs is late, and
then nothing is said of the model. Where the machine is busier than that, the exit status is 1, as
where the two disagree.

    python benchmarks/replay_agreement.py                  # about four minutes
"""

from __future__ import annotations

import argparse
import json
import random
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from math import log
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import load
import machine
import msgspec

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack
from tandem_router.policies import POLICIES
from tandem_sim import options as sim_options
from tandem_sim.options import SimOptions
from tandem_tools.trace import TracedRequest
from tandem_tools.trace_replay import times
from tandem_tools.trace_replay.fleet import FleetFile, ReplayedPool
from tandem_tools.trace_replay.replay import TraceReplay
from tandem_tools.trace_replay.router import Policies

MODEL = Path(__file__).resolve().parent.parent / "model" / "tandem-tiny"
ENGINE = {
    "prefill_base_ms": "20",
    "prefill_ms_per_token": "1",
    "step_ms": "60",
    "step_ms_per_sequence": "2",
}
PREFILL, DECODE = 2, 2
PREFILL_SLOTS, DECODE_SLOTS = 16, 32
RATE = 2.5
"""Requests a second: prefill is busy for about a third of its time."""
MEDIAN_PROMPT, MOST_PROMPT = 200, 1_500
MEDIAN_OUTPUT, MOST_OUTPUT = 40, 100
VOCABULARY = range(300, 1_000)
QUIET_SECONDS = 60.0
ALONE = 7
"""Requests on the idle stack, one after the other."""
AGREE = 0.1
MOST_BUSY = 0.6
"""How busy the machine's CPUs may be, in the median run: a busier one makes the live stack late."""


class Medians(NamedTuple):
    """Seconds in the middle of all requests of a run."""

    ttft: float
    itl: float


class Timed(NamedTuple):
    """What a client saw of one request, in seconds."""

    ttft: float
    itl: float


def made(requests: int, seed: int) -> tuple[TracedRequest, ...]:
    """Prompts that have nothing in common, at random times."""
    chance = random.Random(seed)
    at, found = 0.0, []
    for _ in range(requests):
        prompt = min(MOST_PROMPT, int(chance.lognormvariate(log(MEDIAN_PROMPT), 0.8)) + 1)
        output = min(MOST_OUTPUT, int(chance.lognormvariate(log(MEDIAN_OUTPUT), 0.4)) + 2)
        found.append(TracedRequest(at * 1000, prompt, output))
        at += chance.expovariate(RATE)
    return tuple(found)


def body(address: str, line: TracedRequest, seed: int) -> bytes:
    """One POST of a completion, its prompt as token ids, so that its length is what was asked."""
    chance = random.Random(seed)
    asked = json.dumps(
        {
            "model": MODEL.name,
            "prompt": chance.choices(VOCABULARY, k=line.input_length),
            "max_tokens": line.output_length,
            "stream": True,
            "ignore_eos": True,
            "temperature": 0,
            "detokenize": False,
        }
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(asked)}\r\n\r\n"
    )
    return head.encode() + asked


def play(address: str, trace: Sequence[TracedRequest], seed: int) -> list[Timed]:
    """Send each request at its time, whatever has become of those before; wait for all answers."""
    host, _, port = address.rpartition(":")
    bodies = [body(address, line, seed * 100_000 + place) for place, line in enumerate(trace)]
    pending = list(reversed(list(zip(trace, bodies, strict=True))))
    running: dict[int, tuple[load.Connection, TracedRequest]] = {}
    poll, found, began = select.epoll(), [], time.monotonic()
    while pending or running:
        due = began + pending[-1][0].timestamp / 1000 - time.monotonic() if pending else None
        if due is not None and due <= 0:
            line, asked = pending.pop()
            connection = load.Connection((host, int(port)), load.Seen())
            connection.send(asked)
            running[connection.socket.fileno()] = connection, line
            poll.register(connection.socket, select.EPOLLIN)
            continue
        events = poll.poll(QUIET_SECONDS if due is None else due)
        if not events and due is None:
            raise TimeoutError(f"no answer for {QUIET_SECONDS:g} seconds")
        for fd, _ in events:
            connection, line = running[fd]
            connection.read()
            if not connection.busy:
                found.append(timed(connection.seen, line))
                del running[fd]
                connection.socket.close()
    return found


def timed(seen: load.Seen, line: TracedRequest) -> Timed:
    """The last event of an answer comes with its last token."""
    if seen.failed or not seen.ttft:
        raise RuntimeError("a request failed")
    return Timed(seen.ttft[0], sum(seen.gaps) / (line.output_length - 1))


def overhead_ms(address: str) -> float:
    """What an idle stack adds to the first token of a prompt of the usual length."""
    line = TracedRequest(0, MEDIAN_PROMPT, 2)
    alone = median(play(address, [line], 900_000 + place)[0].ttft for place in range(ALONE))
    options = sim_options.parse(SimOptions, ENGINE)
    computed = options.prefill_base_ms + options.prefill_ms_per_token * MEDIAN_PROMPT
    return max(0.0, alone * 1000 - computed)


def replayed(trace: Sequence[TracedRequest], policy: str, overhead: float) -> Medians:
    """What the model says of the same trace on the same stack."""
    table = times.of_sim(sim_options.parse(SimOptions, ENGINE))
    fleet = FleetFile(
        times=msgspec.structs.replace(table, overhead_ms=overhead),
        prefill=ReplayedPool(workers=PREFILL, slots=PREFILL_SLOTS),
        decode=ReplayedPool(workers=DECODE, slots=DECODE_SLOTS),
    )
    made = POLICIES[policy]
    answers = TraceReplay(fleet, Policies(made, POLICIES["least_loaded"]), trace).run().answers
    ttft = [each.ttft for each in answers if each.ttft is not None]
    itl = [each.itl for each in answers if each.itl is not None]
    return Medians(median(ttft), median(itl))


def stack_options(policy: str) -> StackOptions:
    return StackOptions(
        model_path=MODEL,
        engine="sim",
        engine_options=tuple(f"{name}={value}" for name, value in ENGINE.items()),
        prefill=PREFILL,
        decode=DECODE,
        flags={
            "router": (f"--prefill-policy={policy}",),
            "prefill_worker": (f"--max-sequences={PREFILL_SLOTS}",),
            "decode_worker": (f"--max-sequences={DECODE_SLOTS}",),
        },
    )


def busy_share(before: Mapping[str, int], after: Mapping[str, int]) -> float:
    """How much of the machine's CPU was used meanwhile, by whoever it was."""
    spent = {name: after[name] - before[name] for name in after}
    return 1 - spent["idle"] / sum(spent.values())


def cpu() -> dict[str, int]:
    """Ticks of all cores since the machine's start."""
    first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:9]
    idle = int(first[3]) + int(first[4])
    return {"idle": idle, "busy": sum(map(int, first)) - idle}


def verdict(live: Sequence[Medians], said: Sequence[Medians], busy: float) -> Iterator[str]:
    """What speaks against an agreement, for people; nothing: they agree."""
    if busy >= MOST_BUSY:
        yield f"the machine was busy for {busy:.0%} of its time: {MOST_BUSY:.0%} is too much"
    for name in Medians._fields:
        one, other = (median(getattr(each, name) for each in runs) for runs in (live, said))
        off = other / one - 1
        print(f"{name}: replay is {off:+.1%} off, {'agrees' if abs(off) <= AGREE else 'DISAGREES'}")
        if abs(off) > AGREE:
            yield f"{name} is off by more than {AGREE:.0%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=150)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--policy", choices=[*POLICIES], default="least_loaded")
    options = parser.parse_args()
    print(f"machine: {machine.describe()}")
    live, said, shares = [], [], []
    with (
        TemporaryDirectory() as folder,
        Stack(stack_options(options.policy), run_dir=Path(folder)) as stack,
    ):
        stack.wait_ready(timeout_seconds=120)
        address = stack.url.removeprefix("http://")
        play(address, made(20, seed=99), 99)
        overhead = overhead_ms(address)
        print(f"an idle stack adds {overhead:.1f} ms to a first token")
        for run in range(1, options.runs + 1):
            trace, before = made(options.requests, seed=run), cpu()
            seen = play(address, trace, run)
            shares.append(busy_share(before, cpu()))
            live.append(Medians(*(median(each) for each in zip(*seen, strict=True))))
            said.append(replayed(trace, options.policy, overhead))
            print(
                f"run {run}: TTFT live {live[-1].ttft * 1e3:6.1f} ms, replay"
                f" {said[-1].ttft * 1e3:6.1f}; ITL live {live[-1].itl * 1e3:5.2f} ms, replay"
                f" {said[-1].itl * 1e3:5.2f}; CPU of the machine {shares[-1]:.0%}",
                flush=True,
            )
    busy = median(shares)
    print(f"CPU of the machine: {busy:.0%}")
    against = list(verdict(live, said, busy))
    print("\n".join(against) or "the replay agrees with the live stack")
    return 1 if against else 0


if __name__ == "__main__":
    raise SystemExit(main())
