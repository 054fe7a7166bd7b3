"""Every processor in one aggregated engine, of each kind, with everything at once that moves
positions: prompts prefilled in chunks, prefixes found in the cache, overlap scheduling, requests
beside each other, retractions (SGLang), cancels and failures.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import logits_cases
import logits_probe
import pytest
import tokenizers
from logits_cases import CASES, GRAMMARS, LENGTH, PROMPT, engine_answers

pytestmark = pytest.mark.timeout(500)
TOGETHER = 4
SALTS = ("acme", "other")
FAULTS = ("raise", "exit", "nan", "all", "shape", "answer", "slow")
LONG = tuple(5 + number % 200 for number in range(700))
VARIED = tuple(5 + number * 31 % 1900 for number in range(700))
SCORED = {"long": VARIED, "short": VARIED[:40], "alone": VARIED[:1]}
TOLERANCE = 1e-3
"""Between two programs that compute one model in float32; 6e-6 was seen."""
OPTIONS: dict[str, dict[str, Any]] = {
    "sim": {"step_ms": 1},
    "sglang": {
        "chunked_prefill_size": 256,
        "dtype": "float32",
        "max_total_tokens": 40_000,
        "server_args": json.dumps({"log_level": "warning"}),
    },
}


def asked(processors: list[Any], prompt: Any = PROMPT, **more: Any) -> dict[str, Any]:
    return {
        "token_ids": list(prompt),
        "processors": processors,
        "max_tokens": LENGTH,
        **more,
    }


def requests() -> dict[str, dict[str, Any]]:
    """By name; those without processors first."""
    named = {f"free-{number}": asked([]) for number in range(3)}
    named |= {f"case-{case.name}": asked(list(case.given)) for case in CASES}
    named |= {f"long-{case.name}": asked(list(case.given), LONG) for case in CASES[:4]}
    named |= {f"again-{case.name}": asked(list(case.given), later=True) for case in CASES}
    named |= {f"salt-{salt}": asked([], cache_salt=salt, later=True) for salt in SALTS}
    named |= {f"grammar-{each.name}": asked([each.given]) for each in GRAMMARS}
    named |= {
        f"together-{number}": asked(
            [["count_rows", {"request_id": number, "client_id": number + 1}]]
        )
        for number in range(TOGETHER)
    }
    for turn, later in (("score", False), ("rescore", True)):
        for name, prompt in SCORED.items():
            named[f"{turn}-{name}"] = asked(
                [["banned_tokens", {"token_ids": [VARIED[1]]}]],
                prompt,
                later=later,
                sampling={"prompt_logprobs": 5, "temperature": 1.5, "repetition_penalty": 1.3},
            )
    for number, prompt in enumerate((PROMPT, LONG)):
        ids = {"request_id": number, "client_id": number + 1}
        named[f"callback-{number}"] = asked([["count_calls", ids]], prompt)
    alone = ["allowed_tokens", {"token_ids": [300], "with_eos": False}]
    named["forbidden"] = asked([GRAMMARS[0].given, alone])
    for number, kind in enumerate(FAULTS):
        fault = ["fault", {"kind": kind, "at": number % 3}]
        named[f"fault-{kind}"] = asked([["probe", {"seed": 9}], fault])
    named |= {
        f"cancelled-{number}": asked([["probe", {"seed": number}]], cancel_after=3 + number % 5)
        for number in range(6)
    }
    return named


@pytest.fixture(scope="module", params=["sim", pytest.param("sglang", marks=pytest.mark.sglang)])
def answers(request: pytest.FixtureRequest, model_path: Path) -> dict[str, Any]:
    """What each request got, by name, and "states"."""
    variables = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "3"}
    result, log = engine_answers(
        request.param, model_path, requests(), variables=variables, options=OPTIONS[request.param]
    )
    retractions = len(re.findall(r"#retracted_reqs: [1-9]", log))
    told = {"engine": request.param, "retractions": retractions}
    return result.pop("answers") | result | told


@pytest.mark.promise("S3-096", "S1-052", "S3-097")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_processor_gives_the_tokens_it_gives_without_an_engine(
    answers: dict[str, Any], model_path: Path, case: logits_cases.Case
) -> None:
    expected = logits_cases.expected(case, model_path)
    assert len(expected) > 1
    for turn in ("case", "again"):
        assert answers[f"{turn}-{case.name}"] == {"token_ids": expected, "error": None}


@pytest.mark.promise("S1-052")
@pytest.mark.parametrize("case", CASES[:4], ids=lambda case: case.name)
def test_a_prompt_prefilled_in_chunks_changes_no_position(
    answers: dict[str, Any], model_path: Path, case: logits_cases.Case
) -> None:
    expected = logits_cases.expected(case, model_path, LONG)
    assert answers[f"long-{case.name}"] == {"token_ids": expected, "error": None}


def test_sglang_did_retract_requests_and_find_prompts_in_its_cache(
    answers: dict[str, Any],
) -> None:
    """Else the tests above would have shown less than they say."""
    again = [answers["cached"][f"again-{case.name}"] for case in CASES]
    if answers["engine"] == "sglang":
        assert answers["retractions"] > 0
        assert min(again) >= len(PROMPT) - 1
    else:
        assert (answers["retractions"], max(again)) == (0, 0)


@pytest.mark.promise("S6-155")
def test_prefixes_are_found_by_requests_of_the_same_salt_only(answers: dict[str, Any]) -> None:
    """The prompt is in the cache of those without a salt."""
    for salt in SALTS:
        assert answers["cached"][f"salt-{salt}"] == 0
        assert answers[f"salt-{salt}"] == answers["free-0"]


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.name)
def test_an_answer_is_a_sentence_of_its_grammar(
    answers: dict[str, Any], model_path: Path, grammar: logits_cases.Grammar
) -> None:
    answer = answers[f"grammar-{grammar.name}"]
    assert answer["error"] is None
    tokenizer = tokenizers.Tokenizer.from_file(str(model_path / "tokenizer.json"))
    text = tokenizer.decode(answer["token_ids"], skip_special_tokens=True)
    assert grammar.fits(text), text


@pytest.mark.promise("S2-071", "S2-074")
def test_a_callback_found_by_its_path_is_called_once_for_the_first_token(
    answers: dict[str, Any],
) -> None:
    """Whatever the chunks of the prompt. A retraction repeats a later position."""
    for number in range(2):
        answer = answers[f"callback-{number}"]
        assert (answer["error"], len(answer["token_ids"])) == (None, LENGTH)
        assert answer["token_ids"][0] == logits_probe.ONE_CALL
        again = {token - logits_probe.ONE_CALL for token in answer["token_ids"]}
        assert again == {0} if answers["engine"] == "sim" else max(again) <= 2


@pytest.mark.promise("S2-073")
def test_a_batched_callback_is_called_once_a_step_for_all_requests_that_name_it(
    answers: dict[str, Any],
) -> None:
    rows_of_a_call: set[int] = set()
    for number in range(TOGETHER):
        answer = answers[f"together-{number}"]
        assert (answer["error"], len(answer["token_ids"])) == (None, LENGTH)
        rows_of_a_call |= {token - logits_probe.ONE_ROW + 1 for token in answer["token_ids"]}
    assert rows_of_a_call <= set(range(1, TOGETHER + 1))
    assert TOGETHER in rows_of_a_call


@pytest.mark.promise("S6-331")
@pytest.mark.parametrize("name", SCORED)
def test_log_probabilities_of_a_prompt_are_the_models_own(
    answers: dict[str, Any], model_path: Path, name: str
) -> None:
    """Whatever its chunks, what samples after it, and what of it was in the cache."""
    prompt = SCORED[name]
    for turn in ("score", "rescore"):
        assert answers["cached"][f"{turn}-{name}"] == 0
        assert answers[f"{turn}-{name}"]["error"] is None
        chosen, top = answers["scores"][f"{turn}-{name}"]
        assert len(chosen) == len(top) == len(prompt) - 1
        assert {len(each) for each in top} <= {5}
        if answers["engine"] == "sim":
            assert (chosen, top) == tuple(answers["scores"][f"score-{name}"])
            continue
        rows = _log_softmax(model_path, prompt)
        for place, row in enumerate(rows[:-1]):
            assert chosen[place] == pytest.approx(row[prompt[place + 1]].item(), abs=TOLERANCE)
            values, token_ids = zip(*((value, token) for token, value in top[place]), strict=True)
            assert values == pytest.approx(row.topk(5).values.tolist(), abs=TOLERANCE)
            assert row[list(token_ids)].tolist() == pytest.approx(values, abs=TOLERANCE)
    assert {name for name, given in answers["scores"].items() if given} == {
        f"{turn}-{each}" for turn in ("score", "rescore") for each in SCORED
    }


@functools.cache
def _log_softmax(model_path: Path, prompt: tuple[int, ...]) -> Any:
    """What transformers say of the next token at each place, (places, vocabulary)."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([prompt])).logits[0], dim=-1)


def test_what_a_grammar_forbids_is_not_allowed_by_another(answers: dict[str, Any]) -> None:
    """Nothing sees that before the request runs. It ends with an error, and nothing outside the
    grammar's language is shown. A grammar of SGLang's own is always a client's.
    """
    code, message = answers["forbidden"]["error"]
    own = answers["engine"] == "sglang"
    assert code == ("contradictory_request" if own else "logits_processor_failed")
    assert answers["forbidden"]["token_ids"] == []
    assert "'allowed_tokens'" in message
    assert "no token" in message


@pytest.mark.parametrize("kind", FAULTS)
def test_a_faulty_processor_ends_its_own_request_with_a_typed_error(
    answers: dict[str, Any], kind: str
) -> None:
    answer = answers[f"fault-{kind}"]
    code, message = answer["error"]
    assert code == "logits_processor_failed"
    assert "'fault'" in message
    assert "secret" not in message
    assert len(answer["token_ids"]) == FAULTS.index(kind) % 3


@pytest.mark.promise("S1-050")
def test_requests_without_processors_agree_with_each_other(answers: dict[str, Any]) -> None:
    free = [answers[f"free-{number}"] for number in range(3)]
    assert free[0] == free[1] == free[2]
    assert len(free[0]["token_ids"]) > 1


@pytest.mark.promise("S3-090")
def test_nothing_is_left_of_any_processor_when_all_requests_have_ended(
    answers: dict[str, Any],
) -> None:
    assert answers["peak"] > 1
    assert answers["states"] == 0
