"""`tandem check-hook`: run an output hook through what workers do to it, and say what was found.

Nothing is served and no model is needed. It finds hooks that do not keep to the contract, that mix
up requests, that remember too much, or that are slow; it cannot tell whether a hook's verdicts are
the ones its author wants.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import yaml

from tandem.cli.commands import Command, adding
from tandem.cli.console import Console
from tandem.errors import ConfigError
from tandem_tools.check_hook import checks, crowd, duration, report, samples
from tandem_tools.check_hook.report import Check
from tandem_tools.check_hook.subject import Subject

CHECKS = 9
"""What a hook that can be called is put through."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = adding(parser)
    add("hook MODULE:CLASS")
    add(
        "--config YAML",
        default="",
        help="Keyword arguments of the class: a mapping in YAML or JSON, or a file that holds one.",
    )
    add(
        "--text",
        action="append",
        default=[],
        help="An answer that the hook should act on; may be given again. The hook is tried on "
        "answers with the strings of its config and attributes anyway.",
    )


def check_hook(arguments: argparse.Namespace, console: Console) -> int:
    """Status 0, or 1 where something must be fixed. Raises StartError where the hook cannot be
    built.
    """
    sys.path.append(str(Path.cwd()))
    subject = Subject(arguments.hook, _config(arguments.config))
    done = asyncio.run(_run(subject, arguments, console))
    if not console.result(report.told(subject.path, done)):
        report.conclude(subject.path, done, console)
    return 1 if any(check.problems for check in done) else 0


async def _run(subject: Subject, arguments: argparse.Namespace, console: Console) -> list[Check]:
    done: list[Check] = []
    began = time.monotonic()
    with _quiet(), redirect_stdout(sys.stderr):
        async for check in _checks(subject, arguments.text):
            done.append(check)
            if not arguments.json:
                report.show(check, console)
            seconds, share = time.monotonic() - began, len(done) / CHECKS
            console.live(f"{len(done)}/{CHECKS} checks", seconds, share=share)
    console.clear()
    return done


async def _checks(subject: Subject, given: Sequence[str]) -> AsyncIterator[Check]:
    async with subject.fresh() as (_, probe):
        hook = probe.hook
        yield Check("built", _kind(hook, probe.is_async))
        texts = samples.texts(hook, subject.config, given)
    calls = await checks.calls(subject, texts)
    yield calls
    if calls.problems:
        return  # what else could be said of it would follow from this
    yield await checks.borders(subject, texts)
    yield await checks.tokens(subject, texts)
    yield await checks.outputs(subject, texts)
    async for check in crowd.checks(subject, texts):
        yield check
    yield await duration.long_answer(subject)


def _kind(hook: object, is_async: bool) -> str:
    parts = [name for name in ("close", "startup", "shutdown") if hasattr(hook, name)]
    return ", ".join(["async __call__" if is_async else "__call__", *parts])


def _config(given: str) -> Mapping[str, Any]:
    if not given:
        return {}
    try:
        text = Path(given).read_text(encoding="utf-8") if Path(given).is_file() else given
        config = yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"--config cannot be read: {error}") from error
    if not isinstance(config, dict) or not all(isinstance(key, str) for key in config):
        raise ConfigError(f"--config must be a mapping of keyword arguments, not {config!r}")
    return config


@contextmanager
def _quiet() -> Iterator[None]:
    """Log lines of forty thousand calls would bury the report."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


COMMAND = Command(
    add_arguments,
    check_hook,
    example='tandem check-hook examples.hooks:PhraseGuard --text "A forbidden phrase."',
)
