"""Take the pictures of docs/playground.md; `make playground-pictures`. Answers are real ones of the
tiny model by real SGLang, so that their times and traces are what was measured; who waits does so
for workers of the sim engine that have one slot each.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from run import ROOT, browser_environment, install_node

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack
from tandem.cli.up import START_SECONDS, offers

PICTURES = ROOT / "docs" / "playground"
MODEL = ROOT / "model" / "tandem-tiny"
ONE_SLOT = dict.fromkeys(("prefill_worker", "decode_worker"), ("--max-sequences=1",))
STACKS = {
    ("desk", "phone"): StackOptions(
        engine="sglang",
        model_path=MODEL,
        hook_prefill="examples.hooks:CountingHook",
        hook_decode="examples.hooks:PhraseGuard",
        flags=offers(),
    ),
    ("waiting",): StackOptions(
        engine="sim",
        model_path=MODEL,
        engine_options=("step_ms=300",),
        flags={**offers(), **ONE_SLOT},
    ),
}
"""By the pictures that are taken of a stack."""


def main() -> int:
    folder = install_node()
    environment = browser_environment()
    PICTURES.mkdir(exist_ok=True)
    for names, options in STACKS.items():
        with (
            tempfile.TemporaryDirectory() as run_dir,
            Stack(options, run_dir=Path(run_dir)) as stack,
        ):
            stack.wait_ready(timeout_seconds=START_SECONDS[options.engine])
            command = ["node", "pictures.mjs", stack.url, str(PICTURES), *names]
            subprocess.run(command, cwd=folder, env=environment, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
