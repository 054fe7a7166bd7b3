"""Which prefill:decode ratio serves most: worked out from two measured figures, then measured.

For each workload one prefill and one decode worker are measured by themselves. From the two figures
follows what each ratio can serve (docs/kubernetes/sizing.md). Then a stack of each ratio is offered
requests at random times, at several shares of that, and its frontend counts those that met both
objectives. The stacks run side by side: the sim engine's time is slept, not computed, so a worker
is bound by its simulated GPU and not by this machine.

    python benchmarks/ratio.py                                              # about seven minutes
    python benchmarks/ratio.py --workload "long prompts"
"""

from __future__ import annotations

import argparse
import random
import select
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import load
import machine
from prometheus_client.parser import text_string_to_metric_families

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack

MODEL = Path(__file__).resolve().parent.parent / "model" / "tandem-tiny"
ENGINE = ("prefill_ms_per_token=0.5", "step_ms=25", "step_ms_per_sequence=1")
"""A simulated GPU: 2,000 prompt tokens a second; 32 sequences at 57 ms between tokens."""
SEQUENCES = 32
"""A decode worker's max_sequences: what the objective for ITL allows."""
TTFT_SECONDS = 2.0
ITL_SECONDS = 0.07
SHARES = (0.7, 0.85, 1.0, 1.15)
"""Offered load, as a share of what the arithmetic says the workers can serve."""
QUIET_SECONDS = 60.0


class Ratio(NamedTuple):
    prefill: int
    decode: int

    def __str__(self) -> str:
        return f"{self.prefill}:{self.decode}"


RATIOS = (Ratio(1, 1), Ratio(1, 2), Ratio(2, 1), Ratio(1, 3))


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    words: int
    """Words in a prompt, which are about as many tokens."""
    tokens: int
    """Tokens in an answer."""


WORKLOADS = (
    Workload("long prompts, short answers", words=780, tokens=100),
    Workload("short prompts, long answers", words=140, tokens=144),
)


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests a second that one worker of a phase serves, measured in tokens."""

    prompt_tokens: float
    """Tokens in the prompt of one request."""
    output_tokens: int
    prefill_tokens_per_second: float
    decode_tokens_per_second: float

    @property
    def prefill(self) -> float:
        return self.prefill_tokens_per_second / self.prompt_tokens

    @property
    def decode(self) -> float:
        return self.decode_tokens_per_second / self.output_tokens

    def capacity(self, ratio: Ratio) -> float:
        """Requests a second: the phase that can do less decides."""
        return min(ratio.prefill * self.prefill, ratio.decode * self.decode)


@contextmanager
def serving(ratio: Ratio) -> Iterator[Stack]:
    options = StackOptions(
        model_path=MODEL,
        engine="sim",
        engine_options=ENGINE,
        prefill=ratio.prefill,
        decode=ratio.decode,
        flags={
            "frontend": (f"--slo-ttft-seconds={TTFT_SECONDS}", f"--slo-itl-seconds={ITL_SECONDS}"),
            "decode_worker": (f"--max-sequences={SEQUENCES}",),
        },
    )
    with TemporaryDirectory() as run_dir, Stack(options, run_dir=Path(run_dir)) as stack:
        stack.wait_ready(timeout_seconds=120)
        yield stack


def rates(stack: Stack, workload: Workload) -> Rates:
    """The rates of one pair, each worker kept busy while the other has next to nothing to do."""
    before = counted(stack, "tandem_frontend_prompt_tokens_total")
    reading = closed_loop(stack, streams=4, requests=16, tokens=2, words=workload.words)
    prompts = sum(counted(stack, "tandem_frontend_prompt_tokens_total").values())
    prompts -= sum(before.values())
    writing = closed_loop(
        stack, streams=SEQUENCES, requests=SEQUENCES, tokens=workload.tokens, words=1
    )
    return Rates(
        prompt_tokens=prompts / reading.requests,
        output_tokens=workload.tokens,
        prefill_tokens_per_second=prompts / reading.seconds,
        decode_tokens_per_second=writing.tokens / writing.seconds,
    )


def closed_loop(
    stack: Stack, *, streams: int, requests: int, tokens: int, words: int
) -> load.Result:
    address = stack.url.removeprefix("http://")
    result = load.run(
        address, model=MODEL.name, streams=streams, requests=requests, tokens=tokens, words=words
    )
    if result.failed:
        raise RuntimeError(f"{result.failed} of {requests} requests failed")
    return result


def goodput(
    stacks: Mapping[Ratio, Stack], offered: Mapping[Ratio, float], workload: Workload, seconds: int
) -> dict[Ratio, float]:
    """Requests a second that met both objectives, of all stacks at once, each at its own rate."""
    name = "tandem_frontend_slo_requests_total"
    before = {ratio: counted(stack, name) for ratio, stack in stacks.items()}
    times = {ratio: arrivals(rate, seconds) for ratio, rate in offered.items()}
    play([(at, stacks[ratio]) for ratio in times for at in times[ratio]], workload)
    found = {}
    for ratio, stack in stacks.items():
        ended = {key: n - before[ratio][key] for key, n in counted(stack, name).items()}
        if sum(ended.values()) != len(times[ratio]):
            raise RuntimeError(f"{ratio}: {ended} of {len(times[ratio])} requests")
        found[ratio] = ended["met", "met"] / seconds
    return found


def arrivals(rate: float, seconds: int) -> list[float]:
    """Times of requests, as many users who do not know of each other make them."""
    chance = random.Random(1)
    return [chance.uniform(0, seconds) for _ in range(round(rate * seconds))]


def play(times: Sequence[tuple[float, Stack]], workload: Workload) -> None:
    """Send each request at its time, whatever has become of those before; wait for all answers."""
    queue = sorted(times, key=lambda each: each[0], reverse=True)
    running: dict[int, load.Connection] = {}
    poll, seen, began = select.epoll(), load.Seen(), time.monotonic()
    while queue or running:
        due = began + queue[-1][0] - time.monotonic() if queue else QUIET_SECONDS
        if due <= 0:
            connection = send(queue.pop()[1], workload, seen, seed=len(queue))
            running[connection.socket.fileno()] = connection
            poll.register(connection.socket, select.EPOLLIN)
            continue
        events = poll.poll(due)
        if not events and not queue:
            raise TimeoutError(f"no answer for {QUIET_SECONDS:g} seconds")
        for fd, _ in events:
            running[fd].read()
            if not running[fd].busy:
                poll.unregister(fd)
                running.pop(fd).socket.close()


def send(stack: Stack, workload: Workload, seen: load.Seen, *, seed: int) -> load.Connection:
    """One request, on a connection of its own."""
    address = stack.url.removeprefix("http://")
    host, _, port = address.rpartition(":")
    connection = load.Connection((host, int(port)), seen)
    connection.send(load.request(address, MODEL.name, workload.tokens, workload.words, seed))
    return connection


def counted(stack: Stack, name: str) -> dict[tuple[str, ...], int]:
    """A counter of the frontend, by the values of its labels."""
    url = f"http://{stack.components['frontend'].launch.metrics}/metrics"
    with urllib.request.urlopen(url, timeout=10) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    samples = [each for family in families for each in family.samples if each.name == name]
    return {tuple(each.labels.values()): int(each.value) for each in samples}


def table(workload: Workload, found: Rates, measured: Sequence[Mapping[Ratio, float]]) -> str:
    heads = " ".join(f"{share:>6.0%}" for share in SHARES)
    lines = [
        f"{workload.name}: {found.prompt_tokens:.0f} and {found.output_tokens} tokens",
        f"one prefill worker {found.prefill_tokens_per_second:.0f} tokens/s ="
        f" {found.prefill:.2f} requests/s; one decode worker"
        f" {found.decode_tokens_per_second:.0f} = {found.decode:.2f};"
        f" {found.decode / found.prefill:.2f} prefill for each decode worker",
        f"{'P:D':>5} {'arithmetic':>11} {'per worker':>11}   goodput at {heads}   per worker",
    ]
    best = {ratio: max(each[ratio] for each in measured) / sum(ratio) for ratio in RATIOS}
    for ratio in RATIOS:
        capacity = found.capacity(ratio)
        row = " ".join(f"{each[ratio]:6.2f}" for each in measured)
        lines.append(
            f"{ratio!s:>5} {capacity:11.2f} {capacity / sum(ratio):11.2f}"
            f"              {row}   {best[ratio]:10.2f}"
        )
    named = max(RATIOS, key=lambda ratio: found.capacity(ratio) / sum(ratio))
    lines.append(f"best by the arithmetic {named}, measured {max(RATIOS, key=best.__getitem__)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--workload", default="", help="only workloads whose name begins with this text"
    )
    parser.add_argument(
        "--seconds", type=int, default=30, help="seconds of each rate, many answers long"
    )
    options = parser.parse_args()
    print(f"machine: {machine.describe()}")
    print(f"objectives: first token in {TTFT_SECONDS:g} s, {ITL_SECONDS * 1e3:g} ms between tokens")
    with ExitStack() as running:
        stacks = {ratio: running.enter_context(serving(ratio)) for ratio in RATIOS}
        for workload in WORKLOADS:
            if not workload.name.startswith(options.workload):
                continue
            found = rates(stacks[Ratio(1, 1)], workload)
            offers = [{ratio: s * found.capacity(ratio) for ratio in RATIOS} for s in SHARES]
            measured = [goodput(stacks, each, workload, options.seconds) for each in offers]
            print("\n" + table(workload, found, measured), flush=True)


if __name__ == "__main__":
    main()
