"""The same model in one aggregated process, for comparison with the pair."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tandem import config, launching
from tandem.cli import processes
from tandem.cli.console import Console
from tandem.cli.plan import StackOptions
from tandem.cli.stack import tail
from tandem.errors import StartError

TIMEOUT_SECONDS = 600.0
POLL_SECONDS = 0.2


def generate(
    options: StackOptions,
    requests: Sequence[tuple[list[int], int]],
    *,
    run_dir: Path,
    console: Console,
) -> list[list[int]]:
    """Greedy token ids for each (prompt token ids, max_tokens). Raises StartError when the process
    fails.
    """
    asked = [{"token_ids": token_ids, "max_tokens": most} for token_ids, most in requests]
    question, answer, log = (
        run_dir / f"reference.{kind}" for kind in ("in.json", "out.json", "log")
    )
    question.write_text(json.dumps(asked), encoding="utf-8")
    flags = [
        f"--engine={options.engine}",
        f"--model-path={options.model_path}",
        f"--engine-options={','.join(options.engine_options)}",
    ]
    with question.open("rb") as stdin, answer.open("wb") as stdout, log.open("wb") as stderr:
        process = subprocess.Popen(
            launching.command("tandem.engine.reference", *flags, parent=os.getpid()),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=config.environment({"PYTHONUNBUFFERED": "1"}),
            start_new_session=True,
        )
    status = _await(process, console)
    if status != 0:
        raise StartError(f"the aggregated process ended with status {status}\n{tail(log)}")
    # The last line: an engine may have written to the same stream before.
    answers: list[list[int]] = json.loads(answer.read_text(encoding="utf-8").splitlines()[-1])
    return answers


def _await(process: subprocess.Popen[bytes], console: Console) -> int:
    identity = processes.identify(process.pid)
    began = time.monotonic()
    try:
        while (status := process.poll()) is None:
            waited = time.monotonic() - began
            if waited > TIMEOUT_SECONDS:
                raise StartError(f"the aggregated process was not done after {waited:.0f} s")
            console.live("one aggregated process starts and runs the prompt", waited)
            time.sleep(POLL_SECONDS)
        return status
    finally:
        console.clear()
        if identity is not None:
            processes.end([identity], grace_seconds=processes.KILL_SECONDS)
        process.wait(timeout=processes.KILL_SECONDS)
