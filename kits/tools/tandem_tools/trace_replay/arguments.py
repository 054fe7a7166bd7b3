"""The options of `tandem replay` and `tandem measure-times`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tandem.cli import options
from tandem.cli.client import TIMEOUT_SECONDS

KINDS = ("chat", "shared", "mixed")
POLICIES = ("round_robin", "least_loaded", "prefix")
REQUESTS, RATE = 10_000, 4.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_load(parser)
    _add_fleets(parser)
    add = parser.add_argument
    options.add_slo(parser)
    add(
        "--long",
        type=options.positive,
        metavar="TOKENS",
        help="Show times to first token of shorter and of longer prompts apart.",
    )
    add("--json", type=Path, metavar="FILE", help="Write the figures as JSON too.")
    add("--plot", type=Path, metavar="FILE.svg", help="Draw the figures by fleet and policy.")


def add_measure_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument(
        "--url", help="Ask a frontend that has one pair behind it, and nothing else to do."
    )
    how.add_argument(
        "--engine-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="engine_options",
        help="Ask nobody: take the times of the sim engine with these options.",
    )
    add("--model", default="", help="Model to measure. [the first one that is served]")
    add("--prompt-tokens", type=options.positive, nargs="+", metavar="N", help="[1 128 512 2048]")
    add("--sequences", type=options.positive, nargs="+", metavar="N", help="[1 8 32]")
    add("--timeout", type=options.positive_number, default=TIMEOUT_SECONDS, help="[%(default)s]")
    add("--to", type=Path, metavar="FILE", help="File for the table. [standard output]")
    options.add_trust(parser)


def _add_load(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "trace",
        type=Path,
        nargs="?",
        metavar="TRACE",
        help="JSON lines of timestamp (ms), input_length, output_length (tokens) and hash_ids.",
    )
    what.add_argument("--generate", choices=KINDS, help="Make a trace of this kind instead.")
    add(
        "--requests",
        type=options.positive,
        metavar="N",
        help=f"Requests to take from the start of the trace. [all; {REQUESTS:,} with --generate]",
    )
    add(
        "--seconds",
        type=options.positive_number,
        metavar="S",
        help="Take the requests of this time from the start of the trace.",
    )
    add(
        "--rate",
        type=options.positive_number,
        metavar="R",
        help=f"With --generate: requests a second. [{RATE:g}]",
    )
    add(
        "--speed",
        type=options.positive_number,
        default=1.0,
        metavar="X",
        help="Send requests this many times as fast as the trace. [%(default)s]",
    )
    add(
        "--seed", type=int, default=1, metavar="N", help="Seed of all random choices. [%(default)s]"
    )
    add("--write-trace", type=Path, metavar="FILE", help="Write the requests as a trace.")


def _add_fleets(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--fleet",
        type=Path,
        required=True,
        metavar="FILE",
        help="File that describes the fleet: docs/replay.md.",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--workers",
        nargs="+",
        metavar="P:D",
        help="Numbers of prefill and decode workers in place of the file's; P:D:A with A"
        " aggregated ones.",
    )
    how.add_argument(
        "--sweep",
        action="store_true",
        help="Try every division of the file's workers into prefill and decode, and all workers"
        " aggregated.",
    )
    add(
        "--policy",
        nargs="+",
        default=[*POLICIES],
        metavar="NAME",
        help=f"Policies that choose prefill workers. [{' '.join(POLICIES)}]",
    )
    add(
        "--decode-policy",
        default="least_loaded",
        metavar="NAME",
        help="Policy that chooses decode workers. [%(default)s]",
    )
