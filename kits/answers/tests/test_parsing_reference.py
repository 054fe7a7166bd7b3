"""SGLang's own parsers find the same calls in the recorded answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from one_case import one_case
from parsed_answers import parsed, parser, plain
from recorded_answers import ANSWERS, RECORDED, TOOLS

pytestmark = [pytest.mark.sglang, pytest.mark.long]

PARSERS = {
    "hermes": "hermes",
    "qwen3": "qwen25",
    "qwen3_coder": "qwen3_coder",
    "glm45": "glm45",
    "hunyuan": "hunyuan",
    "minimax_m2": "minimax-m2",
    "step3": "step3",
    "deepseek_v3": "deepseekv3",
    "deepseek_v31": "deepseekv31",
    "deepseek_v32": "deepseekv32",
    "deepseek_v4": "deepseekv4",
    "kimi_k2": "kimi_k2",
    "gpt_oss": "gpt-oss",
    "mistral": "mistral",
    "llama3_json": "llama3",
    "pythonic": "pythonic",
    "internlm": "interns1",
    "lfm2": "lfm2",
}
OTHERWISE = {
    "an end marker inside of a string ends the call": [
        ("hermes", "nested"), ("qwen3_coder", "nested"), ("glm45", "nested"),
        ("hunyuan", "nested"), ("minimax_m2", "nested"),
    ],
    "a value whose schema has no single type becomes null or a string, or raises": [
        ("minimax_m2", "two"), ("step3", "nested"), ("hunyuan", "two"),
    ],
    "a call whose words come in another order is none": [
        ("gpt_oss", "two"), ("gpt_oss", "nested"), ("gpt_oss", "empty"), ("internlm", "two"),
        ("glm45", "two"),
    ],
    "a negative number is no literal": [("pythonic", "two")],
}  # fmt: skip
"""What SGLang's parsers read otherwise, and what they do there."""


def theirs(name: str, text: str) -> Any:
    from sglang.srt.entrypoints.openai.protocol import Function, Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    tools = [
        Tool(type="function", function=Function(name=each, parameters=schema))
        for each, schema in TOOLS.items()
    ]
    try:
        _, calls = FunctionCallParser(tools, name).parse_non_stream(text)
    except TypeError as error:
        return error
    return [(call.name, json.loads(call.parameters)) for call in calls]


@one_case("answer", ANSWERS)
@one_case("family", PARSERS)
def test_sglang_finds_the_same_calls(family: str, answer: str) -> None:
    text = getattr(RECORDED[family], answer)
    same = plain(parsed(parser(family), [text])) == theirs(PARSERS[family], text)
    assert same == all((family, answer) not in pairs for pairs in OTHERWISE.values())
