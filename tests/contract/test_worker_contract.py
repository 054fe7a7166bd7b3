"""What a router can rely on, whatever engine computes: the same tests over real worker
processes.
"""

from __future__ import annotations

import itertools
import json
import socket
import time
from pathlib import Path
from typing import Any

import contract_hook
import pytest
import tokenizers
from worker_pair import FAILED, FINISHED, Pair, Told

from tandem.engine.model_files import eos_token_ids
from tandem.logits.spec import forced_token_sequence
from tandem.v1 import common_pb2, worker_pb2

pytestmark = pytest.mark.timeout(400)
TERMINATED = worker_pb2.LegClosed.OUTCOME_TERMINATED
CANCELLED = worker_pb2.LegClosed.OUTCOME_CANCELLED
IM_START = 3
"""A special token of the model."""
SILENT_SECONDS = 7.0
"""How long a peer keeps silent: longer than SGLang itself waits for one answer, which is 5 s."""
STEP_SECONDS = 2.5
"""No step takes longer, on a machine that has much else to do."""


def _forced(model_path: Path, *token_ids: int) -> common_pb2.LogitsSpec:
    entry = forced_token_sequence(token_ids, min(eos_token_ids(model_path)))
    processor = common_pb2.LogitsProcessor(name=entry.name, args_json=json.dumps(entry.args))
    return common_pb2.LogitsSpec(processors=[processor])


async def test_the_two_workers_fit_together(pair: Pair) -> None:
    request = worker_pb2.DescribeWorkerRequest()
    prefill, decode = [await stub.Describe(request) for stub in pair.stubs]
    assert prefill.fingerprint == decode.fingerprint
    assert prefill.fingerprint.tokenizer_sha256
    assert (prefill.phase, decode.phase) == (common_pb2.PHASE_PREFILL, common_pb2.PHASE_DECODE)
    assert prefill.kv_endpoint
    assert prefill.has_hook
    assert prefill.limits == decode.limits
    assert prefill.instance != decode.instance


async def test_a_sequence_runs_through_both_phases(pair: Pair) -> None:
    sequence = await pair.run(task={"want_report": True})
    (verdict,) = pair.prefill.told.of(sequence.number, "verdict")
    assert not verdict.terminate
    (started,) = pair.decode.told.of(sequence.number, "started")
    assert started.kv_bytes > 0
    assert started.kv_seconds > 0
    (finish,) = sequence.finishes
    assert finish.reason == common_pb2.FINISH_REASON_LENGTH
    assert finish.completion_tokens == 12
    assert sequence.text
    prefill, decode = sequence.reports
    assert (prefill.phase, decode.phase) == (common_pb2.PHASE_PREFILL, common_pb2.PHASE_DECODE)
    assert prefill.emitted == 1
    assert decode.emitted >= 1
    assert decode.kv_bytes == started.kv_bytes
    assert decode.kv_transport


async def test_token_ids_are_the_text_and_logprobs_are_theirs(pair: Pair, model_path: Path) -> None:
    sequence = await pair.run(task={"want_token_ids": True}, logprobs=2)
    tokenizer = tokenizers.Tokenizer.from_file(str(model_path / "tokenizer.json"))
    assert len(sequence.token_ids) == 12
    assert tokenizer.decode(sequence.token_ids, skip_special_tokens=True) == sequence.text
    entries = sequence.logprobs
    assert [token for entry in entries for token in entry.token_id] == sequence.token_ids
    assert all(value <= 0 for entry in entries for value in entry.logprob)
    assert all(len(e.top_token_id) == 2 * len(e.token_id) for e in entries)


@pytest.mark.promise("S0-037")
async def test_a_stop_string_is_cut_and_ends_both_legs(pair: Pair) -> None:
    text = (await pair.run()).text
    stop = text[len(text) // 2 :][:3]
    sequence = await pair.run(stop=[stop], max_tokens=200)
    (finish,) = sequence.finishes
    assert sequence.text == text[: text.index(stop)]
    assert (finish.reason, finish.stop_reason) == (common_pb2.FINISH_REASON_STOP, stop)


@pytest.mark.promise("S1-043", "S1-051")
async def test_a_forced_sequence_is_exact_from_its_first_token(
    pair: Pair, model_path: Path
) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(model_path / "tokenizer.json"))
    ids = tokenizer.encode("Hello world!", add_special_tokens=False).ids
    spec = _forced(model_path, *ids)
    sequence = await pair.run(task={"logits": spec}, ignore_eos=False, max_tokens=40)
    assert sequence.text == "Hello world!"
    assert sequence.finishes[0].completion_tokens == len(ids) + 1


@pytest.mark.promise("S1-300")
async def test_special_tokens_are_text_for_hooks_and_stop_strings_where_they_are_named(
    pair: Pair, model_path: Path
) -> None:
    """Prefill sampled the first."""
    tokenizer = tokenizers.Tokenizer.from_file(str(model_path / "tokenizer.json"))
    (letter,) = tokenizer.encode("a", add_special_tokens=False).ids
    asked: dict[str, Any] = {
        "behaviour": contract_hook.UPPER,
        "task": {"logits": _forced(model_path, IM_START, letter, IM_START, letter)},
        "ignore_eos": False,
    }
    shown = {"shown_special_tokens": [IM_START]}
    assert (await pair.run(**asked)).text == "AA"
    sequence = await pair.run(**asked | {"task": asked["task"] | shown})
    assert sequence.text == "<|IM_START|>A<|IM_START|>A"
    stopped = await pair.run(**asked | {"task": asked["task"] | shown}, stop=["a<|im"])
    assert stopped.text == "<|IM_START|>"
    assert stopped.finishes[0].stop_reason == "a<|im"
    assert (await pair.run(**asked, stop=["a<|im"])).text == "AA"


@pytest.mark.promise("S0-006", "S0-008")
async def test_a_hook_rewrites_what_the_client_reads(pair: Pair) -> None:
    text = (await pair.run()).text
    assert (await pair.run(behaviour=contract_hook.UPPER)).text == text.upper() != text


@pytest.mark.promise("S0-010", "S0-038")
async def test_suppressed_chunks_show_in_no_channel_and_count(pair: Pair) -> None:
    sequence = await pair.run(
        behaviour=contract_hook.SUPPRESS, task={"want_token_ids": True}, logprobs=1
    )
    assert (sequence.text, sequence.token_ids, sequence.logprobs) == ("", [], [])
    assert sequence.finishes[0].completion_tokens == 12


@pytest.mark.promise("S0-013", "S0-014", "S0-036")
async def test_terminate_ends_the_sequence_with_its_reason(pair: Pair) -> None:
    sequence = await pair.start(behaviour=contract_hook.TERMINATE_SECOND, max_tokens=400)
    prefill, decode = await pair.finished(sequence)
    assert (prefill.outcome, decode.outcome) == (FINISHED, TERMINATED)
    assert decode.reason == sequence.finishes[0].stop_reason == "guard"
    assert sequence.finishes[0].completion_tokens < 400
    await pair.idle()  # the KV of both workers is free


@pytest.mark.promise("S0-019")
async def test_a_raising_hook_fails_its_leg_and_no_other(pair: Pair) -> None:
    bad = await pair.start(behaviour=contract_hook.RAISE_SECOND, max_tokens=400)
    good = await pair.start()
    _, failed = await pair.finished(bad)
    assert (failed.outcome, failed.error.code) == (FAILED, "hook_failed")
    assert not failed.retryable
    assert bad.finishes == []
    _, finished = await pair.finished(good)
    assert finished.outcome == FINISHED


@pytest.mark.promise("S0-034", "S0-035")
async def test_prefills_verdicts_travel_to_the_router(pair: Pair) -> None:
    sequence = await pair.start(behaviour=contract_hook.PREFILL_TERMINATES)
    await pair.finished(sequence)
    (verdict,) = pair.prefill.told.of(sequence.number, "verdict")
    assert (verdict.terminate, verdict.reason) == (True, "guard")
    assert sequence.text
    failing = await pair.start(behaviour=contract_hook.PREFILL_RAISES, hold=True)
    closed = await pair.prefill.closed(failing.number)
    assert (closed.outcome, closed.error.code) == (FAILED, "hook_failed")
    await pair.cancel(failing)
    assert (await pair.decode.closed(failing.number)).outcome == CANCELLED
    assert failing.text == ""


async def test_held_output_waits_for_the_release(pair: Pair) -> None:
    expected = (await pair.run()).text
    sequence = await pair.start(hold=True)
    await pair.prefill.closed(sequence.number)
    other = await pair.run()
    assert other.text == expected
    assert sequence.text == ""
    assert pair.decode.told.of(sequence.number, "closed") == []
    await pair.decode.send(release=[sequence.number])
    assert (await pair.decode.closed(sequence.number)).outcome == FINISHED
    assert sequence.text == expected


async def test_a_running_sequence_can_be_cancelled(pair: Pair) -> None:
    sequence = await pair.start(max_tokens=500)
    await pair.decode.until(lambda told: sequence.text)
    await pair.cancel(sequence)
    assert (await pair.decode.closed(sequence.number)).outcome == CANCELLED
    assert sequence.finishes == []


@pytest.mark.parametrize("phase", ["prefill", "decode"])
async def test_a_leg_without_its_partner_can_be_cancelled(pair: Pair, phase: str) -> None:
    sequence = await pair.start(phases=[phase])
    await pair.cancel(sequence)
    stream = pair.prefill if phase == "prefill" else pair.decode
    closed = await stream.closed(sequence.number)
    assert closed.outcome == CANCELLED
    assert (await pair.run()).text


@pytest.mark.parametrize("phase", ["prefill", "decode"])
async def test_a_leg_without_its_partner_ends_by_its_deadline(pair: Pair, phase: str) -> None:
    sequence = await pair.start(phases=[phase], timeout_ms=700)
    stream = pair.prefill if phase == "prefill" else pair.decode
    closed = await stream.closed(sequence.number)
    assert closed.outcome == FAILED
    assert closed.error.code in ("deadline_exceeded", "kv_transfer_failed")


async def test_a_router_that_goes_away_leaves_nothing_behind(pair: Pair) -> None:
    for _ in range(3):
        await pair.start(max_tokens=500)
    await pair.decode.until(lambda told: told.columns)
    pair.prefill.call.cancel()
    pair.decode.call.cancel()
    await pair.idle()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"task": {"model": "other"}}, "model_not_found"),
        ({"task": {"prompt_text": ""}}, "invalid_request"),
        ({"task": {"prompt_text": "", "prompt_token_ids": [2**31]}}, "invalid_request"),
        ({"max_tokens": 10**6}, "context_length_exceeded"),
        ({"temperature": -1.0}, "invalid_request"),
        ({"top_p": 0.0}, "invalid_request"),
        ({"logit_bias": {2**31: 1.0}}, "invalid_request"),
    ],
)
async def test_both_phases_refuse_a_bad_task_alike(
    pair: Pair, fields: dict[str, Any], code: str
) -> None:
    for closed in await pair.finished(await pair.start(**fields)):
        assert (closed.outcome, closed.error.code) == (FAILED, code)
        assert not closed.retryable


@pytest.mark.promise("S5-301")
async def test_a_prefill_that_never_answers_keeps_nobody_waiting_but_its_own(pair: Pair) -> None:
    answering = pair.kv_peer
    running = await pair.start(max_tokens=3000)
    await pair.decode.until(lambda told: told.columns)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pair.kv_peer = f"127.0.0.1:{silent.getsockname()[1]}"
        waiting = await pair.start(phases=("decode",))
        pair.kv_peer = answering
        began = time.monotonic()
        steps = [began]
        count = len(pair.decode.told.columns)

        def stepped(told: Told) -> bool:
            """Whether the wait is long enough, or `running` has ended, as it soon does on a GPU."""
            nonlocal count
            if len(told.columns) > count:
                count = len(told.columns)
                steps.append(time.monotonic())
            over = steps[-1] - began > SILENT_SECONDS
            return over or bool(told.of(running.number, "closed"))

        await pair.decode.until(stepped)
        while steps[-1] - began <= SILENT_SECONDS:
            running = await pair.start(max_tokens=3000)
            await pair.decode.until(stepped)
    assert max(after - before for before, after in itertools.pairwise(steps)) < STEP_SECONDS
    await pair.cancel(waiting)
    closed = await pair.decode.closed(waiting.number)
    assert closed.outcome == CANCELLED or closed.error.code == "kv_transfer_failed"
    await pair.cancel(running)
    await pair.finished(running)
