"""Where the time of an answer went: the names of its parts, and what divides it into them."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final, Literal, get_args

import msgspec

from tandem.v1 import common_pb2

Part = Literal["read", "queue", "prefill", "kv", "decode", "hooks", "client", "other"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)
"""In the order in which they follow each other.

read     the frontend had the request read, before it gave the request to a router
queue    the sequence waited at the router for workers
prefill  the prompt waited in prefill's engine, and was computed
kv       the KV cache waited for room in decode's engine, and was handed over
decode   decode's engine generated
hooks    hooks and classifiers had yet to rule on output when the engine had made all of it
client   the client had yet to read output when the workers had ended
other    the network, and runs that were given up
"""
NOTHING = 0.0
"""No seconds. It is one object, by which structs leave out fields that hold it."""


class LegTimes(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """What a worker measured of one leg, in seconds and tokens. 0: nothing, or not known."""

    phase: Literal["prefill", "decode"]
    request_id: int
    """The phase's own, which hooks and the audit log have."""
    seconds: float
    """From the router's command to the leg's end."""
    first: float = NOTHING
    """From the command to the engine's first output."""
    engine: float = NOTHING
    """From the command until the engine held nothing more."""
    form: float = NOTHING
    queue: float = NOTHING
    room: float = NOTHING
    compute: float = NOTHING
    """The last four are those of tandem.v1.EngineTimes."""
    kv: float = NOTHING
    kv_bytes: int = 0
    hooks: float = NOTHING
    classifiers: float = NOTHING
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0

    @property
    def generating(self) -> float:
        """Seconds from the engine's first output to its last."""
        return max(0.0, (self.engine or self.seconds) - self.first) if self.first else 0.0

    @property
    def computing(self) -> float:
        """Seconds in which the prompt was computed; where the engine does not say that, all until
        the first output but the hand-over.
        """
        return self.compute or max(0.0, self.first - self.kv)


def leg_times(report: common_pb2.PhaseReport) -> LegTimes | None:
    """None: a report that no worker can mean."""
    engine = report.engine
    seconds = (
        *(report.phase_seconds, report.first_seconds, report.engine_seconds),
        *(engine.form, engine.queue, engine.room, engine.compute),
        *(report.kv_seconds, report.hook_seconds, report.classifier_seconds),
    )
    if not (min(seconds) >= 0 and sum(seconds) < inf):
        return None
    whole, first, let_go, form, queue, room, compute, kv, hooks, classifiers = [
        round(each, 6) if each else NOTHING for each in seconds
    ]
    return LegTimes(
        phase="prefill" if report.phase == common_pb2.PHASE_PREFILL else "decode",
        request_id=report.request_id,
        seconds=whole,
        first=first,
        engine=let_go,
        form=form,
        queue=queue,
        room=room,
        compute=compute,
        kv=kv,
        kv_bytes=report.kv_bytes,
        hooks=hooks,
        classifiers=classifiers,
        prompt_tokens=report.prompt_tokens,
        cached_tokens=report.cached_tokens,
        tokens=report.tokens,
    )


def divide(
    whole: float, *, queue: float, legs: Iterable[LegTimes], read: float = 0.0, client: float = 0.0
) -> dict[Part, float]:
    """The seconds of each part. Together they are `whole`, unless the parts that were measured are
    longer. `legs`: of the runs that were not given up. Both legs of a run begin together, so a
    decode leg's time holds the time of its prefill leg.
    """
    prefills: list[LegTimes] = []
    decodes: list[LegTimes] = []
    for leg in legs:
        (prefills if leg.phase == "prefill" else decodes).append(leg)
    # A prefill leg's first output comes with the end of the hand-over.
    before_decode = sum(leg.first or leg.seconds for leg in prefills)
    told = sum(leg.form + leg.queue + leg.room + leg.compute for leg in prefills)
    # Decode's figure of the hand-over is the second choice: SGLang's holds its wait for prefill.
    measured = prefills if any(leg.kv_bytes for leg in prefills) else decodes
    kv = sum(leg.kv for leg in measured)
    whole_decode = sum(leg.engine or leg.seconds for leg in decodes)
    if not prefills:
        before_decode = min(kv, whole_decode)
    kv = max(0.0, before_decode - told) if told else min(kv, before_decode)
    judged = decodes or prefills
    parts: dict[Part, float] = {
        "read": read,
        "queue": queue,
        "prefill": before_decode - kv,
        "kv": kv,
        "decode": max(0.0, whole_decode - before_decode),
        "hooks": sum(leg.seconds for leg in judged) - max(whole_decode, before_decode),
        "client": client,
    }
    parts["hooks"] = max(0.0, parts["hooks"])
    parts["other"] = max(0.0, whole - sum(parts.values()))
    return parts
