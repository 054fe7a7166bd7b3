"""What a client's fields say against each other, through a whole stack: 400 and never 5xx, and
`min_tokens` held in whatever is answered.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx
import pytest
from one_case import one_case
from stacks import metric_sum

from tandem.engine.model_files import eos_token_ids
from tandem.logits.ready import READY
from tandem.testing.sim_stack import SimStack, sim_stack

PATIENCE = 60.0
AT_ONCE = 16
WORD = 300
"""A token that the sim engine is made to favour."""
EXAMPLES: dict[str, dict[str, Any]] = {
    "allowed_tokens": {"token_ids": [70, 71, 300]},
    "banned_sequences": {"sequences": [[70, 71], [300]]},
    "banned_tokens": {"token_ids": [70, 300]},
    "bias": {"bias": {"77": 30.0}},
    "choice": {"texts": ["yes", "no, never"]},
    "ebnf": {"grammar": 'root ::= "a" | "bc" root'},
    "forced_prefix": {"text": "Sure"},
    "forced_sequence": {"token_ids": [70, 71, 72]},
    "json_schema": {"schema": {"enum": ["red", "green"]}},
    "max_new_tokens": {"count": 4},
    "min_new_tokens": {"count": 6},
    "no_repeat_ngram": {"size": 1},
    "regex": {"pattern": "(yes|no) [0-9]{3}"},
    "repetition_penalty": {"penalty": 1.5},
    "stop_at_sentence": {"after": 3, "marks": "aeiou"},
    "tagged": {"calls": [{"begin": "<f>", "schema": {"enum": [1, 22]}, "end": "</f>"}]},
    "temperature_schedule": {"points": [[0, 1.0], [10, 0.5]]},
    "thinking_budget": {"budget": 2, "end_text": "</think>"},
    "watermark": {"key": "k"},
}
NODE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
    "required": ["value", "next"],
    "additionalProperties": False,
}
LIST = {"$defs": {"node": NODE}, "$ref": "#/$defs/node"}
FORMS: dict[str, dict[str, Any]] = {
    "json_object": {"response_format": {"type": "json_object"}},
    "json_schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"type": "object"}},
        }
    },
    "guided_json": {"guided_json": {"enum": ["red", "green"]}},
    "guided_regex": {"guided_regex": "[ab]{2}|c"},
    "guided_choice": {"guided_choice": ["yes", "no, never"]},
    "guided_grammar": {"guided_grammar": 'root ::= "a" | "bc" root'},
    "structured_outputs": {"structured_outputs": {"regex": "yes|no"}},
    "regex": {"regex": "[0-9]"},
    "ebnf": {"ebnf": 'root ::= "a"'},
}
CHAT = {"messages": [{"role": "user", "content": "Why?"}]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
STRICT = {"type": "function", "function": TOOL["function"] | {"strict": True}}
CALLS: dict[str, dict[str, Any]] = {
    "required": {"tools": [TOOL], "tool_choice": "required"},
    "named": {
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
    },
    "strict": {"tools": [STRICT]},
}


@pytest.fixture(scope="module")
def stack() -> Iterator[SimStack]:
    settings = {"frontend": {"client_logits_processors": sorted(READY), "model_family": "qwen3"}}
    with sim_stack(settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def end(stack: SimStack) -> int:
    return min(eos_token_ids(stack.stack.options.model_path))


def processors(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "args": EXAMPLES[name]} for name in names]


async def answers(
    stack: SimStack, bodies: Sequence[Mapping[str, Any]]
) -> list[tuple[int, dict[str, Any]]]:
    """Of each body its status and its answer, some at a time."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def answer(client: httpx.AsyncClient, body: Mapping[str, Any]) -> tuple[int, Any]:
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        whole = {"model": stack.model, "max_tokens": 8} | body
        if "messages" not in body:
            whole = {"prompt": "The answer is"} | whole
        async with turns:
            got = await client.post(path, json=whole)
        return got.status_code, got.json()

    async with httpx.AsyncClient(base_url=stack.url, timeout=PATIENCE) as client:
        return await asyncio.gather(*(answer(client, body) for body in bodies))


async def one(stack: SimStack, **body: Any) -> tuple[int, dict[str, Any]]:
    (found,) = await answers(stack, [body])
    return found


def refused(answer: tuple[int, dict[str, Any]]) -> tuple[int, str, str | None]:
    status, body = answer
    return status, body["error"]["code"], body["error"]["param"]


def tokens_of(answer: tuple[int, dict[str, Any]]) -> int:
    status, body = answer
    assert status == 200, body
    count: int = body["usage"]["completion_tokens"]
    return count


def test_every_ready_made_processor_has_an_example_here() -> None:
    assert EXAMPLES.keys() == READY.keys()


@pytest.mark.promise("S6-440")
async def test_no_pair_of_ready_made_processors_is_a_servers_error(stack: SimStack) -> None:
    pairs = list(itertools.combinations(EXAMPLES, 2))
    found = await answers(stack, [{"logits_processors": processors(*pair)} for pair in pairs])
    wrong = {
        pair: answer
        for pair, (status, answer) in zip(pairs, found, strict=True)
        if status not in (200, 400)
    }
    assert wrong == {}
    codes = {answer["error"]["code"] for status, answer in found if status == 400}
    assert codes <= {"invalid_request", "contradictory_request"}
    assert sum(status == 200 for status, _ in found) > len(pairs) / 2


WITHOUT_A_TOKEN = [
    ("forced_prefix", "banned_tokens"),
    ("forced_prefix", "allowed_tokens"),
    ("forced_sequence", "banned_tokens"),
    ("allowed_tokens", "forced_sequence", "banned_tokens"),
    ("max_new_tokens", "min_new_tokens"),
    ("json_schema", "forced_prefix"),
    ("choice", "forced_sequence"),
    ("json_schema", "thinking_budget"),
    ("regex", "min_new_tokens"),
]


@pytest.mark.promise("S6-440")
@one_case("names", WITHOUT_A_TOKEN)
async def test_processors_that_leave_no_token_are_refused_before_they_run(
    stack: SimStack, names: tuple[str, ...]
) -> None:
    asked = processors(*names)
    if names == ("forced_prefix", "banned_tokens"):
        prompt = {"model": stack.model, "prompt": "Sure", "add_special_tokens": False}
        tokens = stack.client.post("/tokenize", prompt)["tokens"]
        asked[1]["args"] = {"token_ids": tokens[:1]}
    found = refused(await one(stack, logits_processors=asked))
    assert found == (400, "invalid_request", f"logits_processors[{len(names) - 1}]")


async def test_a_token_that_a_later_processor_forces_may_be_banned_before(stack: SimStack) -> None:
    """Processors apply in order, and what forces does so whatever was forbidden."""
    asked = processors("banned_tokens", "forced_sequence")
    assert tokens_of(await one(stack, logits_processors=asked)) == 4


# --- what is refused before it runs ---


WITHOUT_TEXT: list[tuple[str, Any]] = [
    ("guided_grammar", 'root ::= "a" root'),
    ("guided_grammar", 'root ::= [a-z]+ "!" root'),
    ("guided_grammar", 'root ::= root "a"'),
    ("guided_grammar", 'root ::= x | y\nx ::= "x" y\ny ::= "y" x+'),
    ("guided_grammar", 'root ::= "(" (root | "[" root "]"){1,3} ")"'),
    ("guided_json", LIST),
    ("guided_json", NODE | {"$defs": {"node": NODE}}),
    ("guided_json", {"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
    ("guided_json", {"anyOf": [{"$ref": "#/$defs/a"}, LIST["$ref"] and {"$ref": "#"}],
                     "$defs": {"a": {"allOf": [{"$ref": "#"}]}}}),
    ("guided_json", {"type": "string", "minLength": 3, "maxLength": 2}),
    ("guided_json", {"enum": []}),
    ("guided_regex", "a[^\\s\\S]"),
]  # fmt: skip
"""Forms that no text has."""
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "more than max_tokens": ({"min_tokens": 9}, "min_tokens"),
    "more than its default": ({"min_tokens": 17, "max_tokens": None}, "min_tokens"),
    "more than a chat's max_tokens": (CHAT | {"min_tokens": 9}, "min_tokens"),
    "more than max_completion_tokens": (
        CHAT | {"min_tokens": 9, "max_tokens": None, "max_completion_tokens": 8}, "min_tokens",
    ),
    "more than what the context leaves": (
        CHAT | {"min_tokens": 2**31 - 1, "max_tokens": None}, "min_tokens",
    ),
    **{
        f"least tokens beside {name}, which may end before": (
            form | {"min_tokens": 30, "max_tokens": 40}, "min_tokens",
        )
        for name, form in FORMS.items()
    },
    **{
        f"least tokens beside {name} calls, which may end before": (
            CHAT | calls | {"min_tokens": 100, "max_tokens": 200}, "min_tokens",
        )
        for name, calls in CALLS.items()
    },
    **{
        f"a thinking budget beside {name}, which has no thoughts": (
            CHAT | form | {"thinking_token_budget": 3, "max_tokens": 20}, "thinking_token_budget",
        )
        for name, form in FORMS.items()
    },
    **{
        f"{field} {form}, which no text has": ({field: form, "max_tokens": 20}, field)
        for field, form in WITHOUT_TEXT
    },
}  # fmt: skip
"""A body, and the field that its refusal names."""


@pytest.mark.promise("S6-440", "S6-441", "S6-442", "S6-443")
@one_case("name", REFUSED)
async def test_fields_that_contradict_each_other_are_refused_by_name(
    stack: SimStack, name: str
) -> None:
    body, param = REFUSED[name]
    assert refused(await one(stack, **body)) == (400, "invalid_request", param)


@pytest.mark.promise("S6-442")
@one_case(
    "fields",
    [
        {"guided_regex": "[a-z]{200}", "min_tokens": 3},
        {"guided_json": {"type": "integer"}, "min_tokens": 1},
        {"guided_choice": ["no, never, not at all"], "min_tokens": 2},
        {"guided_json": {"type": "object"}, "min_tokens": 0},
    ],
)
async def test_min_tokens_beside_a_form_that_cannot_end_before_changes_nothing(
    stack: SimStack, fields: dict[str, Any]
) -> None:
    plain = {name: value for name, value in fields.items() if name != "min_tokens"}
    body = {"max_tokens": 60, "seed": 1}
    (status, least), (_, alone) = await answers(stack, [body | fields, body | plain])
    assert status == 200
    assert least["choices"] == alone["choices"]


@pytest.mark.promise("S6-443")
@one_case(
    ("field", "form"),
    [
        ("guided_grammar", 'root ::= "a" root | "b"'),
        ("guided_grammar", "root ::= [a-z] root?"),
        ("guided_grammar", 'root ::= "a" ("," root)*'),
        ("guided_grammar", 'root ::= "(" root{0,2} ")"'),
        ("guided_json", LIST | {"$defs": {"node": NODE | {"required": ["value"]}}}),
        ("guided_json", {"type": "array", "items": {"$ref": "#"}}),
        ("guided_json", {"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "null"}]}),
    ],
)
async def test_a_form_that_may_go_on_for_ever_and_may_end_is_answered(
    stack: SimStack, field: str, form: Any
) -> None:
    assert tokens_of(await one(stack, **{field: form, "max_tokens": 20}))


@pytest.mark.promise("S6-443")
async def test_a_call_whose_arguments_cannot_be_written_is_refused(stack: SimStack) -> None:
    endless = {"type": "function", "function": {"name": "list", "parameters": LIST}}
    body = CHAT | {"tools": [TOOL, endless], "tool_choice": "required", "max_tokens": 20}
    answer = await one(stack, **body)
    assert refused(answer) == (400, "invalid_request", "tool_choice")
    assert "calls[1].schema" in answer[1]["error"]["message"]


@pytest.mark.promise("S6-444")
@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_seen_only_while_it_runs_is_the_clients_error(
    stack: SimStack, stream: bool
) -> None:
    """Two tokens, none of which may come twice: the third has none."""
    asked = [
        {"name": "allowed_tokens", "args": {"token_ids": [70, 71], "with_eos": False}},
        {"name": "no_repeat_ngram", "args": {"size": 1}},
    ]
    before = _ended(stack, "contradictory_request")
    body = {"model": stack.model, "prompt": "The", "max_tokens": 8, "stream": stream}
    async with httpx.AsyncClient(base_url=stack.url, timeout=PATIENCE) as client:
        got = await client.post("/v1/completions", json=body | {"logits_processors": asked})
    assert got.status_code == 400 or (stream and got.status_code == 200), got.text
    assert '"code":"contradictory_request"' in got.text.replace('": "', '":"')
    assert _ended(stack, "contradictory_request") == before + 1
    assert _ended(stack, "logits_processor_failed") == 0


def _ended(stack: SimStack, outcome: str) -> float:
    launch = stack.stack.components["frontend"].launch
    text = httpx.get(f"http://{launch.metrics}/metrics", timeout=PATIENCE).text
    fault = "server" if outcome == "logits_processor_failed" else "client"
    return metric_sum(text, "tandem_frontend_requests_total", {"outcome": outcome, "fault": fault})


@pytest.mark.promise("S6-445")
@one_case("least", [1, 2, 10])
async def test_min_tokens_hold_against_stop_tokens_and_the_models_own_end(
    stack: SimStack, end: int, least: int
) -> None:
    stopped = {"temperature": 0, "stop_token_ids": [WORD], "logit_bias": {str(WORD): 100}}
    for fields in (stopped, {"logit_bias": {str(end): 100}}):
        body = {"max_tokens": 20, "min_tokens": least} | fields
        assert tokens_of(await one(stack, **body)) == least + 1, fields


@pytest.mark.promise("S6-445")
@one_case("least", [0, 1, 5, 10])
async def test_min_tokens_hold_against_stop_strings(stack: SimStack, least: int) -> None:
    """Each token is the stop string; that which comes behind the least ends the answer."""
    text = stack.client.post("/detokenize", {"model": stack.model, "tokens": [WORD]})["prompt"]
    body = {"max_tokens": 20, "min_tokens": least, "stop": text, "logit_bias": {str(WORD): 100}}
    status, answer = await one(stack, **body)
    assert status == 200
    assert answer["usage"]["completion_tokens"] == least + 1
    assert answer["choices"][0]["text"] == text * least
    assert answer["choices"][0]["finish_reason"] == "stop"


def _random_body(dice: random.Random, end: int) -> dict[str, Any]:
    least = dice.choice([0, 1, 2, 5, 9, 17, 40])
    body: dict[str, Any] = {"min_tokens": least, "max_tokens": dice.choice([1, 4, 16, 24, 48])}
    if dice.random() < 0.4:
        body |= dice.choice(list(FORMS.values()))
    if dice.random() < 0.5:
        names = dice.sample(sorted(EXAMPLES), dice.choice([1, 1, 2, 3]))
        body["logits_processors"] = processors(*names)
    if dice.random() < 0.4:
        body["logit_bias"] = {str(dice.choice([end, 70, WORD])): dice.choice([-100, 100])}
    if dice.random() < 0.4:
        body["stop_token_ids"] = dice.choice([[WORD], [70, end]])
    if dice.random() < 0.4:
        body["stop"] = dice.choice(["e", ["a", " the"]])
    if dice.random() < 0.2:
        body["ignore_eos"] = True
    if dice.random() < 0.3:
        body["n"] = 2
    if dice.random() < 0.3:
        body["logprobs"] = 1
    if dice.random() < 0.3:
        body |= CHAT | {"logprobs": None}
        body |= dice.choice([{}, {"thinking_token_budget": 2}, *CALLS.values()])
    return body


@pytest.mark.promise("S6-440", "S6-445")
async def test_random_combinations_are_answered_with_min_tokens_or_refused(
    stack: SimStack, end: int
) -> None:
    dice = random.Random(440)
    bodies = [_random_body(dice, end) for _ in range(160)]
    found = await answers(stack, bodies)
    answered = 0
    for body, (status, answer) in zip(bodies, found, strict=True):
        assert status in (200, 400), (body, answer)
        if status == 200:
            answered += 1
            least = body["min_tokens"] * body.get("n", 1)
            assert answer["usage"]["completion_tokens"] >= least, (body, answer)
    assert 24 < answered < 136
