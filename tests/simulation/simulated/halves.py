"""Requests whose phases run apart: the client's side of them, and what they must come to."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from simulated.loop import BrokenRule
from tandem.errors import VoucherError
from tandem.v1 import common_pb2
from tandem_router.vouchers import KEY_BYTES

if TYPE_CHECKING:
    from simulated.frontend_process import Answer
    from simulated.script import Judged, Request

KEY = b"k" * KEY_BYTES
"""With which all routers sign."""
LEASES = (3.0, 8.0)
"""For so many seconds prefill keeps what it has parked."""
Spoiling = Literal["", "voucher", "task"]


@dataclass(slots=True, frozen=True)
class Half:
    """What makes a generation-only request of one."""

    after: float
    """Seconds from the end of the context-only one until it is made."""
    spoilt: Spoiling = ""
    """It brings an altered voucher, or is another request than the first half was."""
    voucher: bytes = b""
    place: int = 1
    """Which of those that go on from the same KV it is."""


def draw(source: random.Random, requests: Sequence[Request], lease: float) -> None:
    """Let the phases of some requests run apart: most go on in time and once, some too late, twice,
    or with what is not theirs.
    """
    for request in requests:
        if source.random() < 0.5 and _may_run_apart(request.judged):
            request.prompts = request.n = 1
            request.want_report = request.slow = False
            request.want_ids = True
            request.stop_at = request.leaves_after = None
            request.word_at, request.poison = None, ""
            in_time, late = source.random() * lease / 4, lease + 1.0
            kinds: list[tuple[Spoiling, float]] = [("", in_time), ("", in_time), ("", in_time)]
            kinds += [("", late), ("voucher", in_time), ("task", in_time)]
            count = source.choice((1, 1, 2))
            drawn = enumerate(source.choices(kinds, k=count), 1)
            request.seconds = [Half(after, spoilt, place=place) for place, (spoilt, after) in drawn]


def _may_run_apart(judged: Judged) -> bool:
    """Whether prefill judges the first token, where anybody does."""
    return not judged.classifier and (judged.prefill_hook or not judged.hook)


def altered(voucher: bytes) -> bytes:
    """With more time, and the signature that it had."""
    signed = common_pb2.SignedVoucher.FromString(voucher)
    content = common_pb2.Voucher.FromString(signed.voucher)
    content.expires_unix_ms += 1000
    signed.voucher = content.SerializeToString()
    return signed.SerializeToString()


def judge_first(answer: Answer) -> None:
    """A context-only request leaves its first token, unless prefill's hook ended it. Raises
    BrokenRule.
    """
    request = answer.request
    if answer.error is not None or answer.lost:
        return
    end = answer.ends.get(0)
    hook = request.run(0, 0, 0).prefill_hook
    if end is None or answer.rows or not end.voucher:
        if end is None or answer.rows or hook != "terminate" or not end.withheld:
            raise BrokenRule(f"request {request.number} is to leave KV: {answer.rows} {end}")
        return
    signed = common_pb2.SignedVoucher.FromString(end.voucher)
    left = list(common_pb2.Voucher.FromString(signed.voucher).first_token_ids)
    if hook != "emit" or left != [request.token(0, 0, 0, 0)]:
        raise BrokenRule(f"request {request.number} left {left}, and its hook: {hook}")


def judge_seconds(answers: list[Answer], *, lease: float, calm: bool) -> None:
    """All generation-only requests of one prompt. `calm`: nothing happened to any part of the
    deployment. Raises BrokenRule.
    """
    good = []
    for answer in answers:
        half = answer.half
        assert half is not None
        finished = answer.error is None and not answer.lost
        good += [answer] * finished
        if finished and _is_spoilt(half, lease):
            raise BrokenRule(f"request {answer.request.number} goes on, and is {half}")
        refused = isinstance(answer.error, VoucherError)
        if calm and not finished and not refused:
            raise BrokenRule(f"request {answer.request.number}: {answer.error}")
    if len(good) > 1:
        raise BrokenRule(f"request {answers[0].request.number} used the same KV twice")
    # Of two at once one may be refused for the other, which then is refused itself.
    in_time = [each for each in answers if each.half and not _is_spoilt(each.half, lease)]
    if calm and answers and in_time == answers and not good:
        raise BrokenRule(f"request {answers[0].request.number} left KV that nobody can use")


def _is_spoilt(half: Half, lease: float) -> bool:
    return bool(half.spoilt) or half.after > lease
