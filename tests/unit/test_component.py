"""A command that is interrupted while it is still importing ends at once, and says nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tandem import launching

SECONDS = 60
SCRIPTS = Path(sys.executable).parent
IMPORTS = {
    "tandem": ("tandem.launching", "argparse"),
    "tandem-frontend": ("tandem_frontend.lifecycle",),
    "tandem-router": ("tandem_router.server",),
    "tandem-prefill-worker": ("tandem_prefill_worker.rules",),
    "tandem-decode-worker": ("tandem.worker.divided",),
    "tandem-aggregated-worker": ("tandem_aggregated_worker.worker",),
}
"""Of each command some of the modules that it imports."""


def run(
    folder: Path, command: list[str], module: str, number: signal.Signals
) -> subprocess.CompletedProcess[str]:
    """Run a command that sends itself a signal when it begins to import a module."""
    (folder / "sitecustomize.py").write_text(
        textwrap.dedent(
            f"""
            import os, sys

            def hook(event, arguments):
                if event == "import" and arguments[0] == {module!r}:
                    os.kill(os.getpid(), {number:d})

            sys.addaudithook(hook)
            """
        )
    )
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def of_package(script: str) -> str:
    """What `python -m` runs as a command."""
    return "tandem.cli" if script == "tandem" else script.replace("-", "_")


COMMANDS = {
    **{name: ([str(SCRIPTS / name)], IMPORTS[name]) for name in IMPORTS},
    **{
        f"python -m {of_package(name)}": ([sys.executable, "-m", of_package(name)], IMPORTS[name])
        for name in IMPORTS
    },
    "tandem up": ([str(SCRIPTS / "tandem"), "up"], ("tandem.errors", "tandem.cli.options")),
    "tandem bench": ([str(SCRIPTS / "tandem"), "bench"], ("tandem_tools.bench.aiperf",)),
    "python -m tandem.engine.reference": (
        [sys.executable, "-m", "tandem.engine.reference"],
        ("tandem.engine.factory",),
    ),
}
"""And the modules during whose import the signal comes."""


@pytest.mark.promise("S5-582")
@pytest.mark.parametrize(
    ("name", "module"),
    [(name, each) for name, (_, modules) in COMMANDS.items() for each in modules],
)
def test_ctrl_c_during_the_imports_of_a_command_shows_no_traceback(
    tmp_path: Path, name: str, module: str
) -> None:
    ended = run(tmp_path, [*COMMANDS[name][0], "--help"], module, signal.SIGINT)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.promise("S5-582")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_another_started_ends_as_quietly(
    tmp_path: Path, number: signal.Signals
) -> None:
    ended = run(
        tmp_path,
        launching.command("tandem_router.__main__", "--help"),
        "tandem_router.server",
        number,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (-number, "", "")


@pytest.mark.promise("S5-582")
def test_ctrl_c_reaches_what_a_command_does_once_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "my_program.py").write_text(
        "def main():\n    import late\n    raise AssertionError('not interrupted')\n"
    )
    (tmp_path / "late.py").touch()
    ended = run(tmp_path, launching.command("my_program"), "late", signal.SIGINT)
    assert (ended.returncode, ended.stderr) == (130, "\ntandem: interrupted\n")


@pytest.mark.promise("S5-582")
def test_a_command_that_is_told_to_ignore_ctrl_c_goes_on_to_ignore_it(tmp_path: Path) -> None:
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", str(SCRIPTS / "tandem-router"), "--help"]
    ended = run(tmp_path, command, "tandem_router.server", signal.SIGINT)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "--listen" in ended.stdout
