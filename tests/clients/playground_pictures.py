"""Take the pictures of docs/playground.md: of a real answer of the tiny model by real SGLang, so
that its times and its trace are what was measured; `make playground-pictures`.
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

ENGINE = "sglang"
PICTURES = ROOT / "docs" / "playground"
OPTIONS = StackOptions(
    engine=ENGINE,
    model_path=ROOT / "model" / "tandem-tiny",
    hook_prefill="examples.hooks:CountingHook",
    hook_decode="examples.hooks:PhraseGuard",
    flags=offers(),
)


def main() -> int:
    folder = install_node()
    environment = browser_environment()
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as run_dir, Stack(OPTIONS, run_dir=Path(run_dir)) as stack:
        stack.wait_ready(timeout_seconds=START_SECONDS[ENGINE])
        command = ["node", "pictures.mjs", stack.url, str(PICTURES)]
        return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
