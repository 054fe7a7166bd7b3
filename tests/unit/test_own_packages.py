"""A user's modules that are called as Tandem's packages are never run in place of these."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tandem import own_packages
from tandem.cli import processes
from tandem.errors import LoadError
from tandem.usercode.loader import load_object

SECONDS = 60
SCRIPTS = Path(sys.executable).parent
USERS = [name for name in own_packages.PACKAGES if name != "tandem"]
EXECUTOR = """
    import sys
    from tandem.errors import StartError
    from tandem.executor import Executor, ExecutorConfig
    try:
        Executor({model!r}, ExecutorConfig(engine_options={{"no_such": "option"}})).shutdown()
    except StartError as error:
        print("StartError", error)
    """


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folder of a project that has a module by each of the names."""
    for number, name in enumerate(USERS):
        file = tmp_path / (f"{name}/__init__.py" if number % 2 else f"{name}.py")
        file.parent.mkdir(exist_ok=True)
        file.write_text("print('USER CODE RAN')\n")
    return tmp_path


def run(project: Path, *command: str, path: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=project,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.promise("S6-520")
@pytest.mark.parametrize(
    "command",
    [
        ("tandem", "config", "router"),
        ("tandem-frontend", "--print-config"),
        ("tandem-aggregated-worker", "--print-config"),
    ],
)
def test_a_component_is_not_the_module_of_its_name_in_the_users_folder(
    project: Path, command: tuple[str, ...]
) -> None:
    """Nor with that folder on PYTHONPATH, as the chart has the operator's code for workers."""
    shown = run(project, str(SCRIPTS / command[0]), *command[1:], path=".")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "metrics_listen:" in shown.stdout
    assert "USER CODE" not in shown.stdout


@pytest.mark.promise("S6-520")
def test_a_package_called_tandem_runs_no_process_of_tandem(project: Path) -> None:
    (project / "tandem").mkdir()
    (project / "tandem" / "__init__.py").write_text("print('USER CODE RAN')\n")
    command = own_packages.command("tandem.engine.reference", "--help")
    shown = run(project, *command, path=".")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "USER CODE" not in shown.stdout


@pytest.mark.promise("S6-520")
def test_a_module_of_the_users_folder_is_found_and_takes_the_place_of_none(project: Path) -> None:
    (project / "logging.py").write_text("print('USER CODE RAN')\n")
    (project / "my_program.py").write_text(
        "def main():\n    import logging\n    print('found', logging.INFO)\n"
    )
    shown = run(project, *own_packages.command("my_program"))
    assert (shown.returncode, shown.stdout) == (0, "found 20\n"), shown.stderr


@pytest.mark.promise("S6-520")
@pytest.mark.parametrize("imported", [False, True])
def test_a_programs_executor_runs_tandems_router_or_says_why_it_cannot(
    project: Path, model_path: Path, imported: bool
) -> None:
    """A program that has imported a `router` of its own goes on having that one."""
    code = textwrap.dedent(EXECUTOR.format(model=str(model_path)))
    if imported:
        code = "import router\n" + code + "assert 'tandem' not in (router.__file__ or '')\n"
    (project / "program.py").write_text(code)
    shown = run(project, sys.executable, "program.py")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("USER CODE RAN") == imported
    said = "this program has a module 'router' of its own" if imported else "no_such"
    assert said in shown.stdout


def test_processes_that_multiprocessing_starts_find_what_their_parent_finds(project: Path) -> None:
    (project / "my_program.py").write_text(
        textwrap.dedent(
            """
            import multiprocessing

            def where(queue):
                import router
                queue.put(router.__file__)

            def main():
                context = multiprocessing.get_context("spawn")
                queue = context.Queue()
                process = context.Process(target=where, args=(queue,))
                process.start()
                print(queue.get(timeout=30))
                process.join()
            """
        )
    )
    shown = run(project, *own_packages.command("my_program"), path=".")
    assert shown.stdout == f"{own_packages.ROOT / 'router' / '__init__.py'}\n", shown.stderr


@pytest.mark.parametrize("bound", [False, True])
def test_a_process_that_is_bound_to_its_parent_ends_with_it_however_that_ends(
    tmp_path: Path, bound: bool
) -> None:
    (tmp_path / "sleeper.py").write_text(
        "import time\ndef main():\n    print('up', flush=True)\n    time.sleep(60)\n"
    )
    (tmp_path / "parent.py").write_text(
        textwrap.dedent(
            f"""
            import os, subprocess, sys, time
            from tandem import own_packages
            command = own_packages.command("sleeper", parent=os.getpid() * {bound:d})
            child = subprocess.Popen(command, stdout=subprocess.PIPE)
            assert child.stdout.readline() == b"up\\n"
            print(child.pid, flush=True)
            time.sleep(60)
            """
        )
    )
    parent = subprocess.Popen(
        [sys.executable, "parent.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = processes.identify(int(parent.stdout.readline()))
    assert child is not None
    parent.kill()
    parent.wait(SECONDS)
    parent.stdout.close()
    try:
        assert processes.wait_gone([child], 0.2 if not bound else SECONDS) is bound
    finally:
        processes.send(child, signal.SIGKILL)


@pytest.mark.parametrize("path", ["router:NoSecrets", "frontend.guard:NoSecrets"])
def test_a_hook_whose_module_has_a_name_of_tandems_is_refused_with_the_reason(path: str) -> None:
    with pytest.raises(LoadError, match="is a package of Tandem: a module of yours needs another"):
        load_object(path)


def test_the_packages_are_those_that_are_installed() -> None:
    found = {each.parent.name for each in own_packages.ROOT.glob("*/__init__.py")}
    assert set(own_packages.PACKAGES) == found - {"monitoring"}
