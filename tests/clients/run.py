"""Run other people's clients, unmodified, against the scripted frontend; `make client-test`.

Each client gets an environment of its own under build/clients, of the versions in
environments.toml. The node ones need npm, and are left out, with a word, where it brings nothing.
docs/clients.md has the matrix of what passed. What is ours and needs a browser, the playground, is
tried here too, and has no row there:

    python tests/clients/run.py            # fails where a test does, or where the matrix is stale
    python tests/clients/run.py --write    # writes the matrix
    python tests/clients/run.py --only langchain
    python tests/clients/run.py --lock     # with the newest dependencies, which it writes down
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LOCKS = HERE / "locks"
BUILD = ROOT / "build" / "clients"
UV = str(Path(sys.executable).parent / "uv")
PAGE = ROOT / "docs" / "clients.md"
BEGIN = "<!-- Made by `make client-test ARGS=--write`: the table is what its tests said. -->\n"
END = "<!-- End of what is made. -->\n"
APIS = ("responses", "messages")
FEATURES = ("chat", "stream", "tools", "session", "structured", "reasoning", *APIS, "errors")
START_SECONDS = 60
RUN_SECONDS = 300
Passed = Mapping[str, Mapping[str, bool]]
"""By client and feature: whether all of its tests passed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the matrix")
    parser.add_argument("--lock", action="store_true", help="pin the newest dependencies")
    parser.add_argument("--only", default="", help="clients whose name holds this")
    parser.add_argument("--without", default="", help="a kind of clients that is left out")
    options = parser.parse_args()
    clients = tomllib.loads((HERE / "environments.toml").read_text(encoding="utf-8"))
    chosen = {
        name: each
        for name, each in clients.items()
        if options.only in name and options.without != each["kind"]
    }
    if options.lock:
        for name, client in chosen.items():
            lock(name, client)
    failed = False
    passed: dict[str, Mapping[str, bool]] = {}
    with server("scripted.py") as port:
        url = f"http://127.0.0.1:{port}"
        for name, client in chosen.items():
            print(f"==> {name}", flush=True)
            try:
                found = run_steadily(name, client, url)
            except Left as error:
                print(f"    left out: {error}", flush=True)
                continue
            for test, good in sorted(found.items()):
                print(f"    {'ok' if good else 'FAILED'}  {test}", flush=True)
            failed |= not all(found.values()) or not found
            if client["kind"] != "browser":
                passed[title(name, client)] = by_feature(found, str(client.get("api", "")))
    if options.write:
        write(table(passed))
    else:
        failed |= stale(table(passed))
    return int(failed)


def run_steadily(name: str, client: Mapping[str, object], url: str) -> dict[str, bool]:
    """Whether each test passed, by its name: at first, or else once more. What passes only then is
    printed as unsteady.
    """
    found = run_client(name, client, url)
    if failed := [test for test, good in found.items() if not good]:
        again = run_client(name, client, url)
        for test in failed:
            found[test] = again.get(test, False)
            if found[test]:
                print(f"    unsteady: {test}: its failure is printed above", flush=True)
    return found


def run_client(name: str, client: Mapping[str, object], url: str) -> dict[str, bool]:
    match client["kind"]:
        case "browser":
            return run_browser(client)
        case "agent":
            return run_agent(name, client)
        case "node":
            return run_node(client, {"TANDEM_CLIENTS_URL": url})
        case _:
            return run_python(name, client, url)


class Left(Exception):
    """A client cannot be run here."""


@contextmanager
def server(script: str, environment: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    """What a program of this folder that serves says of where it is reached."""
    command = [sys.executable, str(HERE / script)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={
            **os.environ,
            **environment,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests/unit/frontend'}",
        },
    )
    try:
        assert process.stdout is not None
        where = process.stdout.readline().strip()
        if not where:
            raise SystemExit(f"a server did not start: run tests/clients/{script}")
        yield where
    finally:
        process.communicate(timeout=START_SECONDS)


def lock(name: str, client: Mapping[str, object]) -> None:
    """Write down what a Python client's packages come to now."""
    if client["kind"] == "python":
        wanted = "\n".join(map(str, [*_list(client["packages"]), "pytest", "pytest-asyncio"]))
        command = [UV, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "-"]
        ran = subprocess.run(
            command, input=wanted, stdout=subprocess.PIPE, text=True, check=True, cwd=HERE
        )
        (LOCKS / f"{name}.txt").write_text(ran.stdout, encoding="utf-8")


def run_python(name: str, client: Mapping[str, object], url: str) -> dict[str, bool]:
    """Whether each test passed, by its name."""
    folder = BUILD / name
    python = folder / "bin" / "python"
    if not python.exists():
        _call([UV, "venv", "--quiet", "--python", sys.executable, str(folder)])
    _call([UV, "pip", "sync", "--quiet", "--python", str(python), str(LOCKS / f"{name}.txt")])
    return run_pytest([str(python)], client, folder, {"TANDEM_CLIENTS_URL": url})


def run_pytest(
    python: list[str], client: Mapping[str, object], folder: Path, environment: Mapping[str, str]
) -> dict[str, bool]:
    """Whether each test passed, by its name. `python`: of whom, and what else pytest is told."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [python[0], "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    subprocess.run(
        [*command, str(client["tests"]), *python[1:]],
        cwd=HERE,
        env={**_environment(), **environment},
        timeout=RUN_SECONDS,
        check=False,
    )
    cases = ElementTree.parse(report).getroot().iter("testcase")
    return {
        str(case.get("name")): case.find("failure") is None and case.find("error") is None
        for case in cases
    }


def run_browser(client: Mapping[str, object]) -> dict[str, bool]:
    """The tests of a page, in Chromium."""
    environment = browser_environment()
    with server("playground_server.py") as where:
        return run_node(client, {**environment, "TANDEM_PLAYGROUND": where})


def browser_environment() -> dict[str, str]:
    """With the command of a Chromium, which is brought here where it is missing."""
    command = str(ROOT / "scripts" / "set_up_chromium.sh")
    ran = subprocess.run([command], check=False, capture_output=True, text=True)
    if ran.returncode:
        raise Left(f"there is no Chromium: {ran.stderr}")
    return {**os.environ, "CHROMIUM": ran.stdout.strip()}


def run_node(client: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, bool]:
    """`environment`: where the tests find their servers."""
    ran = subprocess.run(
        ["node", "--test", "--test-reporter=tap", *str(client["tests"]).split()],
        cwd=install_node(),
        env={**os.environ, **environment},
        timeout=RUN_SECONDS,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = re.findall(r"^(ok|not ok) \d+ - (.*)$", ran.stdout, re.MULTILINE)
    if not lines or any(result != "ok" for result, _ in lines):
        print(ran.stdout + ran.stderr)
    return {name: result == "ok" for result, name in lines}


def run_agent(name: str, client: Mapping[str, object]) -> dict[str, bool]:
    """The tests of a coding agent, against a server of its own."""
    folder = BUILD / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = {"TANDEM_AGENTS_LOG": str(folder / "requests.jsonl")}
    environment["TANDEM_AGENTS"] = str(install_node("agents") / "node_modules" / ".bin")
    with server("agents_server.py", environment) as port:
        environment["TANDEM_CLIENTS_URL"] = f"http://127.0.0.1:{port}"
        found = run_pytest([sys.executable, "-k", name], client, folder, environment)
    return {test.replace(f"[{name}]", ""): good for test, good in found.items()}


@functools.cache
def install_node(name: str = "node") -> Path:
    """The folder of what runs in node, with its packages."""
    npm = shutil.which("npm")
    if npm is None:
        raise Left("there is no npm")
    folder = HERE / name
    # The agents are bundles: a lock would hold packages that are for other systems alone.
    install = (
        ["ci"] if (folder / "package-lock.json").exists() else ["install", "--no-package-lock"]
    )
    try:
        _call([npm, *install, "--silent", "--no-audit", "--no-fund"], cwd=folder)
    except SystemExit as error:
        raise Left(str(error)) from error
    return folder


def by_feature(found: Mapping[str, bool], api: str) -> dict[str, bool]:
    """What tests are of shows in how their names begin, and which API they go by in what they hold:
    `test_tools[chat]`, `tools (responses)`. `api`: the one of all of them.
    """
    features: dict[str, list[bool]] = defaultdict(list)
    for name, good in found.items():
        plain = name.removeprefix("test_")
        for feature in FEATURES:
            if re.match(rf"{feature}\b|{feature}_", plain) or (
                feature in APIS and (feature == api or feature in name.lower())
            ):
                features[feature].append(good)
    return {feature: all(results) for feature, results in features.items()}


def title(name: str, client: Mapping[str, object]) -> str:
    return f"{client.get('title', name)} {client['version']}"


def table(passed: Passed) -> str:
    head = "| Client | " + " | ".join(FEATURES) + " |\n"
    rows = (
        f"| {name} | " + " | ".join(_cell(features.get(each)) for each in FEATURES) + " |\n"
        for name, features in passed.items()
    )
    return head + "|---|" + "---|" * len(FEATURES) + "\n" + "".join(rows)


def _cell(good: bool | None) -> str:
    return {True: "yes", False: "no", None: "-"}[good]


def write(made: str) -> None:
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}{made}{END}{tail}", encoding="utf-8")


def stale(made: str) -> bool:
    """Whether a row of what was run is not on the page."""
    _, _, page = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    if {*made.splitlines()} <= {*page.partition(END)[0].splitlines()}:
        return False
    print(f"{PAGE.name} says something else: run `make client-test ARGS=--write`")
    return True


def _environment() -> dict[str, str]:
    """Without what would bring the project's own modules in."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _call(command: list[str], cwd: Path | None = None) -> None:
    ran = subprocess.run(command, cwd=cwd, check=False, capture_output=True, text=True)
    if ran.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{ran.stdout}{ran.stderr}")


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


if __name__ == "__main__":
    sys.exit(main())
