"""An executor with engines of its own, in the program's process."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import both as either
import local_code
import pytest
from local import PROMPT, SECONDS, VOCABULARY, answer, last, request, responses_of, running, sim
from one_case import one_case

from tandem.engine import factory
from tandem.engine.base import Engine, EngineSettings, Role
from tandem.errors import ConfigError, LoadError, StartError, UnsupportedError
from tandem_executor import (
    AsyncExecutor,
    Executor,
    ExecutorConfig,
    FinishReason,
    LogitsPostProcessorConfig,
    OutputConfig,
    SamplingConfig,
    ShutDownError,
)

ROOT = Path(__file__).parents[3]
KINDS = pytest.mark.parametrize("disaggregated", [False, True], ids=["aggregated", "pair"])


@pytest.fixture(scope="module", params=[False, True], ids=["aggregated", "pair"])
def executor(request: pytest.FixtureRequest, model_path: Path) -> Iterator[Executor]:
    with running(model_path, disaggregated=request.param) as made:
        yield made


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Role, Any]]:
    """The engines that are made from now on."""
    made: list[tuple[Role, Any]] = []
    create = factory.create

    def noted(name: factory.EngineName, role: Role, settings: EngineSettings) -> Engine:
        engine = create(name, role, settings)
        made.append((role, engine))
        return engine

    monkeypatch.setattr(factory, "create", noted)
    return made


# --- which of both -------------------------------------------------------------------------------


@pytest.mark.promise("S2-089")
@one_case(
    "where",
    [
        "",
        "router",
        "router:",
        "router:0",
        "router:70000",
        "a/b:7000",
        "http://router:7000",
        ":7000",
        "router:7000,",
        "router:7000,router:0",
        "dns:router:7000",
        "dns://router",
    ],
)
def test_what_is_neither_a_router_nor_a_models_folder_is_refused(where: str) -> None:
    with pytest.raises(ConfigError, match="neither a router's address"):
        Executor(where)


@pytest.mark.promise("S2-089")
@pytest.mark.parametrize(
    "where",
    [
        "router:7000",
        "127.0.0.1:1",
        "[::1]:7000",
        "a-b.c:7000",
        "127.0.0.1:1,127.0.0.1:2",
        "dns://localhost:1",
    ],
)
def test_a_host_and_a_port_are_a_router(where: str) -> None:
    with Executor(where) as executor:
        assert executor.can_enqueue_requests()


@pytest.mark.promise("S2-089")
def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        Executor(tmp_path, sim())


@pytest.mark.parametrize(
    "setting",
    [
        {"disaggregated": True},
        {"engine_options": {"step_ms": 0}},
        {"worker_settings": {"hook": "a:B"}},
        {"logits_post_processor_config": LogitsPostProcessorConfig()},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_what_only_engines_of_its_own_have_is_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=next(iter(setting))):
        Executor("router:7000", ExecutorConfig(**setting))


@pytest.mark.parametrize(
    "setting", [{"resume": True}, {"tls_cert": "a", "tls_key": "b", "tls_ca": "c"}], ids=str
)
def test_what_only_a_router_elsewhere_has_is_refused_by_name(
    setting: dict[str, Any], model_path: Path
) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        Executor(model_path, sim(**setting))


@pytest.mark.parametrize(
    ("changes", "error", "word"),
    [
        ({"engine_options": {"surprise": 1}}, ConfigError, "surprise"),
        ({"worker_settings": {"surprise": 1}}, ConfigError, "surprise"),
        ({"worker_settings": {"listen": "0.0.0.0:1"}}, ConfigError, "listen"),
        ({"worker_settings": {"hook": "no_such_module.Hook"}}, LoadError, "no_such_module"),
        ({"engine": "vllm"}, ConfigError, "engine"),
        (
            {
                "logits_post_processor_config": LogitsPostProcessorConfig(
                    processor_map={"No Name": print}
                )
            },
            LoadError,
            "No Name",
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["threads", "asyncio"])
async def test_engines_that_cannot_start_say_why_and_leave_nothing(
    kind: str,
    changes: dict[str, Any],
    error: type[StartError],
    word: str,
    model_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(error, match=word):
        async with either.running(kind, model_path, sim(**changes)):
            pass
    assert os.listdir(tmp_path) == []
    assert not any(each.name.startswith("tandem") for each in threading.enumerate())


# --- the same as elsewhere -----------------------------------------------------------------------


def test_one_engine_a_pair_and_the_asyncio_twin_give_the_same_tokens(
    executor: Executor, model_path: Path
) -> None:
    expected = answer(executor)
    assert len(expected) == 8

    async def ask(disaggregated: bool) -> list[int]:
        async with AsyncExecutor(model_path, sim(disaggregated=disaggregated)) as twin:
            (response,) = await twin.await_responses(twin.enqueue_request(request()), SECONDS)
            tokens: list[int] = response.result.output_token_ids[0]
            return tokens

    assert [asyncio.run(ask(disaggregated)) for disaggregated in (False, True)] == [expected] * 2


@pytest.mark.promise("S2-064")
def test_a_cancelled_request_gives_its_kv_back(
    model_path: Path, engines: list[tuple[Role, Any]]
) -> None:
    for disaggregated in (False, True):
        with running(model_path, disaggregated=disaggregated) as executor:
            request_id = executor.enqueue_request(request(max_tokens=3000, streaming=True))
            assert executor.await_responses(request_id, SECONDS)
            made = engines[-2:] if disaggregated else engines[-1:]
            roles = {Role.PREFILL, Role.DECODE} if disaggregated else {Role.AGGREGATED}
            assert {role for role, _ in made} == roles
            assert sum(engine.load().kv_tokens_used for _, engine in made) > 0
            executor.cancel_request(request_id)
            final = responses_of(executor, request_id)[-1]
            assert final.result.finish_reasons == [FinishReason.CANCELLED]
            wait_until(lambda made=made: not any(each.load().kv_tokens_used for _, each in made))


def wait_until(holds: Any) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@KINDS
def test_the_operators_hook_ends_an_output_and_sees_both_phases(
    model_path: Path, disaggregated: bool
) -> None:
    local_code.Cutter.phases.clear()
    settings = {"hook": "local_code:Cutter"}
    with running(model_path, disaggregated=disaggregated, worker_settings=settings) as executor:
        final = last(executor, streaming=True).result
    assert final.finish_reasons == [FinishReason.STOP_WORDS]
    assert (final.withheld, final.stop_reason) == (True, local_code.REASON)
    assert local_code.Cutter.phases == ["prefill", "decode", "decode", "decode"]


def test_hooks_may_have_processes_of_their_own(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    monkeypatch.setenv("PYTHONPATH", path)
    settings = {"hooks": {"workers": 1, "chain": ["local_code:Cutter"]}}
    with running(model_path, worker_settings=settings) as executor:
        assert last(executor).result.stop_reason == local_code.REASON


@KINDS
def test_the_operators_classifier_withholds_an_output(
    model_path: Path, disaggregated: bool
) -> None:
    local_code.Blocker.texts.clear()
    entries = [{"path": "local_code:Blocker"}]
    settings = {"classifiers": {"hold_back": "all", "entries": entries}}
    with running(model_path, disaggregated=disaggregated, worker_settings=settings) as executor:
        final = last(executor).result
    assert final.withheld
    assert final.output_token_ids == [[]]
    assert len(local_code.Blocker.texts) == 1


# --- functions of the program --------------------------------------------------------------------


def favour(token: int, seen: list[Any]) -> Any:
    """A callback that makes every token this one, and notes what it is given."""

    def edit(
        request_id: int,
        logits: Any,
        token_ids: list[list[int]],
        stream: int | None,
        client_id: int | None,
    ) -> None:
        seen.append((request_id, list(token_ids[0]), stream, client_id))
        logits[..., token] += 1000.0

    return edit


@pytest.mark.promise("S2-071", "S2-074")
def test_a_live_function_edits_its_request_alone_from_the_first_token_on(
    executor: Executor,
) -> None:
    free, seen = answer(executor), list[Any]()
    request_ids = executor.enqueue_requests(
        [request(logits_post_processor=favour(55, seen), client_id=9), request()]
    )
    first, second = executor.await_responses(request_ids, SECONDS)
    assert first[0].result.output_token_ids == [[55] * 8]
    assert second[0].result.output_token_ids == [free]
    histories = [[*PROMPT, *[55] * count] for count in range(8)]
    assert seen == [(request_ids[0], history, None, 9) for history in histories]


@pytest.mark.promise("S2-085")
@KINDS
def test_functions_of_four_arguments_run_as_the_api_has_them(
    model_path: Path, disaggregated: bool
) -> None:
    seen: list[Any] = []

    def four(request_id: int, logits: Any, token_ids: list[list[int]], stream: Any) -> Any:
        seen.append((request_id, list(token_ids[0]), stream))
        logits[..., 55] += 1000.0
        return logits

    def all_four(request_ids: list[int], logits: Any, token_ids: Any, stream: Any) -> None:
        for row in logits:
            row[..., 66] += 1000.0

    functions = LogitsPostProcessorConfig({"four": four}, all_four)
    with running(
        model_path, disaggregated=disaggregated, logits_post_processor_config=functions
    ) as executor:
        assert answer(executor, logits_post_processor_name="four") == [55] * 8
        assert answer(executor, logits_post_processor=four) == [55] * 8
        assert answer(executor, logits_post_processor_name="batched") == [66] * 8
    histories = [[*PROMPT, *[55] * count] for count in range(8)]
    assert seen == [(id, history, None) for id in (1, 2) for history in histories]


@pytest.mark.promise("S2-086")
@pytest.mark.parametrize("kind", ["threads", "asyncio"])
async def test_a_function_of_another_form_is_refused_by_its_name_where_it_is_registered(
    kind: str, model_path: Path
) -> None:
    def three(request_id: int, logits: Any, token_ids: Any) -> None: ...

    for functions, words in (
        (LogitsPostProcessorConfig({"mine": three}), r"processor_map\['mine'\]: .*'three' takes"),
        (LogitsPostProcessorConfig(None, three), "processor_batched: .*'three' takes"),
    ):
        with pytest.raises(LoadError, match=words):
            async with either.running(
                kind, model_path, sim(logits_post_processor_config=functions)
            ):
                pass


@pytest.mark.promise("S2-071")
def test_logits_that_a_live_function_returns_count(executor: Executor) -> None:
    def count(
        request_id: int, logits: Any, token_ids: list[list[int]], stream: Any, client_id: Any
    ) -> Any:
        other = logits * 0
        other[..., len(token_ids[0])] = 1.0
        return other

    assert answer(executor, logits_post_processor=count) == list(range(4, 12))


@pytest.mark.promise("S2-071", "S2-073")
@KINDS
def test_functions_of_the_configuration_are_called_by_name_and_together(
    model_path: Path, disaggregated: bool
) -> None:
    seen: list[Any] = []
    batches: list[int] = []

    def favour_all(
        request_ids: list[int], logits: list[Any], token_ids: Any, stream: Any, client_ids: Any
    ) -> None:
        batches.append(len(request_ids))
        for client_id, row in zip(client_ids, logits, strict=True):
            row[..., client_id] += 1000.0

    functions = LogitsPostProcessorConfig(
        processor_map={"favour": favour(77, seen)}, processor_batched=favour_all
    )
    with running(
        model_path, disaggregated=disaggregated, logits_post_processor_config=functions
    ) as executor:
        assert answer(executor, logits_post_processor_name="favour") == [77] * 8
        asked = [
            request(client_id=300 + n, logits_post_processor_name="batched") for n in range(12)
        ]
        lists = executor.await_responses(executor.enqueue_requests(asked), SECONDS)
    outputs = [responses[0].result.output_token_ids[0] for responses in lists]
    assert outputs == [[300 + n] * 8 for n in range(12)]
    assert max(batches) > 1
    assert len(seen) == 8


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"logits_post_processor": "favour"}, "is no callback"),
        ({"logits_post_processor": lambda a, b, c: None}, "must take"),
        ({"logits_post_processor": print, "logits_post_processor_name": "favour"}, "not both"),
        ({"logits_post_processor_name": "nobody_knows_it"}, "nobody_knows_it"),
        ({"logits_post_processor": lambda *given: given[1][..., :7]}, "raised ValueError"),
        ({"logits_post_processor": lambda *given: 1 / 0}, "raised ZeroDivisionError"),
    ],
    ids=["no function", "another form", "two", "unknown", "shape", "raises"],
)
def test_a_function_that_cannot_be_called_costs_its_request_alone(
    executor: Executor, fields: dict[str, Any], word: str
) -> None:
    assert word in last(executor, **fields).error_msg
    assert len(answer(executor)) == 8


@pytest.mark.promise("S2-071")
def test_a_live_function_is_refused_by_name_where_it_cannot_be_called() -> None:
    with Executor("127.0.0.1:1") as executor:
        response = last(executor, logits_post_processor=print)
    assert response.error_code == "unsupported_parameter"
    assert "logits_post_processor" in response.error_msg


def test_a_live_function_of_a_request_is_forgotten_with_it(executor: Executor) -> None:
    held = executor._backend._live._functions
    answer(executor, logits_post_processor=lambda *given: None)
    wait_until(lambda: not held)


# --- how it ends ---------------------------------------------------------------------------------


@KINDS
def test_shutdown_frees_all_that_was_made(
    model_path: Path, disaggregated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(model_path, disaggregated=disaggregated) as executor:
        answer(executor)  # what libraries make once for the process
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gc.collect()
    gc.disable()  # what is freed is freed by shutdown, and not by chance
    threads, files = set(threading.enumerate()), open_files()
    with running(model_path, disaggregated=disaggregated) as executor:
        assert len(answer(executor)) == 8
        (folder,) = tmp_path.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {path.suffix for path in folder.iterdir()} <= {".sock", ".key"}
        executor.enqueue_request(request(max_tokens=3000))
    assert list(tmp_path.iterdir()) == []
    try:
        wait_until(lambda: set(threading.enumerate()) <= threads)
        wait_until(lambda: open_files() <= files)
    finally:
        gc.enable()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
@KINDS
async def test_an_engine_that_dies_fails_what_it_had_and_lets_nothing_in(
    kind: str, model_path: Path, disaggregated: bool, engines: list[tuple[Role, Any]]
) -> None:
    config = sim(disaggregated=disaggregated, engine_options={"step_ms": 20})
    async with either.running(kind, model_path, config) as executor:
        request_ids = executor.enqueue_requests([request(max_tokens=3000)] * 3)
        loop = executor._serving._loop  # type: ignore[attr-defined]
        loop.call_soon_threadsafe(engines[-1][1]._crashed, RuntimeError("on purpose"))
        lists = await executor.await_responses(request_ids, SECONDS)
        with pytest.raises(ShutDownError, match="failed"):
            executor.enqueue_request(request())
    assert [response.error_code for (response,) in lists] == ["engine_error"] * 3


def test_two_executors_of_one_process_do_not_meet(model_path: Path) -> None:
    seen: list[Any] = []
    functions = LogitsPostProcessorConfig(processor_map={"favour": favour(77, seen)})
    with (
        running(model_path, logits_post_processor_config=functions) as one,
        running(model_path, disaggregated=True) as other,
    ):
        assert answer(one, logits_post_processor_name="favour") == [77] * 8
        assert "favour" in last(other, logits_post_processor_name="favour").error_msg
        one.shutdown()
        assert len(answer(other)) == 8


def test_a_program_that_ends_without_shutdown_leaves_nothing(
    model_path: Path, tmp_path: Path
) -> None:
    program = (
        "import sys\n"
        "from local import request, responses_of, sim\n"
        "from tandem_executor import Executor\n"
        f"executor = Executor({str(model_path)!r}, sim())\n"
        "print(len(responses_of(executor, executor.enqueue_request(request()))))\n"
        "executor.enqueue_request(request(max_tokens=3000))\n"
    )
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    assert list(tmp_path.iterdir()) == []


# --- statistics ----------------------------------------------------------------------------------


@pytest.mark.promise("S2-077")
@KINDS
def test_a_request_is_measured_and_a_hand_over_only_where_there_is_one(
    model_path: Path, disaggregated: bool
) -> None:
    asked = OutputConfig(return_perf_metrics=True)
    given = {"disaggregated": disaggregated, "request_stats_max_iterations": 100}
    with running(model_path, **given) as executor:
        metrics = last(executor, output_config=asked).result.request_perf_metrics
        assert metrics is not None
        timing = metrics.timing_metrics
        times = [timing.arrival_time, timing.first_scheduled_time, timing.first_token_time]
        times.append(timing.last_token_time)
        assert times == sorted(times)
        assert (timing.kv_cache_size is not None) == disaggregated
        assert (timing.kv_cache_transfer_start is not None) == disaggregated
        iterations = executor.get_latest_iteration_stats()
        assert sum(each.num_new_active_requests for each in iterations) == 1
        assert executor.get_latest_request_stats()[0].request_stats[0].id == 1


# --- logits --------------------------------------------------------------------------------------


def logits_of(executor: Executor, **fields: Any) -> Any:
    asked = OutputConfig(return_context_logits=True, return_generation_logits=True)
    return last(executor, **{"output_config": asked} | fields).result


@pytest.mark.promise("S2-093")
def test_the_models_logits_come_with_the_answer_or_with_each_token_of_it(
    executor: Executor,
) -> None:
    expected = answer(executor)
    result = logits_of(executor)
    assert result.context_logits.shape == (len(PROMPT), VOCABULARY)
    assert result.generation_logits.shape == (1, 8, VOCABULARY)
    assert [int(row.argmax()) for row in result.generation_logits[0]] == expected
    assert (result.context_logits[-1] == result.generation_logits[0, 0]).all()
    again = logits_of(executor)
    assert again == result, "logits are not compared"
    output = OutputConfig(return_context_logits=True, return_generation_logits=True)
    asked = request(streaming=True, output_config=output)
    streamed = responses_of(executor, executor.enqueue_request(asked))
    assert [each.result.output_token_ids for each in streamed] == [[[token]] for token in expected]
    for place, each in enumerate(streamed):
        assert each.result.generation_logits.shape == (1, 1, VOCABULARY)
        row = each.result.generation_logits[0, 0]
        assert (row == result.generation_logits[0, place]).all()
        assert (each.result.context_logits == result.context_logits).all()


def test_logits_are_those_before_anything_edits_them(executor: Executor) -> None:
    plain = logits_of(executor, max_tokens=1).generation_logits
    fields = {"logits_post_processor": favour(55, []), "embedding_bias": [1.0] * VOCABULARY}
    edited = logits_of(executor, max_tokens=1, **fields)
    assert edited.output_token_ids[0][-1] == 55
    assert (edited.generation_logits == plain).all()


def test_context_logits_are_those_of_each_shorter_prompt(executor: Executor) -> None:
    whole = logits_of(executor).context_logits
    for count in range(1, len(PROMPT) + 1):
        part = logits_of(executor, input_token_ids=PROMPT[:count], max_tokens=1)
        assert (part.generation_logits[0, 0] == whole[count - 1]).all()


def test_each_sequence_has_logits_of_its_own(executor: Executor) -> None:
    output = OutputConfig(return_generation_logits=True, exclude_input_from_output=True)
    sampling = SamplingConfig(num_return_sequences=3, top_p=1.0, seed=3)
    asked = request(output_config=output, sampling_config=sampling)
    found = responses_of(executor, executor.enqueue_request(asked))
    assert sorted(each.result.sequence_index for each in found) == [0, 1, 2]
    assert len({tuple(each.result.output_token_ids[0]) for each in found}) == 3
    for response in found:
        rows = response.result.generation_logits[0]
        assert [int(row.argmax()) for row in rows] == response.result.output_token_ids[0]
        assert response.result.context_logits is None


@pytest.mark.parametrize("name", ["return_context_logits", "return_generation_logits"])
def test_logits_are_refused_by_name_of_a_router_and_where_hooks_judge(
    model_path: Path, name: str
) -> None:
    asked = OutputConfig(**{name: True})
    with Executor("127.0.0.1:1") as elsewhere:
        response = last(elsewhere, output_config=asked)
        assert (response.error_code, name in response.error_msg) == ("unsupported_parameter", True)
    settings = {"hook": "local_code:Cutter"}
    with running(model_path, worker_settings=settings) as hooked:
        response = last(hooked, output_config=asked)
        assert (response.error_code, name in response.error_msg) == ("unsupported_parameter", True)
        assert "withhold" in response.error_msg


def test_rows_of_logits_are_bounded_until_they_are_read(model_path: Path) -> None:
    asked = request(output_config=OutputConfig(return_generation_logits=True))
    with running(model_path, max_logits_rows=12) as executor:
        first, second = executor.enqueue_requests([asked, asked])
        wait_until(lambda: executor.get_num_responses_ready(first))
        assert answer(executor, priority=1.0), "others are not held up"
        assert executor.get_num_responses_ready(second) == 0
        executor.await_responses(first)
        assert responses_of(executor, second)[-1].result.is_final
        output = OutputConfig(return_generation_logits=True)
        response = last(executor, max_tokens=13, output_config=output)
        assert "max_logits_rows" in response.error_msg
