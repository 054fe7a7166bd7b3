"""What a prefill worker says of a prompt, next to what the pair says of the prompt's parts."""

from __future__ import annotations

import contract_hook
import pytest
from worker_pair import Pair, Sequence_

pytestmark = pytest.mark.timeout(400)
PROMPT = [5 + place * 31 % 1900 for place in range(1100)]
PLACES = (1, 2, 255, 256, 257, 1023, 1024, 1025)
"""SGLang prefills 1024 tokens at once on CPUs, and scores 256 of them at once."""
TOLERANCE = 0.1
"""Of one value, in natural logarithms: SGLang computes in bfloat16, and another place of a chunk
rounds otherwise."""
WIDTH = 20
Row = list[tuple[int, float]]


async def _run(pair: Pair, prompt: list[int], **fields: object) -> Sequence_:
    return await pair.run(task={"prompt_text": "", "prompt_token_ids": prompt}, **fields)


def _prompt(sequence: Sequence_) -> tuple[list[int], list[float], list[Row]]:
    """Token ids, values and alternatives of all its parts; the first token has no meaning."""
    token_ids: list[int] = []
    chosen: list[float] = []
    top: list[Row] = []
    for part in sequence.prompt_logprobs:
        assert part.place == len(token_ids)
        token_ids += part.token_id
        chosen += part.logprob
        pairs = list(zip(part.top_token_id, part.top_logprob, strict=True))
        width = part.top_count
        top += [pairs[width * i : width * (i + 1)] for i in range(len(part.token_id))]
    return token_ids, chosen, top


@pytest.mark.promise("S6-331")
async def test_each_token_of_a_prompt_has_what_the_part_before_it_says_of_it(pair: Pair) -> None:
    """Also where all of it is in the cache, by the second time."""
    asked = {"prompt_logprobs": WIDTH, "logprobs": 1, "max_tokens": 2}
    first = await _run(pair, PROMPT, **asked)
    again = await _run(pair, PROMPT, **asked)
    assert _prompt(first) == _prompt(again)
    token_ids, chosen, top = _prompt(first)
    assert token_ids == PROMPT
    assert [part.top_count for part in first.logprobs] == [1] * len(first.logprobs)
    for place in PLACES:
        part = await _run(pair, PROMPT[:place], logprobs=WIDTH, max_tokens=1)
        (said,) = part.logprobs
        expected = dict(zip(said.top_token_id, said.top_logprob, strict=True))
        found = dict(top[place])
        both = expected.keys() & found.keys()
        assert len(both) >= WIDTH - 3
        for token_id in both:
            assert found[token_id] == pytest.approx(expected[token_id], abs=TOLERANCE)
        assert [value for _, value in top[place]] == sorted(found.values(), reverse=True)
        if token_ids[place] in found:
            assert chosen[place] == found[token_ids[place]]
        else:
            assert chosen[place] <= min(found.values())


@pytest.mark.promise("S6-331")
async def test_those_that_prompts_beside_each_other_ask_for_are_each_ones_own(pair: Pair) -> None:
    """In one batch of the engine, with a hook in both phases; the others get none."""
    alone = [_prompt(await _run(pair, PROMPT[at : at + 50], prompt_logprobs=3)) for at in (0, 50)]
    sequences = [
        await pair.start(
            task={"prompt_text": "", "prompt_token_ids": PROMPT[at : at + 50]},
            behaviour=contract_hook.UPPER,
            output_index=index,
            **asked,
        )
        for index, asked in enumerate(({"prompt_logprobs": 3}, {"logprobs": 5}, {}))
        for at in (0, 50)
    ]
    for sequence in sequences:
        await pair.finished_well(sequence)
    for sequence, (token_ids, chosen, top) in zip(sequences[:2], alone, strict=True):
        found = _prompt(sequence)
        assert found[0] == token_ids
        assert found[1] == pytest.approx(chosen, abs=TOLERANCE)
        assert [len(row) for row in found[2]] == [len(row) for row in top]
        assert sequence.logprobs == []
    assert all(_prompt(sequence) == ([], [], []) for sequence in sequences[2:])
    assert all(sequence.logprobs for sequence in sequences[2:4])
