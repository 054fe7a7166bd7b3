"""Tandem as a product: the wheels of this checkout in an environment of their own, and a first hour
with them in a folder outside the checkout.

`make install-test` runs this program: it installs the wheels and all that they need from the
package index, for each interpreter that is named.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
UV = Path(sys.executable).parent / "uv"
SECONDS = 60
MOST_MB = 150
COMPONENTS = ("frontend", "router", "prefill-worker", "decode-worker", "aggregated-worker")
HEAVY = re.compile(r"torch|nvidia|triton|nixl|sglang|kubernetes|cupy", re.IGNORECASE)
STACK = ("--config=stack.yaml", "--hook-decode=my_hook:NoSecrets")
SHOWN = "All went well on that day, and nobody complained about the weather."
LATER = "Some hours later, when all of us had gone home to sleep for the night, a secret was out."
FORCED = f"{SHOWN} {LATER}"
"""The hook keeps back the sentence with the word, and 64 characters before what it has not seen."""
PROGRAM = """
from tandem_executor import Executor, ExecutorConfig, Request
from tandem_tiny import MODEL

with Executor(MODEL, ExecutorConfig(engine="sim", disaggregated=True)) as executor:
    ids = [executor.enqueue_request(Request([101, 102, n], max_tokens=8)) for n in range(100)]
    answers = [executor.await_responses(each)[0] for each in ids]
assert not [each.error_msg for each in answers if each.has_error()]
print(sum(len(each.result.output_token_ids[0]) for each in answers))
"""


def build(folder: Path) -> list[Path]:
    """The wheels of all distributions, as `make wheels` builds them."""
    command = ["build", "--wheel", "--all-packages", "--no-build-isolation", "--offline"]
    run([UV, *command, f"--python={sys.executable}", f"--out-dir={folder}"], ROOT)
    return sorted(folder.glob("*.whl"))


def make_environment(folder: Path, python: str) -> Path:
    """A virtual environment without a package. Returns its Python."""
    run([UV, "venv", "--quiet", f"--python={python}", folder], folder.parent)
    return folder / "bin" / "python"


def install_wheels(python: Path, wheels: Iterable[Path]) -> None:
    """The wheels alone, as any installer unpacks them, without an index."""
    run(
        [
            UV,
            "pip",
            "install",
            "--offline",
            "--no-deps",
            "--no-index",
            f"--python={python}",
            *wheels,
        ],
        ROOT,
    )


def lend(python: Path, folder: Path) -> None:
    """Let an environment see what its wheels require, as links to this environment's packages: a
    package that nobody declares is not to be seen.
    """
    folder.mkdir()
    (site,) = (python.parent.parent / "lib").glob("python3.*/site-packages")
    for name in required("tandem-serving", site):
        for each in metadata.distribution(name).files or ():
            source = Path(str(each.locate())).parents[len(each.parts) - 1] / each.parts[0]
            if each.parts[0] not in ("..", "__pycache__"):
                (folder / each.parts[0]).unlink(missing_ok=True)
                (folder / each.parts[0]).symlink_to(source)
    (site / "lent.pth").write_text(f"{folder}\n")


def required(distribution: str, site: Path) -> set[str]:
    """The distributions of others that one of ours requires, as the folder of our installed ones
    says, and all that these require.
    """
    ours = {each.name: each.requires for each in metadata.distributions(path=[str(site)])}
    found: set[str] = set()
    waiting: list[tuple[str, tuple[str, ...]]] = [(distribution, ())]
    seen = set(waiting)
    while waiting:
        name, asked = waiting.pop()
        if name not in ours:
            found.add(name)
        for line in (ours[name] if name in ours else metadata.requires(name)) or ():
            each = Requirement(line)
            marker = each.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *asked)):
                continue
            step = (each.name, tuple(sorted(each.extras)))
            if step not in seen:
                seen.add(step)
                waiting.append(step)
    return found


class FirstHour:
    """What a newcomer does, in an empty folder, with the commands of one environment."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._bin = python.parent
        self._folder = folder
        names = ("LANG", "TMPDIR")
        self._environ = {name: os.environ[name] for name in names if name in os.environ} | {
            "HOME": str(folder),
            "PATH": f"{self._bin}:/usr/bin:/bin",
            "TANDEM_CLIENT_LOGITS_PROCESSORS": "forced_sequence",
        }

    def go(self) -> None:
        """All of it. Raises AssertionError."""
        self._programs_say_what_they_are()
        self.run("tandem", "init")
        assert "would start" in self.run("tandem", "config", "check", "stack.yaml")
        self._write_the_hook()
        text = "This is a secret thing."
        assert "4 terminate" in self.run(
            "tandem", "check-hook", "my_hook:NoSecrets", "--text", text
        )
        started = self.run("tandem", "up", "--detach", "--port=0", *STACK)
        try:
            assert "The engine is simulated" in started
            (url,) = re.findall(r"endpoint: (http://\S+)/v1", started)
            assert self.run("tandem", "chat", "--url", url, "Tell me a story.").strip()
            self._the_hook_acts(url)
        finally:
            assert "stopped" in self.run("tandem", "down")
        (self._folder / "my_program.py").write_text(PROGRAM)
        assert self.run("python", "my_program.py").strip() == str(100 * (3 + 8))

    def run(self, program: str, *arguments: str) -> str:
        """What a command prints."""
        return run([self._bin / program, *arguments], self._folder, self._environ).stdout

    def _programs_say_what_they_are(self) -> None:
        assert self.run("tandem", "--version") == f"tandem {metadata.version('tandem-serving')}\n"
        for name in COMPONENTS:
            assert "--print-config" in self.run(f"tandem-{name}", "--help")

    def _write_the_hook(self) -> None:
        page = (ROOT / "docs" / "first-steps.md").read_text()
        blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        (code,) = (each for each in blocks if "class NoSecrets" in each)
        (self._folder / "my_hook.py").write_text(code)

    def _the_hook_acts(self, url: str) -> None:
        forced = {"name": "forced_sequence", "args": {"text": FORCED}}
        body = {
            "model": "tandem-tiny",
            "messages": [{"role": "user", "content": "Say it."}],
            "max_tokens": 100,
            "logits_processors": [forced],
        }
        answer = _post(f"{url}/v1/chat/completions", body)
        (choice,) = answer["choices"]
        shown = choice["message"]["content"]
        assert shown.strip().startswith(SHOWN), answer
        assert ("secret" in shown, choice["stop_reason"]) == (False, "no_secrets"), answer


def heavy(python: Path) -> list[str]:
    """Packages of an environment that a simulated stack must do without."""
    return [name for name, _ in _sizes(python) if HEAVY.search(name)]


def _sizes(python: Path) -> Iterator[tuple[str, int]]:
    """The bytes of each folder and file of an environment's packages, byte code left out."""
    (site,) = (python.parent.parent / "lib").glob("python3.*/site-packages")
    for each in site.iterdir():
        files = [each] if each.is_file() else each.rglob("*")
        whole = (path for path in files if path.is_file() and path.suffix != ".pyc")
        yield each.name, sum(path.stat().st_size for path in whole)


def _post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return json.load(answer)


def run(
    command: Sequence[str | Path], folder: Path, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Raises AssertionError with all that the command said, where it fails."""
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def try_with(interpreter: str, wheels: Path) -> None:
    """Install from the index, as a user does, and spend a first hour."""
    with tempfile.TemporaryDirectory(prefix="tandem-install-") as name:
        folder = Path(name)
        python = make_environment(folder / "venv", interpreter)
        run(
            [
                UV,
                "pip",
                "install",
                f"--python={python}",
                f"--find-links={wheels}",
                "tandem-serving",
            ],
            folder,
        )
        sizes = sorted(_sizes(python), key=lambda each: -each[1])
        total = sum(size for _, size in sizes) / 1e6
        for package, size in sizes[:15]:
            print(f"  {size / 1e6:6.1f} MB  {package}")
        print(f"  {total:6.1f} MB  in all, without byte code")
        assert not heavy(python), heavy(python)
        project = folder / "a project"
        project.mkdir()
        FirstHour(python, project).go()
        assert total < MOST_MB, total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", help="interpreter, or its version; again")
    interpreters = parser.parse_args().python or [sys.executable]
    with tempfile.TemporaryDirectory(prefix="tandem-wheels-") as name:
        wheels = Path(name)
        build(wheels)
        for each in interpreters:
            found = shutil.which(each) or each
            print(f"{found}:")
            try_with(found, wheels)
            print("ok")


if __name__ == "__main__":
    main()
