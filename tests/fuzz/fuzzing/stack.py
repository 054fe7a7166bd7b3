"""A whole stack with the sim engine, for what is tried over sockets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack

from .target import MODEL_PATH

_READY_SECONDS = 60.0
_FLAGS = {
    "frontend": (
        "--allow-reports",
        "--client-logits-processors=forced_sequence",
        '--moderation-classifiers={"entries": ["tests.fuzz.fuzzing.judge:Judge"]}',
    )
}


@contextmanager
def sim_stack() -> Iterator[Stack]:
    made = StackOptions(
        model_path=MODEL_PATH, engine="sim", engine_options=("step_ms=0",), flags=_FLAGS
    )
    with TemporaryDirectory() as folder, Stack(made, run_dir=Path(folder)) as stack:
        stack.wait_ready(timeout_seconds=_READY_SECONDS)
        yield stack
