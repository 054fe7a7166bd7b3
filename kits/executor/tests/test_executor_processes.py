"""Engines of an executor's own that are given processes, as SGLang is: here sim is."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from judges import HELD_BACK, Judge, doing
from local import SECONDS, answer, last, request, running, sim

from tandem.errors import LoadError, StartError, UnsupportedError
from tandem_executor import (
    AsyncExecutor,
    Executor,
    LogitsPostProcessorConfig,
    OutputConfig,
    RequestType,
    ShutDownError,
)
from tandem_executor.local import stack

ROOT = Path(__file__).parents[3]
KINDS = pytest.mark.parametrize("disaggregated", [False, True], ids=["aggregated", "pair"])


@pytest.fixture(autouse=True)
def in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "_OF_OTHER_PROCESSES", {"sim"})


def children() -> list[psutil.Process]:
    found = []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if "tandem_executor.local.__main__" in each.cmdline():
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
        first = last(executor, type=RequestType.REQUEST_TYPE_CONTEXT_ONLY)
        assert first.error_code == "unsupported_parameter"
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


@pytest.mark.promise("S4-121", "S4-124", "S4-127", "S5-620")
@KINDS
def test_the_programs_classifiers_judge_there(model_path: Path, disaggregated: bool) -> None:
    output = OutputConfig(exclude_input_from_output=True, return_log_probs=True)
    judge = Judge()
    with running(model_path, disaggregated=disaggregated, worker_settings=HELD_BACK) as executor:
        expected = answer(executor)
        executor.register_external_classifier_hook(judge)
        with pytest.raises(LoadError, match="two classifiers named 'mine'"):
            executor.register_external_classifier_hook(Judge())
        result = last(executor, metadata={"team": "a"}, extra_fields={"policy": [None]}).result
        assert result.output_token_ids == [expected]
        assert result.external_scores == {"mine": {"risk": 0}}
        (ctx,) = judge.given
        assert ctx.extra_fields == {"policy": [None]}
        assert ctx.request_metadata["metadata"] == {"team": "a"}
        assert ctx.output_token_ids == expected
        assert len(ctx.output_logprobs) == len(expected)
        for do, replacement, scores in (
            ("block", "Not this.", {"block": True, "risk": 1}),
            ("raise", "No.", {"error": "exception"}),
            ("word", "No.", {"error": "overloaded"}),
            ("junk", "No.", {"error": "invalid_answer"}),
            ("hang", "No.", {"error": "timeout"}),
        ):
            result = last(executor, extra_fields={"do": do}, output_config=output).result
            assert (result.withheld, result.stop_reason) == (True, "mine")
            assert (result.replacement, result.output_token_ids) == (replacement, [[]])
            assert result.log_probs == [[]]
            assert result.external_scores == {"mine": scores}
        assert judge.cancelled.wait(SECONDS)
        judge.cancelled.clear()
        hanging = executor.enqueue_request(doing("hang"))
        wait_until(lambda: len(judge.given) == 7)
        executor.cancel_request(hanging)
        assert judge.cancelled.wait(SECONDS)


@pytest.mark.promise("S4-121", "S4-131", "S5-620")
async def test_that_of_an_asyncio_program_judges_on_the_programs_loop(model_path: Path) -> None:
    early, late = Judge("early"), Judge("late")
    executor = AsyncExecutor(model_path, sim(worker_settings=HELD_BACK))
    executor.register_external_classifier_hook(early)
    async with executor:
        executor.register_external_classifier_hook(late)
        request_id = executor.enqueue_request(request())
        (response,) = await executor.await_responses(request_id, SECONDS)
    assert set(response.result.external_scores or ()) == {"early", "late"}
    assert early.threads == late.threads == {threading.get_ident()}


@pytest.mark.promise("S4-121", "S5-620")
def test_one_that_dies_or_has_ended_registers_nothing(model_path: Path) -> None:
    with running(model_path, worker_settings=HELD_BACK) as executor:
        judge = Judge()
        executor.register_external_classifier_hook(judge)
        executor.enqueue_request(doing("hang"))
        wait_until(lambda: judge.given)
        children()[-1].kill()
        assert judge.cancelled.wait(SECONDS)
        with pytest.raises(ShutDownError):
            executor.register_external_classifier_hook(Judge("late"))
    taken = {"classifiers": {"entries": ["local_code:Blocker"]}}
    early = AsyncExecutor(model_path, sim(worker_settings=taken))
    early.register_external_classifier_hook(Judge("blocker"))
    with pytest.raises(LoadError, match="two classifiers named 'blocker'"):
        asyncio.run(early.__aenter__())


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
        "from tandem_executor.local import stack\n"
        "from tandem_executor import Executor\n"
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
