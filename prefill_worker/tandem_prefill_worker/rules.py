"""What prefill decides of its legs: the one chunk is judged and never shown, because decode repeats
its token. The router is told the verdict.
"""

from __future__ import annotations

from tandem.endings import Outcome
from tandem.engine.base import KvTransfer
from tandem.hooks.classifiers.classifier_set import Judgement
from tandem.hooks.classifiers.sequence_guard import SequenceGuard
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker.config import WorkerConfig
from tandem.worker.core.leg import Closing, Leg
from tandem.worker.core.output import Finish
from tandem.worker.phase import PhaseParts


def load_phase(config: WorkerConfig, tokenizer: Tokenizer) -> PhaseParts:
    """What makes a worker a prefill worker."""
    return PhaseParts(PrefillRules())


class PrefillRules:
    """The rules of the prefill phase, as tandem.worker.core.rules.PhaseRules says."""

    phase = common_pb2.PHASE_PREFILL
    shows = False
    max_held_rows = 0

    def guard(self, *, streaming: bool) -> SequenceGuard | None:
        """Classifiers judge in decode, which has all of the output."""
        return None

    def started(self, kv: KvTransfer | None) -> worker_pb2.LegStarted | None:
        """None: decode says that the hand-over was taken."""
        return None

    def verdict(self, leg: Leg, end: Finish) -> worker_pb2.LegVerdict | None:
        """The hooks' word on the one chunk: decode's output may go, or the request ends here."""
        if end.terminated:
            return worker_pb2.LegVerdict(
                terminate=True,
                reason=end.stop_reason,
                completion_tokens=leg.generated_tokens,
                prompt_tokens=leg.prompt_tokens,
            )
        return worker_pb2.LegVerdict()

    def closing(self, end: Finish) -> Closing:
        """A terminate is the router's to act on: it closes decode's leg."""
        return Closing(Outcome.FINISHED)

    def finish(self, leg: Leg, end: Finish) -> common_pb2.Finish | None:
        """Decode has the last word."""
        return None

    def regeneration(self, leg: Leg, judgement: Judgement) -> common_pb2.Regeneration | None:
        return None
