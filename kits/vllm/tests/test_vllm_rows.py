"""What edits a batch's rows in vLLM's process, with numpy's rows in place of torch's."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
from vllm_stand_ins import EOS, VOCABULARY, request

from tandem.errors import ProcessorError, TandemError
from tandem.logits.history import TokenHistory
from tandem.logits.model import Model
from tandem.logits.registry import Registry
from tandem.logits.spec import LogitsProcessorEntry, forced_token_sequence
from tandem.v1 import common_pb2
from tandem_vllm import requests
from tandem_vllm.penalties import Penalties
from tandem_vllm.rows import Rows

FORCED = forced_token_sequence([30, 31], EOS)


class Batch:
    """vLLM's batch of some requests, and what was said of them."""

    def __init__(self, registry: Registry | None = None) -> None:
        self.failed: list[tuple[str, TandemError]] = []
        self.rows = Rows(
            registry or Registry.builtin(),
            Model(vocabulary=VOCABULARY, eos_token_ids=[EOS]),
            lambda name, error: self.failed.append((name, error)),
        )
        self.outputs: dict[int, list[int]] = {}

    def add(self, place: int, *, spec: Any = (), first: int | None = None, **given: Any) -> None:
        asked = request(place + 1, **given)
        self.outputs[place] = []
        steering = requests.steering(asked, spec=spec, first=first)
        self.rows.take(place, steering, list(asked.context), self.outputs[place])

    def step(self, count: int) -> Any:
        """The rows of a step, of which the first tokens are the likeliest."""
        logits = numpy.tile(-numpy.arange(VOCABULARY, dtype=numpy.float32), (count, 1))
        self.rows.edit(logits)
        return logits


@pytest.mark.promise("S5-725")
def test_prefills_token_is_the_only_one_that_can_come_first_and_no_other_row_knows() -> None:
    batch = Batch()
    batch.add(0, first=42)
    batch.add(1)
    batch.add(2, first=43, spec=[FORCED], frequency_penalty=1.0)
    logits = batch.step(3)
    assert [row.argmax() for row in logits] == [42, 0, 43]
    assert numpy.isfinite(logits[0]).sum() == 1
    batch.outputs[0].append(42)
    batch.outputs[2].append(43)
    logits = batch.step(3)
    assert [row.argmax() for row in logits] == [0, 0, 31]  # the processor's second place


def test_processors_count_what_another_engine_made() -> None:
    batch = Batch()
    batch.add(0, spec=[FORCED], made=[30])
    assert batch.step(1)[0].argmax() == 31
    batch.outputs[0].append(31)
    assert batch.step(1)[0].argmax() == EOS


def test_rows_follow_the_places_of_the_batch() -> None:
    batch = Batch()
    batch.add(0, first=40)
    batch.add(1, first=41)
    batch.add(2)
    batch.rows.move(0, 2, swap=True)
    assert [row.argmax() for row in batch.step(3)] == [0, 41, 40]
    batch.rows.move(2, 0, swap=False)
    assert [row.argmax() for row in batch.step(3)] == [40, 41, 0]
    batch.rows.leave(1)
    assert [row.argmax() for row in batch.step(2)] == [40, 0]
    batch.add(0)
    assert [row.argmax() for row in batch.step(2)] == [0, 0]


class Raising:
    needs = frozenset()  # type: ignore[var-annotated]

    def __call__(self, history: TokenHistory, logits: Any) -> None:
        if history.position == 1:
            raise RuntimeError("secret of a prompt")


@pytest.mark.promise("S5-729")
def test_a_processor_that_raises_ends_its_own_request_once() -> None:
    registry = Registry.builtin()
    registry.register("raising", Raising)
    batch = Batch(registry)
    batch.add(0, spec=[LogitsProcessorEntry("raising")])
    batch.add(1, spec=[FORCED])
    batch.step(2)
    assert batch.failed == []
    batch.outputs[0].append(0)
    logits = batch.step(2)
    batch.step(2)
    ((name, error),) = batch.failed
    assert name == "tandem-1"
    assert isinstance(error, ProcessorError)
    assert "secret" not in error.message
    assert numpy.isfinite(logits[0]).all()
    assert logits[1].argmax() == 30


@pytest.mark.promise("S5-729")
def test_a_processor_that_cannot_be_made_ends_its_own_request() -> None:
    batch = Batch()
    batch.add(0, spec=[LogitsProcessorEntry("nobody")])
    batch.add(1, first=42)
    assert batch.step(2)[1].argmax() == 42
    assert [name for name, _ in batch.failed] == ["tandem-1"]


@pytest.mark.promise("S5-729")
def test_what_nobody_foresaw_ends_requests_and_never_the_engine() -> None:
    batch = Batch()
    batch.add(0, first=10**6)  # no row has it
    logits = batch.step(2)
    assert [name for name, _ in batch.failed] == ["tandem-1"]
    assert numpy.isfinite(logits[0]).all()
    assert logits[1].any()


def test_an_embedding_bias_is_applied() -> None:
    batch = Batch()
    token_ids = numpy.array([50], dtype=numpy.uint32).tobytes()
    values = numpy.array([99.0], dtype=numpy.float32).tobytes()
    batch.add(0, embedding_bias=common_pb2.EmbeddingBias(token_ids=token_ids, values=values))
    assert batch.step(1)[0].argmax() == 50


def test_penalties_are_those_of_vllm() -> None:
    """By `apply_penalties` in vLLM: repetition by prompt and output, the others by output."""
    row = numpy.array([2.0, -2.0, 4.0, 1.0, -1.0], dtype=numpy.float32)
    penalties = Penalties.of([0.5, 0.25, 2.0])
    assert penalties is not None
    first = row.copy()
    penalties.apply(first, TokenHistory([0, 1], []))
    assert first.tolist() == [1.0, -4.0, 4.0, 1.0, -1.0]
    later = row.copy()
    penalties.apply(later, TokenHistory([0, 1], [2, 2, 4]))
    assert later.tolist() == [1.0, -4.0, 2.0 - 1.0 - 0.25, 1.0, -2.0 - 0.5 - 0.25]
    again = row.copy()
    penalties.apply(again, TokenHistory([0, 1], [2, 2, 4, 3]))
    assert again.tolist() == [1.0, -4.0, 0.75, 0.5 - 0.75, -2.75]
    assert Penalties.of(None) is None


def test_a_row_that_holds_forbidden_tokens_can_be_penalised() -> None:
    row = numpy.array([-math.inf, 1.0, 2.0], dtype=numpy.float32)
    penalties = Penalties.of([1.0, 0.0, 1.5])
    assert penalties is not None
    penalties.apply(row, TokenHistory([0, 1], [2]))
    assert row[0] == -math.inf
    assert not numpy.isnan(row).any()


def test_a_plain_request_is_vllms_alone() -> None:
    assert requests.steering(request(1), spec=(), first=None) is None
    assert requests.number(requests.name(7)) == 7
    assert requests.number("warm-up-0-1") is None
