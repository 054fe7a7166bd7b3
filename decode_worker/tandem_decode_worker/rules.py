"""What decode decides of its legs: every chunk is judged and shown, classifiers judge
the whole, and the client gets its last word from here.
"""

from __future__ import annotations

from collections.abc import Callable

from tandem import sampling
from tandem.endings import FINISH_TO_WIRE, Outcome
from tandem.engine.base import KvTransfer
from tandem.hooks.audit import AuditLog
from tandem.hooks.audit import parse as parse_audit
from tandem.hooks.classifiers.classifier_set import ClassifierSet, Judgement
from tandem.hooks.classifiers.sequence_guard import SequenceGuard
from tandem.hooks.classifiers.settings import parse
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker.classifying import Classifying
from tandem.worker.config import WorkerConfig
from tandem.worker.core.leg import Closing, Leg
from tandem.worker.core.output import Finish
from tandem.worker.phase import PhaseParts


def load_phase(
    config: WorkerConfig,
    tokenizer: Tokenizer,
    *,
    register: Callable[[ClassifierSet], object] | None = None,
) -> PhaseParts:
    """What makes a worker a decode worker. `register`: what registers more classifiers than the
    settings name, now or, on the worker's event loop, while it runs; None: nothing does.

    Raises ConfigError or LoadError.
    """
    model = config.model_name()
    classifiers = ClassifierSet.build(parse(config.classifiers), model=model)
    if register is not None:
        register(classifiers)
    elif not len(classifiers):
        return PhaseParts(DecodeRules())
    settings = parse_audit(config.audit)
    name = config.worker_name("decode")
    audit = None if settings is None else AuditLog(settings, worker=name, model=model)
    return PhaseParts(DecodeRules(classifiers), Classifying(classifiers, tokenizer, audit))


class DecodeRules:
    """The rules of the decode phase, as tandem.worker.core.rules.PhaseRules says."""

    phase = common_pb2.PHASE_DECODE
    shows = True
    max_held_rows = 1000

    def __init__(self, classifiers: ClassifierSet | None = None) -> None:
        """`classifiers` only says whether there are some, and how they are set: whether they block,
        hold back, regenerate. More may be registered while it runs.
        """
        self._classifiers = classifiers

    def guard(self, *, streaming: bool) -> SequenceGuard | None:
        """The guard of a sequence, where the worker has a classifier; else None."""
        if not self._classifiers:
            return None
        settings = self._classifiers.settings
        return SequenceGuard(
            hold_back=settings.hold_back,
            window_tokens=settings.window_tokens,
            blocks=self._classifiers.blocks,
            streaming=streaming,
            logprobs=settings.logprobs,
        )

    def started(self, kv: KvTransfer | None) -> worker_pb2.LegStarted | None:
        """The KV cache has arrived: from now on the request is not run elsewhere."""
        started = worker_pb2.LegStarted()
        if kv is not None:
            started.kv_bytes, started.kv_seconds = kv.bytes, kv.seconds
        return started

    def verdict(self, leg: Leg, end: Finish) -> worker_pb2.LegVerdict | None:
        """A terminate ends the whole request, so the router must know, however this output ends:
        classifiers may still fail, or the router cancel.
        """
        if end.terminated:
            return worker_pb2.LegVerdict(
                terminate=True, reason=end.stop_reason, prompt_tokens=leg.prompt_tokens
            )
        return None

    def closing(self, end: Finish) -> Closing:
        if end.terminated:
            return Closing(Outcome.TERMINATED, reason=end.stop_reason)
        return Closing(Outcome.FINISHED)

    def finish(self, leg: Leg, end: Finish) -> common_pb2.Finish | None:
        """Why the output ended, and what it came to."""
        return common_pb2.Finish(
            sequence=leg.sequence,
            reason=FINISH_TO_WIRE[end.reason],
            stop_reason=end.stop_reason,
            prompt_tokens=leg.prompt_tokens,
            completion_tokens=leg.generated_tokens,
            cached_tokens=leg.cached_tokens,
            withheld=end.withheld,
            external_scores=leg.scores,
            stop_tokens=end.stop_tokens,
        )

    def regeneration(self, leg: Leg, judgement: Judgement) -> common_pb2.Regeneration | None:
        """Where the settings have it so for an output that was judged and blocked, sampled as the
        classifier that blocks says, and else as the settings do. A classifier that failed would
        fail again.
        """
        wanted = None if self._classifiers is None else self._classifiers.settings.regenerate
        if wanted is None or not judgement.blocked or judgement.failed:
            return None
        asked = wanted.when == "blocked" if judgement.regenerate is None else judgement.regenerate
        if not asked:
            return None
        if leg.regenerations >= wanted.times:
            return None
        again = common_pb2.Regeneration(count=leg.regenerations + 1)
        for name in sampling.REGENERATED:
            value = getattr(judgement.sampling, name)
            if value is None:
                value = getattr(wanted, name)
            if value is not None:
                setattr(again, name, value)
        return again
