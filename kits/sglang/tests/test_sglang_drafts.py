"""What workers say of a draft, whose KV is handed over beside the model's own: it has to agree."""

from __future__ import annotations

from typing import Any

import pytest
import sglang_described
from sglang_settings import MODEL

from tandem.engine import model_files
from tandem.engine.base import Role

pytestmark = pytest.mark.promise("S5-462")
EAGLE = {
    "speculative_algorithm": "EAGLE",
    "speculative_draft_model_path": None,
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "enable_multi_layer_eagle": False,
}


def beside(role: Role = Role.PREFILL, **arguments: Any) -> str:
    return sglang_described.fingerprint(role, **arguments).kv_beside


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_a_draft_is_named_with_what_its_kv_follows_from(role: Role) -> None:
    said = "EAGLE speculative_num_steps=3 speculative_eagle_topk=1"
    assert beside(role, **EAGLE) == said


def test_a_draft_model_is_named_by_its_weights() -> None:
    """Its folder may be another one in each phase."""
    revision = model_files.revision(MODEL)
    of_folder = EAGLE | {"speculative_draft_model_path": str(MODEL)}
    assert f"speculative_draft_model={revision} " in beside(**of_folder)
    of_name = EAGLE | {"speculative_draft_model_path": "drafts/eagle"}
    assert "speculative_draft_model=drafts/eagle " in beside(**of_name)


@pytest.mark.parametrize("algorithm", [None, "NGRAM"])
def test_what_keeps_no_kv_is_not_mentioned(algorithm: str | None) -> None:
    assert not beside(**EAGLE | {"speculative_algorithm": algorithm})


def test_an_engine_that_hands_nothing_over_says_nothing_of_it() -> None:
    assert not beside(Role.AGGREGATED, **EAGLE)


@pytest.mark.parametrize(
    "other",
    [
        {"speculative_algorithm": "EAGLE3"},
        {"speculative_eagle_topk": 4},
        {"speculative_num_steps": 5},
        {"speculative_draft_kv_cache_dtype": "fp8_e4m3"},
        {"enable_multi_layer_eagle": True},
    ],
)
def test_drafts_whose_kv_differs_are_told_apart(other: dict[str, Any]) -> None:
    assert beside(**EAGLE) != beside(**EAGLE | other)


def test_what_verification_decides_is_not_resumed() -> None:
    def cannot(**arguments: Any) -> set[str]:
        described = sglang_described.described(Role.DECODE, **arguments)
        return set(described.cannot_resume)

    penalties = {"frequency_penalty", "presence_penalty", "repetition_penalty"}
    assert cannot(speculative_algorithm="NGRAM") == {*penalties, "seed"}
    assert cannot() == set()
