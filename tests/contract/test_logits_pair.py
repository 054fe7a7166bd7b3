"""Every processor through a prefill and a decode worker, of each engine."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import contract_hook
import jsonschema
import logits_cases
import pytest
from logits_cases import ARGUMENTS, CALLS, CASES, GRAMMARS
from logits_pair import start, tokens_of
from worker_pair import FAILED, FINISHED, Pair

from tandem.v1 import common_pb2

pytestmark = pytest.mark.timeout(400)
TOGETHER = 7


@pytest.mark.promise("S3-096", "S1-051", "S3-088")
@pytest.mark.parametrize("first", range(0, len(CASES), TOGETHER))
async def test_every_processor_gives_the_tokens_it_gives_without_an_engine(
    pair: Pair, model_path: Path, first: int
) -> None:
    free_alone = await start(pair)
    await pair.finished(free_alone)
    cases = CASES[first : first + TOGETHER]
    sequences = [await start(pair, *case.given) for case in cases]
    free = [await start(pair) for _ in range(2)]
    for sequence in (*sequences, *free):
        await pair.finished_well(sequence)
    for case, sequence in zip(cases, sequences, strict=True):
        assert tokens_of(sequence) == logits_cases.expected(case, model_path), case.name
    assert [tokens_of(each) for each in free] == [tokens_of(free_alone)] * 2


async def test_a_bias_on_half_of_the_vocabulary_is_the_same_in_both_phases(
    pair: Pair, model_path: Path
) -> None:
    token_ids = array("I", range(0, logits_cases.model(model_path).vocabulary, 2))
    values = array("f", ((token_id * 7919) % 1000 / 100 for token_id in token_ids))
    bias = common_pb2.EmbeddingBias(token_ids=token_ids.tobytes(), values=values.tobytes())
    sequence = await start(pair, *CASES[0].given, bias=bias)
    await pair.finished_well(sequence)
    tokens = tokens_of(sequence)
    assert tokens == logits_cases.expected(CASES[0], model_path, bias=bias)
    assert tokens != logits_cases.expected(CASES[0], model_path)


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.name)
async def test_an_answer_is_a_sentence_of_its_grammar(
    pair: Pair, grammar: logits_cases.Grammar
) -> None:
    sequence = await start(pair, grammar.given)
    await pair.finished_well(sequence)
    assert grammar.fits(sequence.text), sequence.text


@pytest.mark.promise("S1-300", "S1-301")
@pytest.mark.parametrize("triggers", [[], ["<|im_start|>"]], ids=["forced", "in free text"])
async def test_the_arguments_of_a_call_validate_and_hooks_see_where_it_begins(
    pair: Pair, triggers: list[str]
) -> None:
    """In free text a bias makes the model begin a call with the first token, which is prefill's."""
    tagged = ("tagged", {**CALLS, "triggers": triggers})
    bias = ("bias", {"bias": {"3": 90.0}})
    sequence = await start(pair, tagged, bias, shown=[3], behaviour=contract_hook.UPPER)
    await pair.finished_well(sequence)
    begin, end = "<|IM_START|><F>", "</F>"
    assert sequence.text.startswith(begin)
    assert sequence.text.endswith(end)
    arguments = sequence.text.removeprefix(begin).removesuffix(end).lower()
    jsonschema.validate(json.loads(arguments), ARGUMENTS)
    assert len(pair.prefill.told.of(sequence.number, "verdict")) == 1


@pytest.mark.parametrize(("kind", "at"), [("raise", 0), ("nan", 0), ("slow", 1), ("all", 3)])
async def test_a_faulty_processor_fails_its_request_and_no_other(
    pair: Pair, model_path: Path, kind: str, at: int
) -> None:
    bad = await start(pair, ("probe", {}), ("fault", {"kind": kind, "at": at}))
    good = await start(pair, *CASES[0].given)
    legs = await pair.finished(good)
    assert [leg.outcome for leg in legs] == [FINISHED, FINISHED]
    assert tokens_of(good) == logits_cases.expected(CASES[0], model_path)
    stream = pair.prefill if at == 0 else pair.decode
    closed = await stream.closed(bad.number)
    assert (closed.outcome, closed.error.code) == (FAILED, "logits_processor_failed")
    assert not closed.retryable
    assert len(tokens_of(bad)) <= at
    await pair.cancel(bad)
    await pair.decode.closed(bad.number)


@pytest.mark.parametrize(
    ("given", "says", "param"),
    [
        ((("nobody", {}),), "unknown logits processor 'nobody'", "[0]"),
        ((("bias", {}),), "'bias': missing a required argument: 'bias'", "[0]"),
        ((("max_new_tokens", {"count": -1}),), "'max_new_tokens', argument 'count'", "[0]"),
        ((("choice", {"token_ids": [[99999]]}),), "99999 is outside the vocabulary", "[0]"),
        ((("regex", {"pattern": "(a"}),), "unclosed group", "[0]"),
        ((("probe", {}), ("regex", {"pattern": "a"})), "must be the first", "[1]"),
        ((("probe", {}),) * 17, "at most 16", ""),
    ],
)
async def test_both_phases_refuse_a_bad_request_and_say_what_is_wrong(
    pair: Pair, given: Any, says: str, param: str
) -> None:
    for closed in await pair.finished(await start(pair, *given)):
        assert (closed.outcome, closed.error.code) == (FAILED, "invalid_request")
        assert says in closed.error.message
        assert closed.error.param == "logits_processors" + param


@pytest.mark.promise("S3-091")
async def test_each_of_n_outputs_has_state_of_its_own(pair: Pair, model_path: Path) -> None:
    counted = next(case for case in CASES if case.name == "counted")
    sequences = [await start(pair, *counted.given, output_index=index) for index in range(4)]
    for sequence in sequences:
        await pair.finished(sequence)
    expected = logits_cases.expected(counted, model_path)
    assert [tokens_of(sequence) for sequence in sequences] == [expected] * 4
