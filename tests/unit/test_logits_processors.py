"""The logits layer on both kinds of row an engine gives it."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import numpy
import pytest
import torch

from tandem.errors import ProcessorError, StartError
from tandem.logits import (
    BaseLogitsProcessor,
    HistoryUnavailableError,
    Model,
    Need,
    Row,
    TokenHistory,
)
from tandem.logits.builtin import HELLO_WORLD, hello_world
from tandem.logits.registry import Registry
from tandem.logits.rows import apply_rows
from tandem.logits.spec import (
    LogitsProcessorEntry,
    LogitsProcessorSpec,
    PythonProcessorSpec,
    for_role,
    forced_token_sequence,
)
from tandem.logits.state import RequestLogits

VOCABULARY = 50
END = 2
MODEL = Model(vocabulary=VOCABULARY, eos_token_ids=[END])
MakeRows = Callable[[int], Any]


def numpy_rows(count: int) -> Any:
    return numpy.random.default_rng(7).normal(size=(count, VOCABULARY)).astype(numpy.float32)


def torch_rows(count: int) -> Any:
    return torch.from_numpy(numpy_rows(count))


@pytest.fixture(params=[numpy_rows, torch_rows], ids=["numpy", "torch"])
def rows(request: pytest.FixtureRequest) -> MakeRows:
    make: MakeRows = request.param
    return make


def greedy(row: Any) -> int:
    return int(row.argmax())


def forced(*token_ids: int) -> LogitsProcessorSpec:
    return LogitsProcessorSpec((forced_token_sequence(token_ids, END),))


def favoured(token_id: int) -> LogitsProcessorSpec:
    """One later token for each that was generated; row by row."""

    class Favours(BaseLogitsProcessor):
        def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
            logits[token_id + input_ids.position] += 100.0

    return LogitsProcessorSpec((PythonProcessorSpec(Favours),))


def generate(rows: MakeRows, state: RequestLogits, prompt: list[int], steps: int) -> list[int]:
    """Greedy generation with a new row each step."""
    generated: list[int] = []
    for row in rows(steps):
        assert state.apply(TokenHistory(prompt, generated), row) is None
        generated.append(greedy(row))
    return generated


class Raises:
    needs: ClassVar[frozenset[Need]] = frozenset({Need.POSITION})

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        raise KeyError("the prompt was: secret")


class LeavesNan(Raises):
    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        logits[3] = math.nan


class ForbidsAll(Raises):
    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        logits[:] = -math.inf


class OutOfRange(Raises):
    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        logits[len(logits)] = 0.0


class ReturnsScores(Raises):
    def __call__(self, input_ids: TokenHistory, logits: Row) -> Any:
        return logits[:] * 2


class Counts(Raises):
    """Keeps state of its own, as a user's processor may."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        logits[self.calls] = 100.0
        self.calls += 1


@pytest.mark.promise("S1-039")
def test_a_processor_changes_the_row_in_place(rows: MakeRows) -> None:
    row = rows(1)[0]
    state = RequestLogits.create(Registry.builtin(), forced(9), MODEL)
    assert state.apply(TokenHistory([1], []), row) is None
    assert row[9] == 0.0
    assert float(row[:9].max()) == -math.inf
    assert float(row[10:].max()) == -math.inf


@pytest.mark.promise("S1-043")
def test_a_forced_sequence_is_followed_by_the_end_of_sequence_for_ever(rows: MakeRows) -> None:
    state = RequestLogits.create(Registry.builtin(), forced(11, 12, 13), MODEL)
    assert generate(rows, state, [4, 5], 6) == [11, 12, 13, END, END, END]


@pytest.mark.promise("S1-051", "S1-045")
def test_two_processes_that_share_only_the_spec_force_one_exact_sequence(rows: MakeRows) -> None:
    prefill = RequestLogits.create(Registry.builtin(), forced(11, 12, 13), MODEL)
    decode = RequestLogits.create(Registry.builtin(), forced(11, 12, 13), MODEL)
    first, *others = rows(4)
    assert prefill.apply(TokenHistory.without_tokens(prompt_length=3, position=0), first) is None
    generated = [greedy(first)]
    for row in others:
        position = TokenHistory.without_tokens(prompt_length=3, position=len(generated))
        assert decode.apply(position, row) is None
        generated.append(greedy(row))
    assert generated == [11, 12, 13, END]


@pytest.mark.promise("S1-052", "S3-097")
def test_a_forced_sequence_resumes_at_its_position_in_a_fresh_processor(rows: MakeRows) -> None:
    before = generate(
        rows, RequestLogits.create(Registry.builtin(), forced(11, 12, 13), MODEL), [4], 2
    )
    resumed = RequestLogits.create(Registry.builtin(), forced(11, 12, 13), MODEL)
    generated = list(before)
    for row in rows(2):
        assert resumed.apply(TokenHistory([4], generated), row) is None
        generated.append(greedy(row))
    assert generated == [11, 12, 13, END]


@pytest.mark.promise("S3-096")
def test_the_same_spec_gives_the_same_tokens_on_numpy_and_torch() -> None:
    answers = [
        generate(make, RequestLogits.create(Registry.builtin(), forced(8, 30, 8), MODEL), [1], 5)
        for make in (numpy_rows, torch_rows)
    ]
    assert answers[0] == answers[1] == [8, 30, 8, END, END]


@pytest.mark.promise("S3-087", "S3-089", "S1-050")
def test_each_row_of_a_batch_sees_its_own_processors_and_others_stay_bit_identical(
    rows: MakeRows,
) -> None:
    """In one call for all rows, also where two of them are of a class that edits rows together."""
    batch, untouched = rows(6), rows(6)
    specs = {0: forced(20, 21), 2: forced(22, 23), 4: favoured(30), 5: favoured(31)}
    states = [RequestLogits.create(Registry.builtin(), specs.get(row), MODEL) for row in range(6)]
    past: dict[int, list[int]] = {0: [20], 4: [1, 1]}
    histories = [TokenHistory([1], past.get(row, [])) for row in range(6)]
    assert apply_rows(states, histories, batch) == [None] * 6
    assert {row: greedy(batch[row]) for row in specs} == {0: 21, 2: 22, 4: 32, 5: 31}
    for row in (1, 3):
        assert bytes(memoryview(numpy.asarray(batch[row]))) == bytes(
            memoryview(numpy.asarray(untouched[row]))
        )


@pytest.mark.promise("S1-042", "S3-091", "S3-095")
def test_two_sequences_never_share_a_processor(rows: MakeRows) -> None:
    registry = Registry()
    registry.register("counts", Counts)
    spec = LogitsProcessorSpec((LogitsProcessorEntry("counts"),))
    first, second = (RequestLogits.create(registry, spec, MODEL) for _ in range(2))
    batch = rows(3)
    assert first.apply(TokenHistory([1], []), batch[0]) is None
    assert first.apply(TokenHistory([1], [0]), batch[1]) is None
    assert second.apply(TokenHistory([1], []), batch[2]) is None
    assert [greedy(row) for row in batch] == [0, 1, 0]


@pytest.mark.promise("S3-088")
def test_a_processor_is_called_once_for_each_token(rows: MakeRows) -> None:
    counts = Counts()
    assert generate(rows, RequestLogits([("counts", lambda: counts)]), [1], 5) == [0, 1, 2, 3, 4]
    assert counts.calls == 5


@pytest.mark.promise("S3-090", "S3-093")
def test_the_state_of_ten_thousand_sequences_is_gone_with_them(rows: MakeRows) -> None:
    alive: weakref.WeakSet[Counts] = weakref.WeakSet()

    def make() -> Counts:
        counts = Counts()
        alive.add(counts)
        return counts

    registry, row = Registry(), rows(1)[0]
    spec = LogitsProcessorSpec((PythonProcessorSpec(make),))
    states = []
    for _ in range(10_000):
        state = RequestLogits.create(registry, spec, MODEL)
        assert state.apply(TokenHistory([1], []), row) is None
        states.append(state)
    assert len(alive) == 10_000
    del state
    states.clear()
    gc.collect()
    assert len(alive) == 0


@pytest.mark.parametrize(
    ("cls", "says"),
    [
        (Raises, "raised KeyError"),
        (LeavesNan, "not finite"),
        (ForbidsAll, "not finite"),
        (OutOfRange, "raised IndexError"),
        (ReturnsScores, "in place"),
    ],
)
def test_a_processor_that_fails_becomes_an_error_and_leaves_a_row_that_can_be_sampled(
    rows: MakeRows, cls: type[Raises], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    batch, untouched = rows(2), rows(2)
    state = RequestLogits([("guard", cls)])
    error = state.apply(TokenHistory([1], []), batch[0])
    assert isinstance(error, ProcessorError)
    assert "guard" in error.message
    assert says in error.message
    assert "secret" not in error.message + caplog.text
    assert [float(value) for value in batch[0]] == [0.0] * VOCABULARY
    assert bool((batch[1] == untouched[1]).all())
    assert state.apply(TokenHistory([1], [5]), batch[0]) is error


def test_processors_after_a_failed_one_are_not_called(rows: MakeRows) -> None:
    counts = Counts()
    state = RequestLogits([("raises", Raises), ("counts", lambda: counts)])
    assert state.apply(TokenHistory([1], []), rows(1)[0]) is not None
    assert counts.calls == 0


def test_processors_apply_in_the_order_of_their_spec(rows: MakeRows) -> None:
    spec = LogitsProcessorSpec((*forced(11).entries, *forced(12).entries))
    state = RequestLogits.create(Registry.builtin(), spec, MODEL)
    assert generate(rows, state, [1], 1) == [12]


def test_a_history_reads_like_prompt_and_generated_tokens_joined() -> None:
    history = TokenHistory([1, 2, 3], [4, 5])
    assert (list(history), len(history), history.position) == ([1, 2, 3, 4, 5], 5, 2)
    assert (history[0], history[-1], history[1:4], history[-2:]) == (1, 5, [2, 3, 4], [4, 5])
    assert (history.index(4), 9 in history, history.prompt_length) == (3, False, 3)
    with pytest.raises(IndexError):
        history[5]


def test_a_history_does_not_change_when_the_engine_appends_to_its_list() -> None:
    generated = [4]
    history = TokenHistory([1], generated)
    generated.append(5)
    assert list(history) == [1, 4]


def test_a_history_without_tokens_knows_its_position_and_says_why_it_has_no_more() -> None:
    history = TokenHistory.without_tokens(prompt_length=3, position=2)
    assert (history.position, history.prompt_length, len(history)) == (2, 3, 5)
    assert not history.has_tokens
    for read in (lambda: history[-1], lambda: history[1:], lambda: list(history)):
        with pytest.raises(HistoryUnavailableError, match=r"Need\.HISTORY"):
            read()


@pytest.mark.promise("S1-040")
def test_prefill_applies_every_spec_but_a_generation_only_one() -> None:
    spec = forced(11)
    late = LogitsProcessorSpec(spec.entries, generation_only=True)
    assert [for_role(spec, role) for role in ("prefill", "decode", "aggregated")] == [spec] * 3
    assert for_role(late, "prefill") is None
    assert for_role(late, "decode") == for_role(late, "aggregated") == late


@pytest.mark.promise("S1-041")
def test_no_spec_is_nothing_to_apply() -> None:
    assert for_role(None, "decode") is None
    assert LogitsProcessorSpec.from_proto(LogitsProcessorSpec(()).to_proto()) is None


@pytest.mark.promise("S1-047")
def test_the_test_switch_tokenises_its_text_once() -> None:
    asked: list[str] = []

    def encode(text: str) -> list[int]:
        asked.append(text)
        return [7, 8]

    entry = hello_world(encode, {40, END})
    states = [
        RequestLogits.create(Registry.builtin(), LogitsProcessorSpec((entry,)), MODEL)
        for _ in range(3)
    ]
    assert [generate(numpy_rows, state, [1], 3) for state in states] == [[7, 8, END]] * 3
    assert asked == [HELLO_WORLD]


@pytest.mark.promise("S1-053")
def test_the_test_switch_is_refused_for_a_tokenizer_without_an_end_token() -> None:
    with pytest.raises(StartError, match="end-of-sequence"):
        hello_world(lambda text: [7], frozenset())
