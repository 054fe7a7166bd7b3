"""What stands for the model: from a prompt to its KV and first token, from a state to the next."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from typing import TypeAlias

import numpy as np

from tandem.engine import kv_tag
from tandem.engine.base import Delta, Ending, Logprobs
from tandem.engine.kv_tag import KvCheck, KvTag
from tandem.errors import KvTransferError, TandemError
from tandem.v1 import common_pb2, kv_pb2
from tandem_sim.faults import Fault
from tandem_sim.kv_pool import KvPool
from tandem_sim.language import MASK, MULTIPLIER, Language, advance, begin, natural_length
from tandem_sim.options import SimOptions
from tandem_sim.prefix_cache import PrefixCache
from tandem_sim.sampling import Chosen, choose
from tandem_sim.sequence import NEVER, SimSequence

TokenLogprob: TypeAlias = tuple[int, float]


class SimModel:
    """Computes at once; the runners beside it let the time pass."""

    def __init__(
        self,
        options: SimOptions,
        language: Language,
        pool: KvPool,
        cache: PrefixCache,
        *,
        layout: int = 0,
    ) -> None:
        """`layout`: the tag's (tandem.engine.kv_tag)."""
        self.options = options
        self.pool = pool
        self.cache = cache
        self.cpu_seconds = 0.0
        """CPU spent in here: what a GPU would do in a real engine."""
        self._language = language
        self._layout = layout

    def recall(self, sequence: SimSequence) -> int:
        """Find the prompt in the prefix cache; returns how many tokens are left to compute. A
        prompt whose log-probabilities are wanted is computed as a whole.
        """
        started = time.thread_time()
        request = sequence.request
        sequence.blocks = self.cache.blocks(request)
        if not request.sampling.HasField("prompt_logprobs"):
            tokens = len(request.token_ids)
            sequence.cached_tokens = self.cache.cached_tokens(sequence.blocks, tokens)
        self.cpu_seconds += time.thread_time() - started
        return len(request.context) - sequence.cached_tokens

    def prefill(self, sequence: SimSequence) -> None:
        """Fill the prompt's KV pages and choose the first token.

        Raises TandemError.
        """
        started = time.thread_time()
        try:
            tokens = sequence.request.context
            pages = sequence.pages[: sequence.prompt_pages]
            before = self.pool.contents(pages) if Fault.STALE in sequence.faults else None
            adapter, salt = _owner(sequence)
            checksum = self.pool.fill(pages, tokens, adapter)
            if self.options.kv_check is not KvCheck.OFF:
                sequence.tag = self._tag(sequence, adapter, salt, checksum)
            self._begin(sequence)
            self._tap_context(sequence)
            token, logprobs = self._first(sequence)
            sequence.first_token, sequence.first_logprobs = token, logprobs
            sequence.state = advance(sequence.state, token)
            sequence.position += 1
            self.cache.use(sequence.request, sequence.blocks)
            if before is not None:
                self.pool.restore(pages, before)
        finally:
            self.cpu_seconds += time.thread_time() - started

    def score(self, sequence: SimSequence, places: range) -> list[tuple[float, list[TokenLogprob]]]:
        """Log-probabilities of these tokens of a prompt that is filled: what the model says of each
        after those before it, greedily.
        """
        started = time.thread_time()
        tokens, language = sequence.request.token_ids, self._language
        adapter = sequence.request.lora_adapter
        wanted = min(sequence.request.sampling.prompt_logprobs, language.vocabulary)
        scores = []
        for place in places:
            state = begin(self.pool.slot(sequence.pages, place - 1), None, adapter)
            favoured = language.word(state)
            top = language.likeliest(state, favoured, wanted)
            scores.append(
                (
                    language.logprob(state, favoured, tokens[place]),
                    [(each, language.logprob(state, favoured, each)) for each in top],
                )
            )
        self.cpu_seconds += time.thread_time() - started
        return scores

    def expect(self, sequence: SimSequence) -> None:
        """Forget what the prompt's pages held, so that a page which does not arrive is noticed."""
        started = time.thread_time()
        self.pool.clear(sequence.pages[: sequence.prompt_pages])
        self.cpu_seconds += time.thread_time() - started

    def receive(self, sequence: SimSequence, landed: kv_pb2.KvLanded) -> None:
        """Go on from KV that was written into the prompt's pages.

        Raises KvCorruptError where it is not the KV of this sequence, in the pages that were
        offered for it, and KvTransferError where it cannot be.
        """
        started = time.thread_time()
        try:
            self._check(sequence, landed)
            sequence.cached_tokens = min(landed.cached_tokens, len(sequence.request.token_ids))
            if max((landed.first_token, *landed.top_token_id)) >= self._language.vocabulary:
                raise KvTransferError(
                    "prefill's first token is outside the vocabulary",
                    phase=common_pb2.PHASE_DECODE,
                )
            self._begin(sequence)
            sequence.first_token = landed.first_token
            sequence.first_logprobs = _logprobs_of(sequence, landed)
            if sequence.sampler is not None:
                sequence.sampler.record(landed.first_token)
            sequence.state = advance(sequence.state, landed.first_token)
            sequence.position += 1
        finally:
            self.cpu_seconds += time.thread_time() - started

    def step(self, running: Collection[SimSequence]) -> tuple[list[Delta], list[SimSequence]]:
        """One token for each sequence. Returns the deltas, and the sequences that ended.

        The hottest loop of the engine: plain arithmetic for whoever needs no row.
        """
        started = time.thread_time()
        words, eos = self._language.words, self._language.eos
        count = len(words)
        deltas: list[Delta] = []
        ended: list[SimSequence] = []
        add = deltas.append
        sampled = self._sampled(running)
        for sequence in running:
            state, position = sequence.state, sequence.position
            logprobs: Logprobs | None = None
            if sequence.sampler is not None:
                chosen = next(sampled)
                if isinstance(chosen, TandemError):
                    add(Delta(sequence.id, (), Ending.FAILED, error=chosen))
                    ended.append(sequence)
                    continue
                token, logprobs = chosen
            elif position >= sequence.natural_end and eos is not None:
                token = eos
            else:
                token = words[(state >> 32) * count >> 32]
            sequence.state = (state * MULTIPLIER + 2 * token + 1) & MASK  # advance(), inline
            sequence.position = position = position + 1
            if token in sequence.stops:
                add(Delta(sequence.id, (token,), Ending.STOP, logprobs))
                ended.append(sequence)
            elif position >= sequence.limit:
                add(Delta(sequence.id, (token,), Ending.LENGTH, logprobs))
                ended.append(sequence)
            else:
                add(Delta(sequence.id, (token,), None, logprobs))
        self.cpu_seconds += time.thread_time() - started
        return deltas, ended

    def ending_of_first(self, sequence: SimSequence) -> Ending | None:
        """Whether the first token is the last, where decode judges it."""
        if sequence.first_token in sequence.stops:
            return Ending.STOP
        return Ending.LENGTH if sequence.position >= sequence.limit else None

    def _check(self, sequence: SimSequence, landed: kv_pb2.KvLanded) -> None:
        checked = self.options.kv_check
        if checked is KvCheck.OFF:
            return
        pages, checksum = sequence.pages[: sequence.prompt_pages], 0
        if checked is KvCheck.BYTES:
            checksum = self.pool.checksum(pages, len(sequence.request.context))
        request = sequence.request
        expected = self._tag(sequence, request.lora_adapter, request.cache_salt, checksum)
        generation = self.pool.generation(pages)
        kv_tag.check(kv_tag.unpacked(landed.tag), expected._replace(pages=generation))

    def _tag(self, sequence: SimSequence, adapter: str, salt: str, checksum: int) -> KvTag:
        """The tag of the sequence's KV, whatever pages hold the KV."""
        request = sequence.request
        return kv_tag.tag_of(
            room=request.room,
            tokens=request.context,
            layout=self._layout,
            adapter=adapter,
            salt=salt,
            contents=checksum if self.options.kv_check is KvCheck.BYTES else 0,
        )

    def _begin(self, sequence: SimSequence) -> None:
        sampling = sequence.request.sampling
        seeded = sampling.temperature > 0 and sampling.HasField("seed")
        slot = self.pool.slot(sequence.pages, len(sequence.request.token_ids) - 1)
        seed = sampling.seed if seeded else None
        sequence.state = begin(slot, seed, sequence.request.lora_adapter)
        if self._language.eos is not None and not sampling.ignore_eos:
            shortest, longest = self.options.min_output_tokens, self.options.max_output_tokens
            sequence.natural_end = natural_length(sequence.state, shortest, longest) - 1
        else:
            sequence.natural_end = NEVER
        for token in sequence.request.made:
            sequence.state = advance(sequence.state, token)
            if sequence.sampler is not None:
                sequence.sampler.record(token)
        sequence.position = len(sequence.request.made)

    def _tap_context(self, sequence: SimSequence) -> None:
        """Leave the row of each token of the prompt, as if the prompt ended with it."""
        sampler = sequence.sampler
        if sampler is None or sampler.tapped is None or not sampler.tapped.wants_context:
            return
        rows, adapter = [], sequence.request.lora_adapter
        for place in range(len(sequence.request.token_ids)):
            state = begin(self.pool.slot(sequence.pages, place), None, adapter)
            rows.append(self._language.row(state, self._language.word(state)))
        sampler.tapped.context = np.stack(rows)

    def _first(self, sequence: SimSequence) -> Chosen:
        """Sample a sequence's first token. Raises TandemError."""
        if sequence.sampler is None:
            return self._favoured(sequence), None
        chosen = next(self._sampled([sequence]))
        if isinstance(chosen, TandemError):
            raise chosen
        return chosen

    def _sampled(self, sequences: Iterable[SimSequence]) -> Iterator[Chosen | TandemError]:
        """The choices of the sequences that have a sampler."""
        return iter(
            choose(
                [
                    (sequence.sampler, sequence.state, self._favoured(sequence))
                    for sequence in sequences
                    if sequence.sampler is not None
                ]
            )
        )

    def _favoured(self, sequence: SimSequence) -> int:
        if sequence.position >= sequence.natural_end and self._language.eos is not None:
            return self._language.eos
        return self._language.word(sequence.state)


def _owner(sequence: SimSequence) -> tuple[str, str]:
    """The adapter and the salt whose KV prefill makes: another's where a fault hits."""
    request, faults = sequence.request, sequence.faults
    adapter, salt = request.lora_adapter, request.cache_salt
    return (
        f"other than {adapter}" if Fault.ADAPTER in faults else adapter,
        f"other than {salt}" if Fault.TENANT in faults else salt,
    )


def landed_of(sequence: SimSequence) -> kv_pb2.KvLanded:
    """What decode is told beside the pages and their tag: nothing that it could continue from."""
    landed = kv_pb2.KvLanded(
        room=sequence.request.room,
        first_token=sequence.first_token,
        cached_tokens=sequence.cached_tokens,
    )
    if sequence.first_logprobs is not None:
        landed.first_logprob = sequence.first_logprobs.chosen[0]
        for alternatives in sequence.first_logprobs.top:
            landed.top_token_id.extend(token for token, _ in alternatives)
            landed.top_logprob.extend(logprob for _, logprob in alternatives)
    return landed


def _logprobs_of(sequence: SimSequence, landed: kv_pb2.KvLanded) -> Logprobs | None:
    if not sequence.request.sampling.HasField("logprobs"):
        return None
    top = list(zip(landed.top_token_id, landed.top_logprob, strict=True))
    return Logprobs(chosen=(landed.first_logprob,), top=(top,) if top else ())
