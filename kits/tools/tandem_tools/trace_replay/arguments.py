"""The options of `tandem replay` and `tandem measure-times`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tandem.cli import options
from tandem.cli.client import TIMEOUT_SECONDS
from tandem.cli.commands import adding

KINDS = ("chat", "shared", "mixed")
POLICIES = ("round_robin", "least_loaded", "prefix")
REQUESTS, RATE = 10_000, 4.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_load(parser)
    _add_fleets(parser)
    add = adding(parser)
    options.add_slo(parser)
    add(
        "--long TOKENS",
        options.positive,
        help="Show times to first token of shorter and of longer prompts apart.",
    )
    add("--plot FILE.svg", Path, help="Draw the figures by fleet and policy.")


def add_measure_arguments(parser: argparse.ArgumentParser) -> None:
    add = adding(parser)
    how = adding(parser.add_mutually_exclusive_group(required=True))
    how("--url", help="Ask a frontend that has one pair behind it, and nothing else to do.")
    how(
        "--engine-option KEY=VALUE",
        action="append",
        default=[],
        dest="engine_options",
        help="Ask nobody: take the times of the sim engine with these options.",
    )
    add("--model", default="", help="Model to measure. [the first one that is served]")
    add("--prompt-tokens N", options.positive, nargs="+", help="[1 128 512 2048]")
    add("--sequences N", options.positive, nargs="+", help="[1 8 32]")
    add("--timeout", options.positive_number, default=TIMEOUT_SECONDS, help="[%(default)s]")
    add("--to FILE", Path, help="File for the table. [standard output]")
    options.add_trust(parser)


def _add_load(parser: argparse.ArgumentParser) -> None:
    add = adding(parser)
    what = adding(parser.add_mutually_exclusive_group(required=True))
    what(
        "trace TRACE",
        Path,
        nargs="?",
        help="JSON lines of timestamp (ms), input_length, output_length (tokens) and hash_ids.",
    )
    what("--generate", choices=KINDS, help="Make a trace of this kind instead.")
    add(
        "--requests N",
        options.positive,
        help=f"Requests to take from the start of the trace. [all; {REQUESTS:,} with --generate]",
    )
    add(
        "--seconds S",
        options.positive_number,
        help="Take the requests of this time from the start of the trace.",
    )
    add("--rate R", options.positive_number, help=f"With --generate: requests a second. [{RATE:g}]")
    add(
        "--speed X",
        options.positive_number,
        default=1.0,
        help="Send requests this many times as fast as the trace. [%(default)s]",
    )
    add("--seed N", int, default=1, help="Seed of all random choices. [%(default)s]")
    add("--write-trace FILE", Path, help="Write the requests as a trace.")


def _add_fleets(parser: argparse.ArgumentParser) -> None:
    add = adding(parser)
    add("--fleet FILE", Path, required=True, help="File that describes the fleet: docs/replay.md.")
    how = adding(parser.add_mutually_exclusive_group())
    how(
        "--workers P:D",
        nargs="+",
        help="Numbers of prefill and decode workers in place of the file's; P:D:A with A"
        " aggregated ones.",
    )
    how(
        "--sweep",
        action="store_true",
        help="Try every division of the file's workers into prefill and decode, and all workers"
        " aggregated.",
    )
    add(
        "--policy NAME",
        nargs="+",
        default=[*POLICIES],
        help=f"Policies that choose prefill workers. [{' '.join(POLICIES)}]",
    )
    add(
        "--decode-policy NAME",
        default="least_loaded",
        help="Policy that chooses decode workers. [%(default)s]",
    )
