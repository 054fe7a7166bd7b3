"""Positions and histories under anything that SGLang's scheduler does with a request, at random.

A stand-in for the scheduler: it chunks prompts, batches whoever is ready, samples a step before it
has taken in the last one (overlap), retracts, prefills again, aborts, and moves a request to a
decode process. What the processors of a request see must be what an honest loop would show them.
"""

from __future__ import annotations

import random
from array import array
from types import SimpleNamespace
from typing import ClassVar

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.logits import BaseLogitsProcessor, Model, Need, Row, TokenHistory, state
from tandem.logits.registry import Registry
from tandem.logits.spec import LogitsProcessorEntry, write_entries
from tandem_sglang.processors import Steering
from tandem_sglang.requests import HISTORY_KEY, SPEC_KEY
from tandem_sglang.rows import RowEditor, Verdicts, forget

VOCABULARY = 64
MODEL = Model(vocabulary=VOCABULARY, eos_token_ids=[1])
LENGTH = 12


class ByHistory(BaseLogitsProcessor):
    """The next token follows from the position and all tokens before it."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.HISTORY})
    keeps_state: ClassVar[bool] = False

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        assert input_ids.has_tokens
        logits[:] = 0.0
        logits[_next(self._seed, list(input_ids), input_ids.position)] = 1.0


class ByPosition(BaseLogitsProcessor):
    """The next token follows from the position alone, which it needs."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.POSITION})
    keeps_state: ClassVar[bool] = False

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        logits[:] = 0.0
        logits[_next(self._seed, [], input_ids.position)] = 1.0


class ByCounter(BaseLogitsProcessor):
    """The next token follows from how often it was called, as many people write it."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.POSITION})

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._calls = 0

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        logits[:] = 0.0
        logits[_next(self._seed, [], self._calls)] = 1.0
        self._calls += 1


def _next(seed: int, tokens: list[int], position: int) -> int:
    return 2 + hash((seed, position, tuple(tokens))) % (VOCABULARY - 2)


CLASSES = {"history": ByHistory, "position": ByPosition, "counter": ByCounter}
REGISTRY = Registry()
for _name, _cls in CLASSES.items():
    REGISTRY.register(_name, _cls)


def expected(name: str, seed: int, prompt: list[int]) -> list[int]:
    generated: list[int] = []
    while len(generated) < LENGTH:
        tokens = [*prompt, *generated] if name == "history" else []
        generated.append(_next(seed, tokens, len(generated)))
    return generated


class Request(SimpleNamespace):
    """What of SGLang's Req is read."""

    def finished(self) -> bool:
        return self.finished_reason is not None


def request(name: str, seed: int, prompt: list[int], output: list[int]) -> Request:
    entry = LogitsProcessorEntry(name, {"seed": seed})
    steering = Steering((entry,), reads_history=name == "history")
    made = Request(
        name=name,
        kv=SimpleNamespace(kv_committed_len=0),
        sampling_params=SimpleNamespace(custom_params=None),
        origin_input_ids=array("q", prompt),
        output_ids=array("q", output),
        to_finish=None,
        finished_reason=None,
        params={SPEC_KEY: write_entries(steering.spec), HISTORY_KEY: steering.reads_history},
        pending=None,
    )
    made.params["__req__"] = made
    return made


class Scheduler:
    """One process: requests are prefilled in chunks, then decoded together."""

    def __init__(self, rng: random.Random, *, overlap: bool) -> None:
        self._rng = rng
        self._overlap = overlap
        self._editor = RowEditor(REGISTRY, MODEL)
        self._verdicts: list[Verdicts] = []
        self.failed: list[str] = []

    def prefill(self, req: Request) -> None:
        """The prompt, and after a retraction what was generated too, in chunks of random length.
        The sample of every chunk but the last is thrown away."""
        tokens = len(req.origin_input_ids) + len(req.output_ids)
        while req.kv.kv_committed_len < tokens:
            left = tokens - req.kv.kv_committed_len
            req.kv.kv_committed_len += self._rng.randint(1, left)
            token = self._sample([req])[0]
        if token is not None:
            req.output_ids.append(token)

    def decode(self, batch: list[Request]) -> None:
        """A step for all. Under overlap the result is taken in only after the next step's sampling,
        unless a processor of the batch reads tokens: then sampling waits."""
        late = self._overlap and not any(req.params[HISTORY_KEY] for req in batch)
        if not late:
            self.take_in(batch)
        for req in batch:
            req.kv.kv_committed_len += 1
        tokens = self._sample(batch)
        self.take_in(batch)
        for req, token in zip(batch, tokens, strict=True):
            req.pending = token

    def take_in(self, batch: list[Request]) -> None:
        for verdicts in self._verdicts:
            verdicts.tell(lambda req, error: self.failed.append(f"{req.name}: {error.message}"))
        self._verdicts.clear()
        for req in batch:
            if req.pending is not None:
                req.output_ids.append(req.pending)
                req.pending = None

    def retract(self, req: Request) -> None:
        """A result that was not taken in yet may be lost; then its position is sampled again."""
        if self._rng.random() < 0.5:
            self.take_in([req])
        req.pending = None
        req.kv.kv_committed_len = 0
        self.prefill(req)

    def _sample(self, batch: list[Request]) -> list[int | None]:
        """Beside rows without processors, in a random order."""
        rows = torch.zeros(len(batch), VOCABULARY)
        rows += torch.from_numpy(numpy.random.default_rng(1).normal(size=rows.shape)).float()
        if verdicts := self._editor.edit(rows, [req.params for req in batch]):
            self._verdicts.append(verdicts)
        return [None if self.failed else int(row.argmax()) for row in rows]


@pytest.mark.promise("S1-052", "S3-088", "S3-097", "S1-051", "S3-091")
@given(
    seed=st.integers(0, 2**32),
    kinds=st.lists(st.sampled_from(sorted(CLASSES)), min_size=1, max_size=5),
    prompts=st.lists(
        st.lists(st.integers(2, VOCABULARY - 1), min_size=1, max_size=9), min_size=5, max_size=5
    ),
    overlap=st.booleans(),
    disaggregated=st.booleans(),
)
@settings(max_examples=150)
def test_every_sequence_is_what_an_honest_loop_would_make_of_it(
    seed: int, kinds: list[str], prompts: list[list[int]], overlap: bool, disaggregated: bool
) -> None:
    rng = random.Random(seed)
    scheduler = Scheduler(rng, overlap=overlap)
    requests = []
    for number, kind in enumerate(kinds):
        first = request(kind, number, prompts[number], [])
        scheduler.prefill(first)
        if disaggregated:  # another process gets the KV and the first token
            moved = request(kind, number, prompts[number], list(first.output_ids))
            moved.kv.kv_committed_len = len(prompts[number])
            first = moved
        requests.append(first)
    aborted = {number for number in range(len(kinds)) if rng.random() < 0.2}
    running = dict(enumerate(requests))
    while running:
        batch = [req for req in running.values() if rng.random() < 0.7]
        rng.shuffle(batch)
        if batch:
            scheduler.decode(batch)
        for number, req in list(running.items()):
            if rng.random() < 0.15:
                scheduler.retract(req)
            done = len(req.output_ids) + (req.pending is not None)
            if done >= LENGTH or (number in aborted and done > 3):
                scheduler.take_in([req])
                req.finished_reason = "done"
                forget(req)
                del running[number]
    assert scheduler.failed == []
    for number, req in enumerate(requests):
        wanted = expected(kinds[number], number, prompts[number])
        got = list(req.output_ids)
        assert got[:LENGTH] == wanted[: len(got)], (kinds[number], got, wanted)
        assert number in aborted or len(got) >= LENGTH


@pytest.mark.promise("S3-090")
def test_ten_thousand_requests_with_aborts_leave_no_state() -> None:
    rng = random.Random(4)
    before = state.alive()
    scheduler = Scheduler(rng, overlap=True)
    highest = 0
    for number in range(10_000):
        req = request("counter", number, [5, 6], [])
        scheduler.prefill(req)
        if number % 3:  # the rest are aborted before they decode
            scheduler.decode([req])
        highest = max(highest, state.alive())
        if number % 2:
            forget(req)  # told the end; the others die with their request
    scheduler.take_in([])
    del req
    assert scheduler.failed == []
    assert before < highest <= before + 2
    assert state.alive() == before
