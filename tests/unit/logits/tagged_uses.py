"""Every way to ask for calls between tags, with answers that fit and answers that do not."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

TINY = Path(__file__).parents[3] / "model" / "tandem-tiny"
VOCABULARY = 2112
Args = dict[str, Any]
Answer = str | Sequence[str]
"""A text, whose special tokens are tokens; or texts that are tokenised one by one."""


def schema(name: str) -> Args:
    return {
        "type": "object",
        "properties": {name: {"type": "integer"}},
        "required": [name],
        "additionalProperties": False,
    }


def call(begin: str, name: str, end: str) -> Args:
    return {"begin": begin, "schema": schema(name), "end": end}


X, Y = '{"x": 1}', '{"y": 22}'
HERMES = {
    "calls": [
        call('<tool_call>\n{"name": "get", "arguments": ', "x", "}\n</tool_call>"),
        call('<tool_call>\n{"name": "get_all", "arguments": ', "y", "}\n</tool_call>"),
    ],
    "separator": "\n",
}
GET = f'<tool_call>\n{{"name": "get", "arguments": {X}}}\n</tool_call>'
ALL = f'<tool_call>\n{{"name": "get_all", "arguments": {Y}}}\n</tool_call>'
SPELLED = ("<tool", "_call>", GET.removeprefix("<tool_call>"))
MISTRAL = {
    "calls": [
        call('{"name": "get", "arguments": ', "x", "}"),
        call('{"name": "set", "arguments": ', "y", "}"),
    ],
    "begin": "[TOOL_CALLS][",
    "separator": ", ",
    "end": "]",
}
ONE = f'[TOOL_CALLS][{{"name": "get", "arguments": {X}}}]'
TWO = f'{ONE[:-1]}, {{"name": "set", "arguments": {Y}}}]'
FUNCTIONS = {"calls": [call("<fn=a>", "x", "</fn>"), call("<fn=ab>", "y", "</fn>")]}
SECTION = {
    "calls": [call("<a>", "x", "</a>"), call("<b>", "y", "</b>")],
    "begin": "<all>\n",
    "separator": "\n",
    "end": "\n</all>",
}
ENDLESS = {"calls": [call("f", "x", "")], "begin": "<|im_start|>", "separator": ";"}
BEHIND = {"calls": [call("\n[TOOL_CALLS]f", "x", ".")], "triggers": ["\n[TOOL"]}
AUTO = HERMES | {"triggers": ["<tool_call>"]}
THINKS = {"before": "</think>\n"}

USES: dict[str, tuple[Args, list[Answer], list[Answer]]] = {
    "calls must come": (
        HERMES,
        [GET, ALL, f"{GET}\n{ALL}\n{GET}"],
        ["", "Well", f"a{GET}", f"{GET}a", GET + ALL, GET.replace("x", "y"), SPELLED],
    ),
    "one call must come": (HERMES | {"several": False}, [GET, ALL], ["", f"{GET}\n{ALL}"]),
    "a pattern follows": (
        {"calls": [], "pattern": "[ab]{1,2}/\\d|x", **THINKS},
        ["Hm.</think>\nab/7", "</think>\nx"],
        ["ab/7", "</think>\n", "</think>\nab/", "</think>\nx/7", "</think>\nxx"],
    ),
    "one of some texts follows": (
        {"calls": [], "texts": ["yes", "yes, no", 'a "b"\n', "[TOOL_CALLS]x"], **THINKS},
        ["Hm.</think>\nyes", "</think>\nyes, no", '</think>\na "b"\n', "</think>\n[TOOL_CALLS]x"],
        ["yes", "</think>\n", "</think>\nyes,", "</think>\nyesyes"],
    ),
    "JSON follows": (
        {"calls": [], "answer": schema("x"), **THINKS},
        [f"Hm. {Y}</think>\n{X}"],
        [X, f"</think>\n{Y}", f"</think>\n{X}{X}", "</think>\n"],
    ),
    "calls may come": (
        AUTO,
        ["", "Well", "<tool", GET, f"Well, {GET} and\n{ALL}.", SPELLED, f"a<|im_start|>b{GET}"],
        [f"{GET}<tool_call>", f"a{GET.replace('x', 'y')}", "a</tool_call>", f"{GET[:-12]}b"],
    ),
    "one call may come": (
        AUTO | {"several": False},
        ["", "Well", f"Well, {GET}"],
        [f"{GET} a", f"{GET}\n{ALL}"],
    ),
    "a section must come": (
        MISTRAL,
        [ONE, TWO],
        ["", "[TOOL_CALLS][]", f"{ONE} ", ONE.replace("[TOOL", "[ TOOL"), f"{ONE}{ONE}"],
    ),
    "a section of one call": (MISTRAL | {"several": False}, [ONE], [TWO]),
    "a section may come": (
        MISTRAL | {"triggers": ["[TOOL_CALLS]"]},
        ["Well", ONE, f"Well {TWO} then", f"{ONE}{TWO}"],
        ["[TOOL_CALLS]a", ONE[:-1], f"a{ONE.replace('get', 'gut')}"],
    ),
    "calls or an answer": (
        MISTRAL | {"answer": schema("z")},
        [TWO, '{"z": 1}'],
        ["", "Well", X, '{"z":1}', f"{ONE}{X}"],
    ),
    "calls that begin as other JSON does, or an answer": (
        {"calls": [call("functools[", "x", "]")], "answer": schema("z")},
        [f"functools[{X}]", '{"z": 1}'],
        ["", "false"],
    ),
    "calls after reasoning": (
        HERMES | THINKS,
        [f"Hm, <tool_call>?</think>\n{GET}", f"</think>\n{GET}", f"[THINK]a</think>\n{ALL}"],
        [GET, "Hm", f"Hm</think>{GET}", f"Hm</think>\na{GET}"],
    ),
    "an answer after reasoning": (
        MISTRAL | {"answer": schema("z")} | THINKS,
        ['Hm</think>\n{"z": 1}', f"Hm</think>\n{ONE}"],
        ['{"z": 1}', "Hm", "Hm</think>\nHm"],
    ),
    "free text after reasoning": (
        AUTO | THINKS,
        ["Hm", "Hm</think>\nWell", f"<tool_call>?</think>\nWell {GET}"],
        ["Hm</think>\n<tool_call>?"],
    ),
    "triggers that begin others": (
        FUNCTIONS | {"triggers": ["<fn=", "<f", "<fn=ab"]},
        [f"<fn=a>{X}</fn>", f"so <fn=ab>{Y}</fn><fn=a>{X}</fn>", "<a"],
        ["<f", "<f>", "<fn=b>", f"<fn=a>{Y}</fn>"],
    ),
    "a separator that begins as the end does": (
        SECTION,
        [f"<all>\n<a>{X}</a>\n</all>", f"<all>\n<a>{X}</a>\n<b>{Y}</b>\n</all>"],
        [f"<all>\n<a>{X}</a></all>", f"<all>\n<a>{X}</a>\n"],
    ),
    "a section that does not end": (
        ENDLESS | {"triggers": ["<|im_start|>"]},
        ["Well", f"a<|im_start|>f{X}", f"a<|im_start|>f{X};f{X}"],
        [f"<|im_start|>f{X};f{Y}", f"<|im_start|>f{X} a"],
    ),
    "a token within a trigger": (
        BEHIND,
        ["a\n", f"a\n[TOOL_CALLS]f{X}. b"],
        [f"a[TOOL_CALLS]f{X}.", "\n[TOOL_CALLS]g", ("\n[", "TOOL_CALLS]g")],
    ),
    "nothing between": (
        {"calls": [{"schema": schema("x")}, {"schema": schema("y")}]},
        [X, f"{X}{Y}"],
        ["", f"{X} {Y}"],
    ),
    "schemas with definitions": (
        {
            "calls": [
                call("f", "x", ";"),
                {"schema": {"$defs": {"q": schema("y")}, "$ref": "#/$defs/q"}, "begin": "g"},
            ]
        },
        [f"f{X};", f"g{Y}"],
        [f"g{X}"],
    ),
    "a schema that says how JSON is written": (
        {"calls": [{"schema": schema("x") | {"x-guidance": {"whitespace_flexible": True}}}]},
        [X],
        ['{ "x": 1}', '{"x":1}'],
    ),
    "odd texts": (
        {"calls": [call('"\\\n\t\x7f/é😀', "x", "\u2028'%")]},
        [f"\"\\\n\t\x7f/é😀{X}\u2028'%"],
        [],
    ),
}


def save_model(folder: Path) -> None:
    """The tiny model's folder, without weights, and with tokens of models that call tools. Not all
    are said to be special.
    """
    for path in TINY.glob("*.json"):
        shutil.copy(path, folder)
    encoder = tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json"))
    for special, texts in {
        False: ["<tool_call>", "</tool_call>", "<think>", "</think>"],
        True: ["[TOOL_CALLS]", "[THINK]"],
    }.items():
        added = [tokenizers.AddedToken(text, special=special, normalized=False) for text in texts]
        encoder.add_tokens(added)
    encoder.save(str(folder / "tokenizer.json"))


def encoded(encoder: tokenizers.Tokenizer, answer: Answer) -> list[int]:
    parts = [answer] if isinstance(answer, str) else answer
    return [i for part in parts for i in encoder.encode(part, add_special_tokens=False).ids]
