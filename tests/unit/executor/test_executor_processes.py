"""Engines of an executor's own that are given processes, as SGLang is: here sim is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from local import SECONDS, answer, last, request, running, sim

from local_executor import stack
from tandem.errors import StartError, UnsupportedError
from tandem.executor import Executor, LogitsPostProcessorConfig, OutputConfig, ShutDownError

ROOT = Path(__file__).parents[3]
KINDS = pytest.mark.parametrize("disaggregated", [False, True], ids=["aggregated", "pair"])


@pytest.fixture(autouse=True)
def in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "_OF_OTHER_PROCESSES", {"sim"})


def children() -> list[psutil.Process]:
    found = []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if "local_executor" in each.cmdline():
                found.append(each)
    return found


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@KINDS
def test_they_answer_and_end_with_the_executor(model_path: Path, disaggregated: bool) -> None:
    with running(model_path, disaggregated=disaggregated) as executor:
        assert len(children()) == (2 if disaggregated else 1)
        assert len(answer(executor)) == 8
        executor.enqueue_request(request(max_tokens=3000))
    assert children() == []


def test_the_operators_hook_runs_there(model_path: Path) -> None:
    settings = {"hook": "local_code:Cutter"}
    with running(model_path, worker_settings=settings) as executor:
        assert last(executor, streaming=True).result.withheld


@pytest.mark.promise("S2-071")
def test_functions_and_logits_are_refused_by_name(model_path: Path) -> None:
    with running(model_path) as executor:
        for fields, name in (
            ({"logits_post_processor": print}, "logits_post_processor"),
            (
                {"output_config": OutputConfig(return_generation_logits=True)},
                "return_generation_logits",
            ),
        ):
            assert name in last(executor, **fields).error_msg
    functions = LogitsPostProcessorConfig(processor_map={"mine": print})
    with pytest.raises(UnsupportedError, match="logits_post_processor_config"):
        Executor(model_path, sim(logits_post_processor_config=functions))


@KINDS
def test_one_that_is_killed_fails_what_it_had(model_path: Path, disaggregated: bool) -> None:
    options = {"step_ms": 20}
    with running(model_path, disaggregated=disaggregated, engine_options=options) as executor:
        request_id = executor.enqueue_request(request(max_tokens=3000))
        children()[-1].kill()
        (response,) = executor.await_responses(request_id, SECONDS)
        assert response.error_code in ("engine_error", "worker_lost", "kv_transfer_failed")
        wait_until(lambda: not children())
        with pytest.raises(ShutDownError, match="failed"):
            executor.enqueue_request(request())


def test_one_that_cannot_start_says_why(model_path: Path) -> None:
    with pytest.raises(StartError, match="surprise"):
        Executor(model_path, sim(disaggregated=True, engine_options={"surprise": 1}))
    assert children() == []


def test_they_end_with_a_program_that_is_killed(model_path: Path, tmp_path: Path) -> None:
    program = (
        "import time\n"
        "from local import sim\n"
        "from local_executor import stack\n"
        "from tandem.executor import Executor\n"
        "stack._OF_OTHER_PROCESSES = {'sim'}\n"
        f"executor = Executor({str(model_path)!r}, sim(disaggregated=True))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)},
    ) as running_program:  # fmt: skip
        assert running_program.stdout is not None
        assert running_program.stdout.readline() == "ready\n"
        made = children()
        assert len(made) == 2
        running_program.send_signal(signal.SIGKILL)
    assert psutil.wait_procs(made, timeout=SECONDS)[1] == []
