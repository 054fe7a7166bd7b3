"""Answers with calls: which may be given, for every way to ask for them."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import jsonschema
import numpy
import pytest
import sglang_sides
import tokenizers
from logits_bench import EOS, REGISTRY
from tagged_uses import (
    HERMES,
    SPELLED,
    USES,
    VOCABULARY,
    Answer,
    Args,
    X,
    call,
    encoded,
    save_model,
)

from tandem.errors import InvalidRequestError
from tandem.logits import Model, TokenHistory
from tandem.logits.spec import LogitsProcessorEntry, LogitsProcessorSpec
from tandem.logits.state import RequestLogits

pytestmark = pytest.mark.promise("S1-301")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("tools")
    save_model(folder)
    path = folder / "tokenizer.json"
    return Model(vocabulary=VOCABULARY, eos_token_ids=[EOS], tokenizer_path=path)


@pytest.fixture(scope="session")
def encode(model: Model) -> Callable[[Answer], list[int]]:
    return functools.partial(encoded, tokenizers.Tokenizer.from_file(str(model.tokenizer_path)))


def state_of(args: Args, model: Model) -> RequestLogits:
    spec = LogitsProcessorSpec((LogitsProcessorEntry("tagged", args),))
    return RequestLogits.create(REGISTRY, spec, model)


def refused_at(args: Args, token_ids: Sequence[int], model: Model) -> int | None:
    """The first token that may not come there; None: all may, and then the end."""
    state = state_of(args, model)
    for place, token in enumerate([*token_ids, EOS]):
        row = numpy.zeros(model.vocabulary, dtype=numpy.float32)
        assert state.apply(TokenHistory([5], token_ids[:place]), row) is None
        if not numpy.isfinite(row[token]):
            return place
    return None


@pytest.mark.parametrize("use", USES)
def test_an_answer_is_what_was_asked_for_and_nothing_else(
    use: str, model: Model, encode: Callable[[Answer], list[int]]
) -> None:
    args, fits, breaks = USES[use]
    for answer in fits:
        assert refused_at(args, encode(answer), model) is None, answer
    for answer in breaks:
        assert refused_at(args, encode(answer), model) is not None, answer


def test_a_special_token_is_never_spelled_where_a_call_must_come(
    model: Model, encode: Callable[[Answer], list[int]]
) -> None:
    """A model that is made to call must do it as it learned to."""
    row = numpy.zeros(model.vocabulary, dtype=numpy.float32)
    assert state_of(HERMES, model).apply(TokenHistory([5], []), row) is None
    assert numpy.flatnonzero(numpy.isfinite(row)).tolist() == encode("<tool_call>")


@pytest.mark.parametrize("seed", range(8))
def test_whatever_a_model_prefers_its_arguments_validate(seed: int, model: Model) -> None:
    """The calls of an answer that random rows make, read by what stands around them."""
    wanted = {
        "type": "object",
        "properties": {"a": {"enum": ["b", 7]}, "c": {"type": "boolean"}},
        "required": ["a", "c"],
        "additionalProperties": False,
    }
    args = {
        "calls": [{"begin": "<f>", "schema": wanted, "end": "</f>"}],
        "separator": "\n",
        "triggers": ["<f>"] * (seed % 2),
    }
    state = state_of(args, model)
    encoder = tokenizers.Tokenizer.from_file(str(model.tokenizer_path))
    generated: list[int] = encoder.encode("<f>", add_special_tokens=False).ids * (seed % 2)
    rng = numpy.random.default_rng(seed)
    while generated[-1:] != [EOS] and len(generated) < 60:
        row = rng.normal(size=model.vocabulary).astype(numpy.float32)
        assert state.apply(TokenHistory([5], generated), row) is None
        generated.append(int(row.argmax()))
    found = re.findall("<f>(.*?)</f>", encoder.decode(generated))
    assert found
    for arguments in found:
        jsonschema.validate(json.loads(arguments), wanted)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (
            {"calls": [call("f", "x", ""), {"schema": {"type": "x"}, "begin": "g"}]},
            "calls[1].schema",
        ),
        ({"calls": [call("<f>", "x", "")], "answer": {"type": "x"}}, "answer: Invalid type: x"),
        ({"calls": [call("f", "x", "")], "answer": {"enum": [False]}}, "look alike"),
        ({"calls": [call("[", "x", "")], "answer": {"type": ["array", "null"]}}, "look alike"),
        ({"calls": [call("f", "x", "<|im_end|>")]}, "a token that ends the answer"),
        ({"calls": [call("f", "x", "")], "before": "a<|im_end|>"}, "a token that ends the answer"),
    ],
)
def test_what_cannot_be_is_named(args: Args, says: str, model: Model) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        state_of(args, model)
    assert says in refusal.value.message


def test_the_most_calls_are_compiled_and_one_more_is_refused(model: Model) -> None:
    most = [call(f"<f{n}>", "x", "</f>") for n in range(1024)]
    assert state_of({"calls": most, "triggers": ["<f"]}, model)
    with pytest.raises(InvalidRequestError, match=r"argument .calls.*<= 1024"):
        state_of({"calls": most * 10}, model)


@pytest.mark.sglang
@pytest.mark.timeout(300)
def test_xgrammar_takes_the_same_answers_but_does_not_look_at_tokens(tmp_path: Path) -> None:
    """SGLang's backend by that name, given what the process that compiles forms writes for it."""
    save_model(tmp_path)
    script = Path(__file__).with_name("structural_tags_side.py")
    seen = sglang_sides.answers(script, str(tmp_path))
    assert seen["refused"] == []
    assert seen["taken"] == [
        ["calls must come", list(SPELLED)],
        ["calls may come", "a</tool_call>"],
        ["a token within a trigger", f"a[TOOL_CALLS]f{X}."],
    ]
    assert seen["wrong"] == 'calls[0].schema: Unsupported type "x"'
    assert seen["ends"] == "a text holds a token that ends the answer"
