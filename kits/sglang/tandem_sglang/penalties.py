"""Runs in SGLang's scheduler process: penalties count what a sequence has put out, and all of it.

SGLang's own count what its loop happens to know when it plans a step. Under overlap scheduling that
is one token less, at times the prompt's last token or prefill's twice, and it depends on the
batches before; what another engine made of a request does not count at all.

Here a step is planned with the outputs whose KV is there, which are all but one. The one that is
missing is the input of the step, so it is added on the device, when the step is sampled.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.sampling import penaltylib
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

from tandem_sglang import rows
from tandem_sglang.additions import Additions
from tandem_sglang.tensors import on_device

_COUNTED = "_tandem_counted"


def count_outputs(_: Additions) -> None:
    """Let the penalties of this process be these. Call it before the scheduler starts.

    Not for speculative decoding, whose verification takes SGLang's penalties apart.
    """
    penaltylib.BatchedPenalizerOrchestrator = OutputCounts
    SamplingBatchInfo.update_penalties = _plan
    SamplingBatchInfo._apply_pre_grammar_logits_transforms = _apply
    original = ModelRunner.sample

    @functools.wraps(original)
    def sample(self: Any, logits_output: Any, forward_batch: Any) -> Any:
        info = forward_batch.sampling_info
        if info.penalizer_orchestrator is not None:
            info.update_penalties()  # without overlap scheduling a step has no copy that is planned
        planned = info.acc_additive_penalties
        if planned is not None and forward_batch.forward_mode.is_decode():
            planned.count(forward_batch.input_ids)
        return original(self, logits_output, forward_batch)

    ModelRunner.sample = sample


def _plan(info: Any) -> None:
    """For a step's own copy of `info`, which is all that SGLang takes into its forward pass."""
    info.acc_additive_penalties = info.penalizer_orchestrator.penalties()


def _apply(info: Any, logits: Any) -> None:
    if info.acc_additive_penalties is not None:
        info.acc_additive_penalties.apply(logits)


class Penalties:
    """What the rows of one step have put out, and how strongly that counts."""

    def __init__(self, counts: Any, strengths: Any) -> None:
        """`counts`, (rows, vocabulary) float32: how often each token was put out. `strengths`, (3,
        rows, 1): of frequency, presence and repetition.
        """
        self._counts = counts
        self._frequency, self._presence, self._repetition = strengths

    def count(self, token_ids: Any) -> None:
        """One more output of each row. `token_ids`, (at least rows,): what follows the rows is the
        padding of a data-parallel rank that has fewer of them than another.
        """
        token_ids = token_ids[: len(self._counts)].to(torch.int64).view(-1, 1)
        ones = torch.ones_like(token_ids, dtype=self._counts.dtype)
        self._counts = self._counts.scatter_add(1, token_ids, ones)

    def apply(self, logits: Any) -> None:
        """Edits `logits`, (rows, vocabulary): SGLang's arithmetic, in SGLang's order."""
        seen = self._counts > 0
        logits.sub_(self._counts * self._frequency + seen * self._presence)
        factors = torch.where(seen, self._repetition, 1.0)
        logits.copy_(torch.where(logits < 0, logits * factors, logits / factors))


class OutputCounts:
    """What SGLang's BatchedPenalizerOrchestrator is to a batch."""

    def __init__(self, vocab_size: int, batch: Any, penalizers: Any) -> None:
        self._vocabulary = vocab_size
        self._batch = weakref.ref(batch)
        self._device = batch.device
        self._rows = len(batch.reqs)
        self._counts: Any = None
        self._strengths: Any = None
        if any(map(_penalised, batch.reqs)):
            self._count_from_nothing(batch.reqs)

    @property
    def is_required(self) -> bool:
        """Whether a row of the batch has penalties."""
        return self._counts is not None

    def penalties(self) -> Penalties | None:
        """The penalties of the step that is planned; None: no row has any."""
        return Penalties(self._counts, self._strengths) if self.is_required else None

    def cumulate_output_tokens(self, output_ids: Any) -> None:
        """Count what is new. `output_ids`: what SGLang would have counted."""
        batch = self._batch()
        assert batch is not None, "a step is planned of no batch"
        self._count(batch.reqs)

    def filter(self, keep_indices: Any) -> None:
        """Keep the rows of requests that the batch still has."""
        self._rows = len(keep_indices)
        batch = self._batch()
        if not self.is_required:
            return
        if batch is None or not any(map(_penalised, batch.reqs)):
            self._counts = self._strengths = None
            return
        self._counts = self._counts[keep_indices]
        self._strengths = self._strengths[:, keep_indices]

    def merge(self, their: OutputCounts) -> None:
        """Take over the rows of another batch, behind these."""
        if self.is_required or their.is_required:
            both = (self._whole(), their._whole())
            self._counts = torch.cat([counts for counts, _ in both])
            self._strengths = torch.cat([strengths for _, strengths in both], dim=1)
        self._rows += their._rows

    def _whole(self) -> tuple[Any, Any]:
        if self.is_required:
            return self._counts, self._strengths
        neutral = on_device([0.0, 0.0, 1.0], torch.float32, self._device)
        counts = torch.zeros((self._rows, self._vocabulary), device=self._device)
        return counts, neutral.view(3, 1, 1).expand(3, self._rows, 1)

    def _count_from_nothing(self, reqs: Any) -> None:
        self._counts = torch.zeros((self._rows, self._vocabulary), device=self._device)
        params = [req.sampling_params for req in reqs]
        strengths = [
            [each.frequency_penalty for each in params],
            [each.presence_penalty for each in params],
            [each.repetition_penalty for each in params],
        ]
        self._strengths = on_device(strengths, torch.float32, self._device).unsqueeze(-1)
        for req in reqs:
            setattr(req, _COUNTED, 0)
        self._count(reqs)

    def _count(self, reqs: Any) -> None:
        """In a tensor of its own: the step before may not have been sampled yet."""
        places = [
            row * self._vocabulary + token_id
            for row, req in enumerate(reqs)
            if _penalised(req)
            for token_id in _new_outputs(req)
        ]
        if not places:
            return
        index = on_device(places, torch.int64, self._device)
        ones = torch.ones(len(places), dtype=torch.float32, device=self._device)
        counted = self._counts.view(-1).index_add(0, index, ones)
        self._counts = counted.view(self._rows, self._vocabulary)


def _penalised(req: Any) -> bool:
    params = req.sampling_params
    return bool(
        params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1.0
    )


def _new_outputs(req: Any) -> list[int]:
    """The outputs of a request whose KV is there, and which were not counted yet."""
    made = rows.made_of(req)
    prompt = len(req.origin_input_ids) - made
    counted = getattr(req, _COUNTED)
    there = min(req.kv.kv_committed_len - prompt, made + len(req.output_ids))
    setattr(req, _COUNTED, max(counted, there))
    return [
        req.origin_input_ids[prompt + place] if place < made else req.output_ids[place - made]
        for place in range(counted, there)
    ]
