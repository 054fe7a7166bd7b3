"""Whatever a processor does wrong ends its own row and no other, alone or in a batched call."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy
import pytest
from logits_bench import Library, plain, rows

from tandem.errors import ContradictionError, InvalidRequestError, ProcessorError
from tandem.logits import BaseLogitsProcessor, Model, Need, Row, TokenHistory, state
from tandem.logits.registry import Registry
from tandem.logits.rows import apply_rows
from tandem.logits.spec import LogitsProcessorEntry, LogitsProcessorSpec, PythonProcessorSpec
from tandem.logits.state import RequestLogits

PAST = TokenHistory([1, 2], [3])
MODEL = Model(vocabulary=2048, eos_token_ids=[1])


class Plain(BaseLogitsProcessor):
    """Raises the logit of one token; a token below 0 makes it raise an exception."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.POSITION})
    keeps_state: ClassVar[bool] = False

    def __init__(self, token_id: int) -> None:
        self.token_id = token_id

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        if self.token_id < 0:
            logits[5] = math.nan
            raise KeyError("secret")
        logits[self.token_id] += 100.0


class Batched(Plain):
    """The same with a batched form that edits rows before it raises."""

    calls: ClassVar[list[int]] = []

    @classmethod
    def apply_batch(
        cls, processors: Sequence[Any], histories: Sequence[TokenHistory], logits: Row
    ) -> None:
        cls.calls.append(len(processors))
        for row, processor, history in zip(logits, processors, histories, strict=True):  # type: ignore[call-overload]
            processor(history, row)


class Trusted(Batched):
    """Says that its batched form never raises."""

    batch_is_total: ClassVar[bool] = True
    calls: ClassVar[list[int]] = []


class AnswersInBatch(Batched):
    @classmethod
    def apply_batch(cls, processors: Any, histories: Any, logits: Any) -> Any:
        return logits + 1


def _compute(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class Slow(Plain):
    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        _compute(0.05)


def states_of(cls: type[Plain], *tokens: int, seconds: float = 1.0) -> list[RequestLogits]:
    return [
        RequestLogits([("mine", lambda token=token: cls(token))], seconds=seconds)
        for token in tokens
    ]


def messages(errors: list[ProcessorError | None]) -> list[str | None]:
    return [None if error is None else error.message for error in errors]


@pytest.fixture(autouse=True)
def _forget_calls() -> None:
    Batched.calls.clear()
    Trusted.calls.clear()


@pytest.mark.parametrize("extra", [False, True], ids=["whole batch", "part of it"])
def test_one_call_serves_all_rows_of_a_class_with_a_batched_form(
    library: Library, extra: bool
) -> None:
    states = states_of(Batched, 7, 8, 9) + (states_of(Plain, 4) if extra else [])
    batch = rows(library, len(states))
    assert apply_rows(states, [PAST] * len(states), batch) == [None] * len(states)
    assert Batched.calls == [3]
    assert [int(row.argmax()) for row in batch] == ([7, 8, 9, 4] if extra else [7, 8, 9])


class Counting(BaseLogitsProcessor):
    """Keeps state, and has a batched form that fails after it moved the state of some rows."""

    fail: ClassVar[bool] = False

    def __init__(self, first: int) -> None:
        self._next = first

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        logits[self._next] += 100.0
        self._next += 1

    @classmethod
    def apply_batch(
        cls, processors: Sequence[Any], histories: Sequence[TokenHistory], logits: Row
    ) -> None:
        for row, processor, history in zip(logits, processors, histories, strict=True):  # type: ignore[call-overload]
            processor(history, row)
            if cls.fail:
                raise RuntimeError


def test_state_that_a_failed_batched_call_moved_is_rebuilt(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = [RequestLogits([("mine", lambda: Counting(7))]) for _ in range(3)]
    for position in range(5):
        monkeypatch.setattr(Counting, "fail", position in (0, 3))
        batch = rows(library, 3)
        past = TokenHistory([1], [9] * position)
        assert apply_rows(states, [past] * 3, batch) == [None] * 3
        assert [int(row.argmax()) for row in batch] == [7 + position] * 3


@pytest.mark.promise("S6-175")
@pytest.mark.parametrize("extra", [False, True], ids=["whole batch", "part of it"])
def test_a_raise_in_a_batched_call_ends_the_guilty_row_alone(library: Library, extra: bool) -> None:
    tokens = (7, -1, 9)
    states = states_of(Batched, *tokens) + (states_of(Plain, 4) if extra else [])
    batch, before = rows(library, len(states)), plain(rows(library, len(states)))
    errors = apply_rows(states, [PAST] * len(states), batch)
    assert messages(errors)[:3] == [None, "logits processor 'mine' raised KeyError", None]
    after = plain(batch)
    for place, token in ((0, 7), (2, 9)):
        expected = before[place].copy()
        expected[token] += numpy.float32(100.0)
        assert after[place].tobytes() == expected.tobytes()
    assert not after[1].any()
    assert not extra or errors[3] is None


def test_a_batched_form_that_promised_never_to_raise_and_does_fails_closed(
    library: Library,
) -> None:
    states = states_of(Trusted, 7, -1)
    batch = rows(library, 2)
    assert (
        messages(apply_rows(states, [PAST] * 2, batch))
        == ["logits processor 'mine' raised KeyError"] * 2
    )
    assert not plain(batch).any()


def test_a_batched_form_must_edit_in_place(library: Library) -> None:
    states = states_of(AnswersInBatch, 7, 8)
    batch = rows(library, 2)
    assert apply_rows(states, [PAST] * 2, batch) == [None, None]  # row by row instead
    assert [int(row.argmax()) for row in batch] == [7, 8]


@pytest.mark.promise("S6-175")
def test_a_call_that_takes_too_long_ends_its_request(library: Library) -> None:
    states = states_of(Slow, 7, seconds=0.01) + states_of(Plain, 8)
    batch = rows(library, 2)
    errors = apply_rows(states, [PAST] * 2, batch)
    assert messages(errors) == ["logits processor 'mine' took longer than 10 ms", None]
    assert int(batch[1].argmax()) == 8


def test_several_processors_that_leave_nothing_are_named_together(library: Library) -> None:
    given = [("banned_tokens", {"token_ids": list(range(2048))}), ("bias", {"bias": {"3": 1.0}})]
    spec = LogitsProcessorSpec(tuple(LogitsProcessorEntry(*each) for each in given))
    made = RequestLogits.create(Registry.builtin(), spec, MODEL)
    error = made.apply(PAST, rows(library, 1)[0])
    assert error is not None
    assert error.message == (
        "logits processor 'banned_tokens', 'bias' left no token to sample: "
        "the row's maximum is not finite"
    )


def test_rows_that_lose_their_last_token_together_are_all_found(library: Library) -> None:
    def state_of(*token_ids: int) -> RequestLogits:
        entry = LogitsProcessorEntry("banned_tokens", {"token_ids": list(token_ids)})
        return RequestLogits.create(Registry.builtin(), LogitsProcessorSpec((entry,)), MODEL)

    states = [state_of(*range(2048)), state_of(3), state_of(*range(2048))]
    batch = rows(library, 3)
    found = messages(apply_rows(states, [PAST] * 3, batch))
    assert [message is None for message in found] == [False, True, False]
    assert not plain(batch)[[0, 2]].any()


def test_what_one_processor_forbids_another_may_still_force(library: Library) -> None:
    """The row that is sampled counts."""
    given = [("banned_tokens", {"token_ids": list(range(2048))}), ("max_new_tokens", {"count": 0})]
    spec = LogitsProcessorSpec(tuple(LogitsProcessorEntry(*each) for each in given))
    made = RequestLogits.create(Registry.builtin(), spec, MODEL)
    row = rows(library, 1)[0]
    assert made.apply(PAST, row) is None
    assert int(row.argmax()) == 1


@pytest.mark.promise("S6-444")
@pytest.mark.parametrize("engine", [False, True], ids=["by processor", "the engine's"])
def test_what_a_grammar_forbids_stays_forbidden(library: Library, engine: bool) -> None:
    registry = Registry.builtin()
    registry.register("only", OnlyEven)

    def state_of(name: str, **args: Any) -> RequestLogits:
        entries = [LogitsProcessorEntry("only")] * (not engine) + [LogitsProcessorEntry(name, args)]
        spec = LogitsProcessorSpec(tuple(entries))
        return RequestLogits.create(registry, spec, MODEL, engine_grammar=engine)

    states = [
        state_of("forced_prefix", token_ids=[1, 1, 1]),
        state_of("forced_prefix", token_ids=[1, 6]),
        state_of("bias", bias={"7": 1000.0, "8": 1000.0}),
        RequestLogits.create(
            registry,
            LogitsProcessorSpec((LogitsProcessorEntry("bias", {"bias": {"7": 1000.0}}),)),
            MODEL,
        ),
    ]
    batch = rows(library, 4)
    if engine:
        batch[:3, 1::2] = -math.inf
    errors = apply_rows(states, [PAST] * 4, batch)
    # Beside an engine's own grammar all that took part is the client's.
    assert type(errors[0]) is (ContradictionError if engine else ProcessorError)
    assert errors[1:] == [None] * 3
    assert [int(row.argmax()) for row in batch] == [0, 6, 8, 7]


class OnlyEven(BaseLogitsProcessor):
    """A grammar, as far as rows see it."""

    keeps_state: ClassVar[bool] = False
    comes_first: ClassVar[bool] = True

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        logits[1::2] = -math.inf


def test_a_failed_row_fails_at_every_later_step_and_is_never_called_again(
    library: Library,
) -> None:
    (failing,) = states_of(Plain, -1)
    first = failing.apply(PAST, rows(library, 1)[0])
    failing.parts[0].processor.token_id = 7  # type: ignore[attr-defined]
    row = rows(library, 1)[0]
    assert failing.apply(PAST, row) is first is not None
    assert not plain(row).any()


@pytest.mark.promise("S6-175")
def test_a_constructor_that_never_ends_is_cut_off_or_refused() -> None:
    class Stuck(Plain):
        def __init__(self) -> None:
            _compute(0.1)

    registry = Registry(seconds=0.01)
    spec = LogitsProcessorSpec((PythonProcessorSpec(Stuck),))
    with pytest.raises(ProcessorError, match="could not be built: it took longer than 50 ms"):
        registry.check(spec, available=frozenset(Need), model=MODEL)


def test_what_prepare_finds_wrong_is_the_clients_error() -> None:
    class Picky(Plain):
        def __init__(self) -> None:
            super().__init__(3)

        def prepare(self, model: Model) -> None:
            raise ValueError(f"{model.vocabulary} tokens are too many")

    with pytest.raises(InvalidRequestError, match="2048 tokens are too many"):
        Registry().check(
            LogitsProcessorSpec((PythonProcessorSpec(Picky),)),
            available=frozenset(Need),
            model=MODEL,
        )


@pytest.mark.promise("S3-090")
def test_a_failure_keeps_no_state_alive(library: Library) -> None:
    gc.disable()
    try:
        before = state.alive()
        states = states_of(Batched, 7, -1, 9)
        errors = apply_rows(states, [PAST] * 3, rows(library, 3))
        assert state.alive() == before + 3
        del states
        assert state.alive() == before
        assert errors[1] is not None
        assert errors[1].__traceback__ is None
    finally:
        gc.enable()


def test_the_number_of_states_is_reported_as_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_report", int)
    seen: list[int] = []
    base = state.alive()
    state.report_alive(seen.append)
    made = states_of(Plain, 1, 2)
    del made[0]
    made.clear()
    assert seen == [base, base + 1, base + 2, base + 1, base]
