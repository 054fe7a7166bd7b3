"""What Tandem does with grammars inside SGLang's scheduler: checks of sglang_scheduler_side.py."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.constrained.base_grammar_backend import (
    BaseGrammarBackend,
    GrammarRow,
    InvalidGrammarObject,
)
from sglang.srt.constrained.grammar_manager import GrammarManager
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import PPProxyTensors
from sglang_units import agreeing, own_scheduler

from tandem_sglang import failures, grammar_queue, grammars
from tandem_sglang.delayed_sampling import DelayedSampling


class Said:
    """A grammar whose steps take what the test says, and allow what it says."""

    def __init__(self, seconds: float, allowed: int | None) -> None:
        self.seconds, self.allowed = seconds, allowed
        self.accepted: list[int] = []

    def _spend(self) -> None:
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass

    def fill_vocab_mask(self, mask: Any, row: int) -> None:
        self._spend()
        if self.allowed is None:
            mask[row].fill_(7)  # what it had written until then
            raise RuntimeError("secret")
        mask[row].fill_(self.allowed)

    def accept_token(self, token: int) -> None:
        self._spend()
        if token == 13:
            raise ValueError("secret")
        self.accepted.append(token)


class Steps(grammars.Watched, Said):
    pass


def watched_grammars() -> Any:
    """Of each: what its mask became, and why it failed; and of two that fail at a token, which of
    the next one they are given they still accept.
    """
    seen = []
    for seconds, allowed in ((0.0, 5), (0.0, 0), (0.12, 5), (0.0, None)):
        grammar = Steps(seconds, allowed)
        mask = torch.zeros((2, 1), dtype=torch.int32)
        grammar.fill_vocab_mask(mask, 1)
        failure = grammars.failure_of(grammar)
        grammar.accept_token(13 if failure else 1)
        assert grammars.failure_of(grammar) == failure
        seen.append([mask[:, 0].tolist(), failure])
    slow, raising = Steps(0.12, 5), Steps(0.0, 5)
    slow.accept_token(1)
    raising.accept_token(13)
    found = [grammars.failure_of(each) for each in (slow, raising)]
    for each in (slow, raising):
        each.accept_token(2)
    return [*seen, *found, [slow.accepted, raising.accepted]]


class Grammar(SimpleNamespace):
    """As one of SGLang's: whether it has come to its end, and whether it has failed."""

    def is_terminated(self) -> bool:
        return bool(self.ended)

    def fill_vocab_mask(self, mask: Any, row: int) -> None:
        pass


def _fill(step: list[Any]) -> None:
    """As SGLang's sampler has the masks of a step filled."""
    entries = [
        GrammarRow(row=row, grammar=each)
        for row, each in enumerate(step)
        if each is not None and not each.is_terminated()
    ]
    grammars.Watched.fill_vocab_mask_batched(entries, torch.zeros(len(step), 1))


def _request(grammar: Any = None) -> Any:
    return SimpleNamespace(
        to_finish=None, finished=lambda: False, inflight_middle_chunks=0, grammar=grammar
    )


def _marked(ended: bool, failure: str = "") -> Grammar:
    return Grammar(ended=ended, _tandem_failure=failure)


def ends_of_grammars() -> Any:
    """Which requests of a step end, and why: of one rank; of two, the other one of which says of
    each what is in `others`; in a middle chunk, and after the request's own end; and where nothing
    has failed here.
    """
    others = torch.tensor([[0, 0, 2, 1, 1, 1], [0, 0, -2, -1, -1, -1]], dtype=torch.int32)
    found = []
    for agree in (None, lambda codes: torch.maximum(codes, others, out=codes)):
        step = [_marked(False), _marked(False, "too slow"), *(_marked(False) for _ in range(2))]
        step += [_marked(True), None]
        grammars.end_alike(agreeing(agree))
        _fill(step)
        reqs = [_request(grammar) for grammar in step]
        (noted,) = failures.taken()
        noted.tell(noted.codes, reqs)
        found.append([each.to_finish and each.to_finish.message for each in reqs])
        middle, ended = _request(), _request()
        middle.inflight_middle_chunks = 1
        ended.finished = lambda: True
        noted.tell(noted.codes, [_request(), middle, ended, *(_request() for _ in range(3))])
        found.append([middle.to_finish, ended.to_finish])
    grammars.end_alike(agreeing(None))
    _fill([_marked(False)] * len(step))
    found.append(failures.taken())
    grammars.end_alike(agreeing(lambda codes: None))
    _fill([_marked(False)] * len(step))
    found.append(len(failures.taken()))
    return found


class Stage(own_scheduler()):  # type: ignore[misc]
    """As much of a scheduler as SGLang's functions of a pipeline's outputs use."""

    _pp_spec_relay = False
    future_map = SimpleNamespace(stash=lambda *_: None)
    tp_worker = SimpleNamespace(model_runner=SimpleNamespace(sampling_observer=None))

    def __init__(self, *, first: bool) -> None:
        self.pp_group = SimpleNamespace(is_first_rank=first)
        self._delayed = DelayedSampling()


class Microbatch(SimpleNamespace):
    return_logprob = False
    sampling_info = None
    req_pool_indices = input_ids = None
    spec_algorithm = SimpleNamespace(is_dspark=lambda: False)

    def __init__(self, reqs: list[Any]) -> None:
        self.reqs = reqs


def ends_in_a_pipeline() -> Any:
    """Why the requests of three microbatches end, all of which are sampled before one is taken in:
    on the first of two stages, and on the last, where one's form has failed. And of a fourth one,
    before which something failed in a step whose outputs the last stage does not send.
    """

    def sample(_: Any, batch: Any) -> Any:
        _fill([each.grammar for each in batch.reqs])
        return GenerationBatchResult(next_token_ids=torch.zeros(len(batch.reqs)))

    grammars.end_alike(agreeing(lambda codes: None))
    Scheduler.run_batch, Scheduler.process_batch_result = sample, lambda *_: None
    first, last = Stage(first=True), Stage(first=False)

    def microbatches(failure: str) -> list[Any]:
        reqs = [_request(_marked(False)) for _ in range(6)]
        reqs[2].grammar = _marked(False, failure)
        return [Microbatch(reqs[:1]), Microbatch(reqs[1:4]), Microbatch(reqs[4:])]

    def sent(batch: Any) -> Any:
        result = last.run_batch(batch)
        return PPProxyTensors(last._pp_prepare_tensor_dict(result, batch))

    def taken_in(stage: Any, batch: Any, outputs: Any) -> Any:
        metadata = SimpleNamespace(can_run_cuda_graph=False, fwd_batch=None)
        result = stage._pp_prep_batch_result(batch, metadata, outputs)
        stage.process_batch_result(batch, result)
        return [each.to_finish and each.to_finish.message for each in batch.reqs]

    of_stages = [microbatches(""), microbatches("too slow")]
    ring = [sent(batch) for batch in of_stages[1]]
    found = [
        [taken_in(stage, *step) for step in zip(batches, ring, strict=True)]
        for stage, batches in zip((first, last), of_stages, strict=True)
    ]
    last.run_batch(Microbatch([_request(_marked(False, "too slow"))]))
    batch = Microbatch([_request(_marked(False))])
    return [*found, taken_in(last, batch, sent(batch))]


class Queued(SimpleNamespace):
    """As a request of SGLang's whose grammar is being compiled."""

    grammar = None
    to_finish = None

    def finished(self) -> bool:
        return False

    def set_finish_with_abort(self, *told: Any) -> None:
        self.to_finish = told


class Backend(grammar_queue.KeptAlike, BaseGrammarBackend):
    pass


def compiled_grammars() -> Any:
    """What two ranks say of each other's requests, how those end, and what is kept: one that both
    compiled; those that one of them could not; and one that its client has cancelled. And how many
    a load snapshot counts as each comes, and once all are ready.
    """

    def process(self: Any, req: Any) -> bool:
        self.grammar_queue.append(req)
        return True

    def ready(self: Any) -> Any:
        for req, grammar in zip(self.grammar_queue, self.made, strict=True):
            if req.to_finish is not None:
                continue
            self.grammar_backend.set_cache(req.grammar_key, grammar)
            if isinstance(grammar, InvalidGrammarObject):
                req.set_finish_with_abort("secret")
        found, self.grammar_queue = self.grammar_queue, []
        return found

    def gather(of_ranks: list[Any], own: list[bool], group: Any) -> None:
        assert group == "group"
        of_ranks[:] = [own, [False, True, False, False]]

    GrammarManager.process_req_with_grammar = process
    GrammarManager.get_ready_grammar_requests = ready
    grammar_queue.distributed = SimpleNamespace(all_gather_object=gather)
    backend: Any = Backend()
    backend.cache, backend.compiled = {}, {}
    custom = SimpleNamespace(custom_params=None)
    queue = [Queued(grammar_key=key, sampling_params=custom) for key in "abcd"]
    queue[3].set_finish_with_abort("cancelled")
    stats = SimpleNamespace(num_grammar_queue_reqs=0)
    manager: Any = grammar_queue.OwnGrammarManager.__new__(grammar_queue.OwnGrammarManager)
    manager.__dict__.update(
        grammar_queue=[],
        scheduler=SimpleNamespace(metrics_reporter=SimpleNamespace(stats=stats)),
        made=["made a", "made b", InvalidGrammarObject("secret"), "never"],
        grammar_backend=backend,
        grammar_sync_size=2,
        grammar_sync_group="group",
    )
    counted = []
    for req in queue:
        manager.process_req_with_grammar(req)
        counted.append(stats.num_grammar_queue_reqs)
    found = manager.get_ready_grammar_requests()
    counted.append(stats.num_grammar_queue_reqs)
    return [[req.to_finish and req.to_finish[0] for req in found], dict(backend.cache), counted]
