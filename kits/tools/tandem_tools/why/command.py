"""The options of `tandem why`, and what it prints."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from tandem.cli import options, run_state, worker_counts
from tandem.cli.client import ApiError
from tandem.cli.commands import Command, adding
from tandem.cli.console import Console
from tandem.errors import ConfigError
from tandem_tools.why import asking
from tandem_tools.why.causes import LEVELS, Diagnosis, diagnose
from tandem_tools.why.evidence import Evidence

ROUTER, FRONTEND = "127.0.0.1:7001", "127.0.0.1:8001"
BAR_CHARACTERS = 40
MOST_CAUSES = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = adding(parser)
    parser.description = "Say where the time of a request went, and what each wait was for."
    parser.epilog = (
        "Exit status: 0 told; 1 nobody knows of such a request, or nobody answers; 2 the command"
        " line is wrong."
    )
    which = adding(parser.add_mutually_exclusive_group(required=True))
    which("trace_id TRACE_ID", nargs="?", help="As in an answer's x-tandem-trace-id.")
    which("--last", action="store_true", help="The last request with a delay of --over or more.")
    which("--slowest N", options.positive, help="A line for each of the N slowest.")
    add(
        "--over SECONDS",
        float,
        default=1.0,
        help="For --last: the delay from which on a request is slow. [%(default)s]",
    )
    add(
        "--log FILE",
        Path,
        action="append",
        default=[],
        help="A log of a router or frontend with log_requests, or - for standard input, in the"
        " place of the components; may be given several times.",
    )
    for component, port in (("routers", ROUTER), ("frontends", FRONTEND)):
        add(
            f"--{component} HOST:PORT,...",
            default="",
            help=f"Metrics ports of {component}; a name stands for every address that it has."
            f" [those of `tandem up`, else {port}]",
        )
    options.add_run_dir(parser)


def why(arguments: argparse.Namespace, console: Console) -> int:
    """Raises ApiError where nobody knows of such a request, ConfigError for wrong options."""
    if arguments.over < 0:
        raise ConfigError("--over is 0 or more")
    ports = asking.AdminPorts(_addresses(arguments))
    found = _found(arguments, ports)
    told = [diagnose(each) for each in found]
    if arguments.json:
        for each in told:
            console.result(each)
    elif arguments.slowest:
        console.table(map(_row, told), head=("trace id", "seconds", "delay", "ended", "cause"))
    else:
        _show(told[0], console)
    for address, reason in ports.silent.items():
        console.line(f"  (not asked: {address}: {reason})")
    return 0


def _found(arguments: argparse.Namespace, ports: asking.AdminPorts) -> Sequence[Evidence]:
    """The requests that were asked for: one at least."""
    trace_id = arguments.trace_id
    if arguments.log:
        known = asking.from_logs(arguments.log, lambda each: trace_id in (None, each))
        found = _chosen(known.values(), arguments)
        silent = {}
    elif trace_id:
        one = ports.of(trace_id) or _from_run_dir(trace_id, arguments.run_dir)
        found, silent = [] if one is None else [one], ports.silent
    else:
        listed = ports.listed()
        if arguments.last:
            slow = [each for each in listed if each.delay >= arguments.over]
            wanted = sorted(slow, key=lambda each: each.ended_seconds_ago)[:1]
        else:
            wanted = sorted(listed, key=lambda each: -each.delay)[: arguments.slowest]
        by_id = ports.all(each.trace_id for each in wanted)
        found = [by_id[each.trace_id] for each in wanted if each.trace_id in by_id]
        silent = ports.silent
    if found:
        return found
    if silent:
        reasons = "; ".join(f"{address}: {reason}" for address, reason in silent.items())
        raise ApiError(f"nobody told of such a request ({reasons})")
    raise ApiError(
        "no component, and no log, tells of such a request: components remember the last"
        " max_stories requests; log_requests keeps stories in logs"
    )


def _chosen(known: Iterable[Evidence], arguments: argparse.Namespace) -> list[Evidence]:
    """What is asked for of all that logs tell, in the order in which they tell it."""
    if arguments.slowest:
        return sorted(known, key=lambda each: -each.delay)[: arguments.slowest]
    if arguments.last:
        known = [each for each in known if each.delay >= arguments.over]
    return list(known)[-1:]


def _from_run_dir(trace_id: str, run_dir: Path) -> Evidence | None:
    """What the logs of the stack of this folder tell of a request."""
    logs = sorted(run_dir.glob("*.log"))
    return asking.from_logs(logs, trace_id.__eq__).get(trace_id)


def _addresses(arguments: argparse.Namespace) -> list[str]:
    if arguments.routers or arguments.frontends:
        given = (arguments.routers, "--routers"), (arguments.frontends, "--frontends")
        targets = [each for text, flag in given for each in worker_counts.targets(text, flag)]
        return worker_counts.addresses(targets)
    state = run_state.read(arguments.run_dir)
    if state is None:
        return [ROUTER, FRONTEND]
    return [
        address
        for name, address in state.metrics.items()
        if name.startswith(("router", "frontend"))
    ]


# --- what is printed -----------------------------------------------------------------------------


def _row(told: Diagnosis) -> tuple[str, ...]:
    cause = told.causes[0].sentence if told.causes else ""
    return (
        told.trace_id,
        f"{told.seconds:.3f}",
        f"{told.delay:.3f}",
        told.outcome or "open",
        cause,
    )


def _show(told: Diagnosis, console: Console) -> None:
    first = f", first output after {told.first_seconds:.3f} s" if told.first_seconds else ""
    ended = told.outcome or "still open"
    console.line(f"{told.trace_id}  {told.model}  {ended}: {told.seconds:.3f} s{first}")
    console.line()
    for part, seconds in told.parts.items():
        share = seconds / told.seconds if told.seconds else 0.0
        bar = "█" * round(share * BAR_CHARACTERS)
        console.line(f"  {part:<8}{seconds:9.3f} s  {share:4.0%}  {bar}".rstrip())
    console.line()
    if told.causes:
        console.line("  why")
    for number, cause in enumerate(told.causes[:MOST_CAUSES], 1):
        console.line(f"  {number}. {cause.seconds:.3f} s of {cause.part}: {cause.sentence}")
    console.line()
    console.line("  possible")
    before = 0.0
    for level in LEVELS:
        seconds = told.possible[level]
        more = "" if level == "ideal" else f"  {seconds - before:+.3f} s"
        console.line(f"  {level:<9}{seconds:8.3f} s{more}")
        before = seconds


COMMAND = Command(add_arguments, why, example="tandem why --slowest 10")
