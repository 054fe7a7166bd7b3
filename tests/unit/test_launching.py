"""A user's modules may be called as Tandem's components, and run in the place of none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import tandem_router
from tandem import launching
from tandem.cli import processes
from tandem.cli.plan import COMPONENTS

SECONDS = 60
SCRIPTS = Path(sys.executable).parent
USERS = [*COMPONENTS, "local_executor", "trace_replay", "kits"]
EXECUTOR = """
    import sys
    from tandem.errors import StartError
    from tandem_executor import Executor, ExecutorConfig
    try:
        Executor({model!r}, ExecutorConfig(engine_options={{"no_such": "option"}})).shutdown()
    except StartError as error:
        print("StartError", error)
    """


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folder of a project that has a module by the name of each component."""
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
    command = launching.command("tandem.engine.reference", "--help")
    shown = run(project, *command, path=".")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "USER CODE" not in shown.stdout


@pytest.mark.promise("S6-520")
def test_a_module_of_the_users_folder_is_found_and_takes_the_place_of_none(project: Path) -> None:
    (project / "logging.py").write_text("print('USER CODE RAN')\n")
    (project / "my_program.py").write_text(
        "def main():\n    import logging\n    print('found', logging.INFO)\n"
    )
    shown = run(project, *launching.command("my_program"))
    assert (shown.returncode, shown.stdout) == (0, "found 20\n"), shown.stderr


@pytest.mark.promise("S6-520")
def test_a_programs_executor_runs_tandems_router_beside_the_programs_own(
    project: Path, model_path: Path
) -> None:
    code = textwrap.dedent(EXECUTOR.format(model=str(model_path)))
    code = "import router\n" + code + "assert 'tandem' not in (router.__file__ or '')\n"
    (project / "program.py").write_text(code)
    shown = run(project, sys.executable, "program.py")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("USER CODE RAN") == 1
    assert "no_such" in shown.stdout


@pytest.mark.promise("S6-520")
@pytest.mark.parametrize("component", ["prefill_worker", "decode_worker", "aggregated_worker"])
def test_a_hook_may_be_in_a_module_that_is_called_as_a_component(
    tmp_path: Path, model_path: Path, component: str
) -> None:
    (tmp_path / "router.py").write_text("class Hook:\n    def __call__(self, chunk): ...\n")
    module = launching.module_of(component)
    flags = ("--engine=sim", f"--model-path={model_path}", "--hook=router:Hook")
    command = launching.command(module, "--check-config", *flags)
    shown = run(tmp_path, *command, path=".")
    assert shown.returncode == 0, shown.stderr


def test_processes_that_multiprocessing_starts_find_what_their_parent_finds(project: Path) -> None:
    (project / "my_program.py").write_text(
        textwrap.dedent(
            """
            import multiprocessing

            def where(queue):
                import tandem_router
                queue.put(tandem_router.__file__)

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
    shown = run(project, *launching.command("my_program"), path=".")
    assert shown.stdout == f"{tandem_router.__file__}\n", shown.stderr


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
            from tandem import launching
            command = launching.command("sleeper", parent=os.getpid() * {bound:d})
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
