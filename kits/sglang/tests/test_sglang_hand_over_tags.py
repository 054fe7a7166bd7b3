"""The tag of SGLang's hand-overs, in SGLang's own metadata."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from sglang_sides import HERE, answers

from tandem.engine.base import Ending
from tandem.engine.kv_tag import REFUSED
from tandem.errors import ConfigError, KvCorruptError
from tandem_sglang import chunks
from tandem_sglang.options import parse

pytestmark = pytest.mark.timeout(300)


@cache
def _said() -> dict[str, Any]:
    return answers(HERE / "sglang_hand_over_tags.py")


@pytest.mark.promise("S5-690", "S6-381")
@pytest.mark.parametrize(
    ("case", "outcome"),
    [
        ("good", "answered"),
        ("good, bytes", "answered"),
        ("good, two ranks", "answered"),
        ("prompt", f"{REFUSED} of another prompt"),
        ("salt", f"{REFUSED} of another cache salt"),
        ("adapter", f"{REFUSED} of another LoRA adapter"),
        ("model", f"{REFUSED} of another model or layout"),
        ("room", f"{REFUSED} of another hand-over"),
        ("older offer", f"{REFUSED} of an earlier use of the pages"),
        ("given away", f"{REFUSED} of an earlier use of the pages"),
        ("given away, two ranks", f"{REFUSED} of an earlier use of the pages"),
        ("torn", "answered"),  # the bytes are not looked at
        ("torn, bytes", f"{REFUSED} damaged, incomplete or not there"),
        ("prompt, off", "answered"),
        ("warm-up", "answered"),
    ],
)
def test_decode_answers_from_the_kv_of_its_own_request_alone(case: str, outcome: str) -> None:
    assert _said()["what_becomes_of_each"][case] == outcome


@pytest.mark.promise("S5-690")
def test_it_is_looked_at_when_all_has_come_and_refused_for_good() -> None:
    assert _said()["when_it_is_looked_at"] == ["True", f"{REFUSED} of another cache salt", "True"]


def test_a_hand_over_that_is_over_is_held_by_nothing() -> None:
    assert _said()["what_is_left_when_it_is_over"] == ["answered", "None"]


@pytest.mark.promise("S5-694")
@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "Decode transfer failed for request rank=0 decode_req.req.rid='x' with exception "
            f"KVTransferError(bootstrap_room=7): {REFUSED} of another prompt",
            f"Decode transfer failed: {REFUSED} of another prompt",
        ),
        ("KV checksum mismatch", "KV checksum mismatch"),
        (
            "Metadata corruption detected - bootstrap_room mismatch",
            "Metadata corruption detected - bootstrap_room mismatch",
        ),
    ],
)
def test_what_sglang_says_of_it_is_corrupt_kv_and_may_be_tried_again(
    message: str, said: str
) -> None:
    reason = {"type": "abort", "message": message, "status_code": 500}
    ended = chunks.end_of({"finish_reason": reason})
    assert ended is not None
    assert (ended.ending, ended.retryable) == (Ending.FAILED, True)
    assert isinstance(ended.error, KvCorruptError)
    assert ended.error.message == said


@pytest.mark.parametrize(
    "beside",
    [
        {"decode_tensor_parallel": 2},
        {"pipeline_parallel": 2},
        {"decode_data_parallel": 2},
    ],
    ids=str,
)
def test_bytes_are_not_summed_where_ranks_have_other_parts(beside: dict[str, Any]) -> None:
    assert parse(beside).kv_check == "tag"
    with pytest.raises(ConfigError, match="kv_check"):
        parse({**beside, "kv_check": "bytes"})
