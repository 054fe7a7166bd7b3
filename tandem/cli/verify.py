"""`tandem verify`: whether a deployment serves, and whether its KV cache really moves.

`helm test` runs it. It needs no torch, no model and no access to the cluster.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from tandem.cli import options, worker_counts
from tandem.cli.client import ApiError
from tandem.cli.commands import Command, adding
from tandem.cli.console import Console
from tandem.cli.verification import CheckError, Verification
from tandem.logits.spec import FORCED_SEQUENCE

Check = Callable[[], None]
_OFFERED = f"the answer is made by {FORCED_SEQUENCE}, which the frontend must offer to clients."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = adding(parser)
    add("--url", required=True, help="URL of the frontend, http:// or https://.")
    add("--model", default="", help="Model to ask. [the first one that is served]")
    options.add_trust(parser)
    add(
        "--kv HOST:PORT,...",
        default="",
        help="Metrics ports of all workers; a name stands for every address that it has. Checks "
        "that KV cache moved from prefill to decode.",
    )
    add(
        "--kv-bytes-per-token N",
        int,
        default=8,
        help="Fewest KV bytes that must move for each prompt token. [%(default)s, the least of"
        " any engine]",
    )
    add(
        "--expect-forced",
        action="store_true",
        help=f"Check that a forced answer is exact, first token included; {_OFFERED}",
    )
    add(
        "--expect-terminate PHRASE",
        default="",
        help=f"Check that an output hook ends an answer before PHRASE; {_OFFERED}",
    )
    add(
        "--timeout SECONDS",
        float,
        default=120.0,
        help="Time for all checks together. [%(default)s]",
    )


def verify(arguments: argparse.Namespace, console: Console) -> int:
    """Raises ConfigError for a question that cannot be asked, ApiError for a bad address."""
    verification = Verification(
        console,
        url=arguments.url,
        model=arguments.model,
        api_key=options.api_key(arguments.api_key_env),
        ca_file=arguments.ca_file,
        workers=worker_counts.targets(arguments.kv),
        kv_bytes_per_token=arguments.kv_bytes_per_token,
        timeout_seconds=arguments.timeout,
    )
    if not _holds(verification.it_is_ready, console):
        return 1
    checks: list[Check] = [verification.a_completion_streams]
    if arguments.expect_forced:
        checks.append(verification.a_sequence_is_forced)
    if phrase := arguments.expect_terminate:
        checks.append(partial(verification.a_hook_ends_an_answer, phrase))
    failed = sum(not _holds(check, console) for check in checks)
    if failed:
        console.failed(f"{failed} of {len(checks)} checks failed")
        return 1
    console.done(console.bold("the deployment serves"))
    return 0


def _holds(check: Check, console: Console) -> bool:
    try:
        check()
    except (CheckError, ApiError) as error:
        console.failed(str(error))
        return False
    return True


COMMAND = Command(add_arguments, verify)
