"""The commands: which fleets and policies are tried, on what trace, and where the results go."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial
from importlib import metadata

from tandem.cli import options
from tandem.cli.client import Client
from tandem.cli.commands import Command
from tandem.cli.console import Console
from tandem.errors import ConfigError
from tandem_router.choosing import Choosing
from tandem_tools import trace as traces
from tandem_tools.bench.figures import BenchSlo, Figures
from tandem_tools.trace import TracedRequest
from tandem_tools.trace_replay import arguments as command_line
from tandem_tools.trace_replay import fleet as fleets
from tandem_tools.trace_replay import generator, measuring, plot, results, times
from tandem_tools.trace_replay.fleet import FleetFile
from tandem_tools.trace_replay.measuring import Measuring
from tandem_tools.trace_replay.replay import Replayed, TraceReplay
from tandem_tools.trace_replay.results import ReplayResult
from tandem_tools.trace_replay.router import Policies
from tandem_tools.trace_replay.times import Times

_POLICY_SECONDS = 0.05
"""What an operator's policy may take for a choice, as by the router's default."""


def replay(arguments: argparse.Namespace, console: Console) -> int:
    """Every fleet by every policy. Raises ConfigError and LoadError."""
    options.check_folder(arguments.plot)
    asked = list(_fleets(fleets.read(arguments.fleet), arguments))
    slo = BenchSlo(ttft_seconds=arguments.slo_ttft, itl_seconds=arguments.slo_itl)
    policies = {name: _policies(name, arguments.decode_policy) for name in arguments.policy}
    trace = _trace(arguments)
    if arguments.write_trace:
        traces.write(arguments.write_trace, trace)
    console.line(_described(trace, arguments.speed))
    found, began = [], time.monotonic()
    runs = [(fleet, name) for fleet in asked for name in policies]
    for number, (fleet, name) in enumerate(runs):
        what = f"{number + 1}/{len(runs)} {fleet.name} by {name}"
        tell = partial(_tell, console, what, began, number, len(runs))
        tell(0.0)
        run = TraceReplay(
            fleet, policies[name], trace, speed=arguments.speed, seed=arguments.seed
        ).run(tell)
        found.append(_result(fleet, name, run, slo, _by_length(trace, run, arguments.long)))
    console.clear()
    head = (*results.HEAD, *(results.HEAD_BY_LENGTH if arguments.long else ()))
    console.table([each.row() for each in found], head=head)
    for said in (ReplayResult.said_ways, ReplayResult.said_reading):
        for line in filter(None, map(said, found)):
            console.line(line)
    for line in results.verdict(found):
        console.line(line)
    console.result([each.told() for each in found])
    if arguments.plot:
        title = f"tandem replay: {arguments.generate or arguments.trace.name}"
        drawn = plot.svg(found, title=title, parameters=_parameters(trace, arguments, slo))
        arguments.plot.write_text(drawn, encoding="utf-8")
    return 0


def _tell(console: Console, what: str, began: float, before: int, runs: int, share: float) -> None:
    """Show the progress of all runs: `before` finished runs and a share of the present run."""
    console.live(what, time.monotonic() - began, share=(before + share) / runs)


def _parameters(
    trace: tuple[TracedRequest, ...], arguments: argparse.Namespace, slo: BenchSlo
) -> tuple[str, ...]:
    """What a plot says of the replays beside their figures."""
    return (
        *_described(trace, arguments.speed).split("; "),
        f"speed {arguments.speed:g}",
        f"seed {arguments.seed}",
        f"decode by {arguments.decode_policy}",
        slo.said(),
        f"tandem {metadata.version('tandem-tools')}",
    )


def _result(
    fleet: FleetFile, policy: str, run: Replayed, slo: BenchSlo, by_length: tuple[list[float], ...]
) -> ReplayResult:
    return ReplayResult(
        fleet=fleet.name,
        workers=fleet.workers,
        aggregated=not fleet.prefill.workers,
        policy=policy,
        hit_rate=run.hit_rate,
        ideal_hit_rate=run.ideal_hit_rate,
        figures=Figures.of(run.answers, slo),
        by_length=by_length,
        readings=run.readings,
        ways={(way.value, why.value): count for (way, why), count in run.ways.items()},
    )


def _by_length(
    trace: tuple[TracedRequest, ...], run: Replayed, long: int | None
) -> tuple[list[float], ...]:
    """TTFT of prompts of fewer tokens than `long`, and of the others."""
    if long is None:
        return ()
    short_ones: list[float] = []
    long_ones: list[float] = []
    for line, answer in zip(trace, run.answers, strict=True):
        if answer.ttft is not None:
            (short_ones if line.input_length < long else long_ones).append(answer.ttft)
    return sorted(short_ones), sorted(long_ones)


def measure_times(arguments: argparse.Namespace, console: Console) -> int:
    """A table of times, as YAML. Raises ConfigError and ApiError."""
    options.check_folder(arguments.to)
    if arguments.url:
        found = _measured(arguments, console)
    else:
        pairs = options.engine_options(arguments.engine_options)
        found = _simulated(dict(pair.split("=", 1) for pair in pairs))
    text = times.encoded(found)
    if arguments.to:
        arguments.to.write_text(text, encoding="utf-8")
    if not console.result(found) and not arguments.to:
        console.write(text)
    return 0


def _simulated(values: dict[str, str]) -> Times:
    """The times of the sim engine with these options. Raises ConfigError."""
    try:
        from tandem_sim import options as sim_options
    except ModuleNotFoundError as error:
        raise ConfigError("times of the sim engine need: pip install tandem-sim") from error
    return times.of_sim(sim_options.parse(sim_options.SimOptions, values))


def _measured(arguments: argparse.Namespace, console: Console) -> Times:
    """Raises ApiError."""
    client = Client(
        arguments.url,
        timeout_seconds=arguments.timeout,
        api_key=options.api_key(arguments.api_key_env),
        ca_file=arguments.ca_file,
    )
    model = arguments.model or client.get("/v1/models")["data"][0]["id"]
    return Measuring(client, model, console).times(
        arguments.prompt_tokens or measuring.PROMPT_TOKENS,
        arguments.sequences or measuring.SEQUENCES,
    )


def _trace(arguments: argparse.Namespace) -> tuple[TracedRequest, ...]:
    """Raises ConfigError for a trace that cannot be read."""
    requests, seconds = arguments.requests, arguments.seconds
    if not arguments.generate:
        if arguments.rate:
            raise ConfigError("--rate is for --generate: a trace's own is changed by --speed")
        return traces.read(arguments.trace, requests=requests, seconds=seconds)
    made = generator.generate(
        arguments.generate,
        requests=requests or command_line.REQUESTS,
        rate=arguments.rate or command_line.RATE,
        seed=arguments.seed,
    )
    ends_at = float("inf") if seconds is None else seconds * 1000
    return tuple(each for each in made if each.timestamp <= ends_at)


def _fleets(fleet: FleetFile, arguments: argparse.Namespace) -> Iterator[FleetFile]:
    """The fleets to try. Raises ConfigError for one that cannot be."""
    if arguments.workers:
        for text in arguments.workers:
            yield fleet.with_workers(*_counts(text))
    elif arguments.sweep:
        total = fleet.workers
        for prefill in range(1, total):
            yield fleet.with_workers(prefill, total - prefill)
        yield fleet.with_workers(0, 0, total)
    else:
        yield fleet


def _counts(text: str) -> list[int]:
    """Raises ConfigError."""
    parts = text.split(":")
    if len(parts) in (2, 3) and all(part.isdecimal() and len(part) < 6 for part in parts):
        return [int(part) for part in parts]
    raise ConfigError(f"--workers {text!r}: write it P:D or P:D:A, as in 2:1 or 0:0:3")


def _policies(prefill: str, decode: str) -> Policies:
    """Raises LoadError."""
    choosing = Choosing(prefill, decode, seconds=_POLICY_SECONDS)
    return Policies(choosing.prefill, choosing.decode)


def _described(trace: tuple[TracedRequest, ...], speed: float) -> str:
    seconds = (trace[-1].timestamp - trace[0].timestamp) / 1000 / speed
    prompts = sum(each.input_length for each in trace)
    outputs = sum(each.output_length for each in trace)
    count = len(trace)
    return (
        f"{count:,} requests in {seconds:,.0f} s; in the mean {prompts / count:,.0f} prompt tokens"
        f" and {outputs / count:,.0f} output tokens"
    )


REPLAY = Command(
    command_line.add_arguments,
    replay,
    example="tandem replay --generate chat --fleet fleet.yaml --workers 2:2 1:3",
)
MEASURE_TIMES = Command(
    command_line.add_measure_arguments,
    measure_times,
    example="tandem measure-times --url http://127.0.0.1:8000 --to times.yaml",
)
