"""Processors and forms on two tensor-parallel ranks of one engine, of which one alone does
otherwise: both end the same requests, and go on with the same tokens.

Real SGLang on the CPU. Where ranks disagree, the engine ends, or waits until the time limit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from grammar_forms import AT, form
from logits_cases import engine_answers

pytestmark = [pytest.mark.promise("S5-391"), pytest.mark.sglang, pytest.mark.timeout(500)]
LENGTH = 12
TOKEN, OTHER, EOS = 300, 301, 1
FAULTS = ("raise", "nan", "slow", "build")
RANKS = (0, 1)
FORM_FAULTS = {
    "fill": ("raises", "slow", "nothing"),
    "accept": ("raises", "slow", "ends"),
}
"""Where one is, and what it does, after AT tokens."""
OPTIONS = {"tensor_parallel": 2, "dtype": "float32", "max_total_tokens": 20_000}


def asked(*processors: Any, **more: Any) -> dict[str, Any]:
    prompt = [5 + number % 200 for number in range(20)]
    return {"token_ids": prompt, "processors": processors, "max_tokens": LENGTH, **more}


def fault(kind: str, rank: int, at: int = 3, **more: Any) -> list[Any]:
    return ["rank_fault", {"kind": kind, "rank": rank, "at": at, "token": TOKEN, **more}]


def requests() -> dict[str, dict[str, Any]]:
    named = {"free": asked(), "free-seeded": asked(sampling={"temperature": 1.2, "seed": 7})}
    named["steered"] = asked(fault("none", 0))
    for rank in RANKS:
        named |= {f"{kind}-{rank}": asked(fault(kind, rank)) for kind in FAULTS}
        named[f"first-{rank}"] = asked(fault("raise", rank, at=0))
        named[f"late-{rank}"] = asked(["probe", {"seed": 3}], fault("nan", rank))
        named[f"other-{rank}"] = asked(fault("other", rank, instead=OTHER))
        named[f"ends-{rank}"] = asked(fault("other", rank, instead=EOS))
    named["form"] = asked(form("free", "good", 0))
    for rank in RANKS:
        for where, kinds in FORM_FAULTS.items():
            named |= {f"{where}-{kind}-{rank}": asked(form(where, kind, rank)) for kind in kinds}
        named[f"fill-other-{rank}"] = asked(form("fill", "other", rank))
        named[f"compile-slow-{rank}"] = asked(form("compile", "slow", rank))
        refused = asked(form("compile", "raises", rank))
        named |= {f"compile-raises-{rank}": refused, f"compiled-{rank}": {**refused, "later": True}}
    return named | {
        f"{name}-later": {**named[name], "later": True} for name in ("free", "steered", "form")
    }


@pytest.fixture(scope="module")
def answers(model_path: Path) -> dict[str, Any]:
    """What each request got, by name, and "states"."""
    further = {"grammar_faults": "grammar_faults:Loads"}
    result, _ = engine_answers("sglang", model_path, requests(), options=OPTIONS, further=further)
    return {**result["answers"], "states": result["states"]}


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("kind", FAULTS)
def test_what_fails_on_one_rank_ends_its_own_request_on_all(
    answers: dict[str, Any], kind: str, rank: int
) -> None:
    answer = answers[f"{kind}-{rank}"]
    code, message = answer["error"]
    assert code == "logits_processor_failed"
    assert "'rank_fault'" in message
    assert "secret" not in message
    assert ("on another rank" in message) == (rank == 1 and kind != "nan")
    assert answer["token_ids"] == ([] if kind == "build" else [TOKEN] * 3)


@pytest.mark.parametrize("rank", RANKS)
def test_it_may_fail_at_its_first_token_or_where_processors_read_tokens(
    answers: dict[str, Any], rank: int
) -> None:
    assert answers[f"first-{rank}"]["token_ids"] == []
    assert answers[f"first-{rank}"]["error"][0] == "logits_processor_failed"
    assert len(answers[f"late-{rank}"]["token_ids"]) == 3
    assert answers[f"late-{rank}"]["error"][0] == "logits_processor_failed"


@pytest.mark.parametrize("rank", RANKS)
def test_ranks_that_edit_otherwise_go_on_with_the_first_ranks_tokens(
    answers: dict[str, Any], rank: int
) -> None:
    other = answers[f"other-{rank}"]
    first = OTHER if rank == 0 else TOKEN
    assert other == {"token_ids": [TOKEN] * 3 + [first] + [TOKEN] * (LENGTH - 4), "error": None}
    ended = answers[f"ends-{rank}"]
    assert ended["error"] is None
    assert len(ended["token_ids"]) in ((3, 4) if rank == 0 else (LENGTH,))


@pytest.mark.promise("S5-444")
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize(
    ("where", "kind"), [(where, kind) for where, kinds in FORM_FAULTS.items() for kind in kinds]
)
def test_a_form_that_fails_on_one_rank_ends_its_own_request_on_all(
    answers: dict[str, Any], where: str, kind: str, rank: int
) -> None:
    answer = answers[f"{where}-{kind}-{rank}"]
    assert len(answer["token_ids"]) == AT
    code, message = answer["error"]
    assert code == ("logits_processor_failed" if kind == "ends" else "contradictory_request")
    assert message.startswith("the ranks" if kind == "ends" else "the answer's form")
    assert "secret" not in message
    assert ("on another rank" in message) == (rank == 1 and kind != "ends")


@pytest.mark.promise("S5-444")
@pytest.mark.parametrize("rank", RANKS)
def test_a_form_that_one_rank_cannot_compile_ends_on_all_and_is_compiled_anew(
    answers: dict[str, Any], rank: int
) -> None:
    answer = answers[f"compile-raises-{rank}"]
    assert answer["token_ids"] == []
    code, message = answer["error"]
    assert code == "logits_processor_failed"
    assert "could not be compiled" in message
    assert ("on another rank" in message) == (rank == 1)
    assert answers[f"compiled-{rank}"] == answers["form"]
    assert answers[f"compile-slow-{rank}"] == answers["form"]


@pytest.mark.promise("S5-444")
@pytest.mark.parametrize("rank", RANKS)
def test_ranks_whose_forms_allow_other_tokens_go_on_alike(
    answers: dict[str, Any], rank: int
) -> None:
    """The token that both take is one that the form allows, or it ends the request after that."""
    answer = answers[f"fill-other-{rank}"]
    if answer["error"] is None:
        assert len(answer["token_ids"]) == LENGTH
    else:
        assert answer["error"][0] == "contradictory_request"
        assert len(answer["token_ids"]) == AT + 1


def test_all_other_requests_are_what_they_would_have_been(answers: dict[str, Any]) -> None:
    assert answers["free"] == answers["free-later"]
    assert answers["steered"] == answers["steered-later"]
    assert answers["form"] == answers["form-later"]
    assert answers["steered"] == {"token_ids": [TOKEN] * LENGTH, "error": None}
    for name in ("free", "free-seeded", "form"):
        assert answers[name]["error"] is None
        assert len(answers[name]["token_ids"]) > 1
    assert answers["states"] == 0
