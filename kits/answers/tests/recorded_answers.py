"""What models of each family write, and what it is made of.

Each family has the same four answers, in its own syntax: one call, two calls, a call whose
arguments have all that JSON has, and a call without arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {"type": "object", "properties": {"city": {"type": "string"}}},
    "add": {"properties": {"a": {"type": "integer"}, "b": {"type": ["number", "null"]}}},
    "plan": {
        "properties": {
            "stops": {"type": "array", "items": {"type": "object"}},
            "deep": {"anyOf": [{"type": "object"}, {"type": "null"}]},
            "ok": {"enum": [True, False]},
            "note": {"type": "string"},
        }
    },
    "now": {},
}
PLAN: dict[str, Any] = {
    "stops": [{"at": 'Zürich "HB" 🚆', "when": None}, []],
    "deep": {"x": {"y": [1, 2.5e3]}},
    "ok": True,
    "note": "1: line\n2: </tool_call> {[(\\",
}
ONE = [("get_weather", {"city": "Paris"})]
TWO = [*ONE, ("add", {"a": 3, "b": -4.5})]
NESTED = [("plan", PLAN)]
EMPTY: list[tuple[str, dict[str, Any]]] = [("now", {})]

PARIS = '{"city": "Paris"}'
SUM = '{"a": 3, "b": -4.5}'
FULL = json.dumps(PLAN, ensure_ascii=False)


class Recorded(NamedTuple):
    """Four answers of a family. `opens`: how its reasoning begins and ends."""

    one: str
    two: str
    nested: str
    empty: str
    opens: tuple[str, str] = ("", "")


def _recorded(texts: Iterable[str], opens: tuple[str, str] = ("", "")) -> Recorded:
    one, two, nested, empty = texts
    return Recorded(one, two, nested, empty, opens)


def _objects(begin: str, end: str, between: str, key: str = "arguments") -> Recorded:
    def call(name: str, arguments: str) -> str:
        return f'{{"name": "{name}", "{key}": {arguments}}}'

    paris = call("get_weather", PARIS)
    return Recorded(
        begin + paris + end,
        begin + paris + between + call("add", SUM) + end,
        begin + call("plan", FULL) + end,
        begin + call("now", "{}") + end,
    )


THINK = ("<think>", "</think>")
HERMES = _objects("<tool_call>\n", "\n</tool_call>", "\n</tool_call>\n<tool_call>\n")
V3 = Recorded(
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    f"{PARIS}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    f"{PARIS}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n"
    f"{SUM}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>plan\n```json\n"
    f"{FULL}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n"
    "{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
)
V31 = Recorded(
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
    f"{PARIS}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
    f"{PARIS}<｜tool▁call▁end｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>"
    f"{SUM}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>plan<｜tool▁sep｜>{FULL}<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>",
    THINK,
)
KIMI = Recorded(
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
    f"<|tool_call_argument_begin|>{PARIS}<|tool_call_end|><|tool_calls_section_end|>",
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
    f"<|tool_call_argument_begin|>{PARIS}<|tool_call_end|><|tool_call_begin|>functions.add:1"
    f"<|tool_call_argument_begin|>{SUM}<|tool_call_end|><|tool_calls_section_end|>",
    "<|tool_calls_section_begin|>\n<|tool_call_begin|> plan:3 <|tool_call_argument_begin|> "
    f"{FULL} <|tool_call_end|>\n<|tool_calls_section_end|>",
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0"
    "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    THINK,
)
CODER = Recorded(
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n"
    "</tool_call>",
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n"
    "</tool_call>\n<tool_call>\n<function=add>\n<parameter=a>\n3\n</parameter>\n<parameter=b>\n"
    "-4.5\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>\n<function=plan>\n<parameter=stops>\n"
    '[{"at": "Zürich \\"HB\\" 🚆", "when": null}, []]\n</parameter>\n<parameter=deep>\n'
    '{"x": {"y": [1, 2.5e3]}}\n</parameter>\n<parameter=ok>\nTrue\n</parameter>\n'
    "<parameter=note>\n1: line\n2: </tool_call> {[(\\\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>\n<function=now>\n</function>\n</tool_call>",
)
GLM = Recorded(
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>\n"
    "<tool_call>add<arg_key>a</arg_key><arg_value>3</arg_value><arg_key>b</arg_key>"
    "<arg_value>-4.5</arg_value></tool_call>",
    "<tool_call>plan\n<arg_key>stops</arg_key>\n<arg_value>"
    '[{"at": "Zürich \\"HB\\" 🚆", "when": null}, []]</arg_value>\n<arg_key>deep</arg_key>\n'
    '<arg_value>{"x": {"y": [1, 2.5e3]}}</arg_value>\n<arg_key>ok</arg_key>\n'
    "<arg_value>true</arg_value>\n<arg_key>note</arg_key>\n"
    "<arg_value>1: line\n2: </tool_call> {[(\\</arg_value>\n</tool_call>",
    "<tool_call>now\n</tool_call>",
    THINK,
)
MINIMAX = Recorded(
    '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n'
    "</invoke>\n</minimax:tool_call>",
    '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n'
    '</invoke>\n<invoke name="add">\n<parameter name="a">3</parameter>\n'
    '<parameter name="b">-4.5</parameter>\n</invoke>\n</minimax:tool_call>',
    '<minimax:tool_call>\n<invoke name="plan">\n<parameter name="stops">'
    '[{"at": "Zürich \\"HB\\" 🚆", "when": null}, []]</parameter>\n<parameter name="deep">'
    '{"x": {"y": [1, 2.5e3]}}</parameter>\n<parameter name="ok">true</parameter>\n'
    '<parameter name="note">1: line\n2: </tool_call> {[(\\</parameter>\n</invoke>\n'
    "</minimax:tool_call>",
    '<minimax:tool_call>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>',
    THINK,
)
V32 = Recorded(
    '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
    '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    f'<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n{PARIS}\n'
    '</｜DSML｜invoke>\n<｜DSML｜invoke name="add">\n'
    '<｜DSML｜parameter name="a" string="false">3</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="b" string="false">-4.5</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    '<｜DSML｜function_calls>\n<｜DSML｜invoke name="plan">\n'
    '<｜DSML｜parameter name="stops" string="false">'
    '[{"at": "Zürich \\"HB\\" 🚆", "when": null}, []]</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="deep" string="false">{"x": {"y": [1, 2.5e3]}}</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="ok" string="false">true</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="note" string="true">1: line\n2: </tool_call> {[(\\'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    '<｜DSML｜function_calls>\n<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n'
    "</｜DSML｜function_calls>",
    THINK,
)
HARMONY = Recorded(
    "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    f"{PARIS}<|call|>",
    "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    f"{PARIS}<|call|><|start|>assistant to=functions.add<|channel|>commentary json<|message|>"
    f"{SUM}<|call|>",
    "<|start|>assistant<|channel|>analysis to=functions.plan code<|message|>" + FULL + "<|call|>",
    "<|start|>assistant<|channel|>commentary to=functions.now<|message|>{}<|call|>",
    ("<|channel|>analysis<|message|>", "<|end|>"),
)
PYTHONIC = Recorded(
    '[get_weather(city="Paris")]',
    "[get_weather(city='Paris'), add(a=3, b=-4.5)]",
    """[plan(stops=[{'at': 'Zürich "HB" 🚆', 'when': None}, []], deep={"x": {"y": [1, 2.5e3]}}, """
    """ok=True, note='1: line\\n2: </tool_call> {[(\\\\')]""",
    "[now()]",
)
MISTRAL = _objects("[TOOL_CALLS] [", "]", ", ")
ARGS = Recorded(
    f"[TOOL_CALLS]get_weather[ARGS]{PARIS}",
    f"[TOOL_CALLS]get_weather[ARGS]{PARIS}[TOOL_CALLS]add[CALL_ID]a1b2c3d4e[ARGS]{SUM}",
    f"[TOOL_CALLS]plan[ARGS]{FULL}",
    "[TOOL_CALLS]now[ARGS]{}",
)
COMMAND = Recorded(
    f'<|START_ACTION|>[\n{{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {PARIS}}}'
    "\n]<|END_ACTION|>",
    f'<|START_ACTION|>[\n{{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {PARIS}}}'
    f',\n{{"tool_call_id": "1", "tool_name": "add", "parameters": {SUM}}}\n]<|END_ACTION|>',
    f'<|START_ACTION|>[{{"tool_name": "plan", "parameters": {FULL}}}]<|END_ACTION|>',
    '<|START_ACTION|>[{"tool_name": "now", "parameters": {}}]<|END_ACTION|>',
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)


def _instead(recorded: Recorded, *changes: tuple[str, str]) -> Recorded:
    """A family that writes like another with other markers."""
    texts = [*recorded[:4]]
    for old, new in changes:
        texts = [text.replace(old, new) for text in texts]
    return _recorded(texts)


STEP3 = _instead(
    MINIMAX,
    ("minimax:tool_call>", "｜tool_calls_begin｜>"),
    ("</｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
    ("<invoke", "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke"),
    ("</invoke>", "</steptml:invoke><｜tool_call_end｜>"),
    ("<parameter", "<steptml:parameter"),
    ("</parameter", "</steptml:parameter"),
)._replace(opens=THINK)
SEED = _instead(
    CODER, ("<tool_call>\n", "<seed:tool_call>\n"), ("\n</tool_call>", "\n</seed:tool_call>")
)
HUNYUAN = _recorded(
    (
        "<tool_calls>\n"
        + re.sub(r"<tool_call>(\w+)\n?", r"<tool_call>\1<tool_sep>\n", text)
        + "\n</tool_calls>"
        for text in GLM[:4]
    ),
    THINK,
)

GEMMA = Recorded(
    '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>',
    '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>'
    "<|tool_call>call:add{a:3,b:-4.5}<tool_call|>",
    '<|tool_call>call:plan{deep:{x:{y:[1,2.5e3]}},note:<|"|>1: line\n2: </tool_call> {[(\\<|"|>,'
    'ok:true,stops:[{at:<|"|>Zürich "HB" 🚆<|"|>,when:None},[]]}<tool_call|>',
    "<|tool_call>call:now{}<tool_call|>",
    ("<|channel>thought", "<channel|>"),
)
_M3 = "]<]minimax[>["
MINIMAX_M3 = _recorded(
    (
        f"{_M3}<tool_call>\n{text}\n{_M3}</tool_call>"
        for text in (
            f'{_M3}<invoke name="get_weather">{_M3}<city>Paris{_M3}</city>{_M3}</invoke>',
            f'{_M3}<invoke name="get_weather">{_M3}<city>Paris{_M3}</city>{_M3}</invoke>\n'
            f'{_M3} <invoke name="add">{_M3}<a>3{_M3}</a>{_M3} <b>-4.5{_M3}</b>{_M3}</invoke>',
            f'{_M3}<invoke name="plan">{_M3}<stops>'
            f'[{{"at": "Zürich \\"HB\\" 🚆", "when": null}}, []]{_M3}</stops>{_M3}<deep>{_M3}<x>'
            f"{_M3}<y>{_M3}<item>1{_M3}</item>{_M3}<item>2.5e3{_M3}</item>{_M3}</y>{_M3}</x>"
            f"{_M3}</deep>{_M3}<ok>true{_M3}</ok>{_M3}<note>1: line\n2: </tool_call> {{[(\\"
            f"{_M3}</note>{_M3}</invoke>",
            f'{_M3}<invoke name="now">{_M3}</invoke>',
        )
    ),
    ("<mm:think>", "</mm:think>"),
)


def _k3(*calls: tuple[str, list[tuple[str, str, str]]]) -> str:
    """An answer of Kimi K3 that calls: of each argument the key, the type and the text."""
    written = "".join(
        f'<|open|>call tool="{name}" index="{number}"<|sep|>'
        + "".join(
            f'<|open|>argument key="{key}" type="{type_}"<|sep|>{text}<|close|>argument<|sep|>'
            for key, type_, text in arguments
        )
        + "<|close|>call<|sep|>"
        for number, (name, arguments) in enumerate(calls, 1)
    )
    return (
        "<|open|>response<|sep|><|close|>response<|sep|>"
        f"<|open|>tools<|sep|>{written}<|close|>tools<|sep|><|close|>message<|sep|>"
    )


_IN_PARIS = ("get_weather", [("city", "string", "Paris")])
KIMI_K3 = Recorded(
    _k3(_IN_PARIS),
    _k3(_IN_PARIS, ("add", [("a", "number", "3"), ("b", "number", "-4.5")])),
    _k3(
        (
            "plan",
            [
                ("stops", "array", '[{"at": "Zürich \\"HB\\" 🚆", "when": null}, []]'),
                ("deep", "object", '{"x": {"y": [1, 2.5e3]}}'),
                ("ok", "boolean", "true"),
                ("note", "string", "1: line\n2: </tool_call> {[(\\"),
            ],
        )
    ),
    _k3(("now", [])),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
)
V41 = _instead(
    V32,
    ("｜DSML｜function_calls", "｜DSML｜ calls"),
    ("｜DSML｜invoke", "｜DSML｜ invoke"),
    ("｜DSML｜parameter", "｜DSML｜ parameter"),
)._replace(opens=THINK)
HY3 = _recorded(
    (re.sub(r"(</?(?:tool|arg)_\w+)>(?! \{\[)", r"\1:opensource>", text) for text in HUNYUAN[:4]),
    ("<think:opensource>", "</think:opensource>"),
)

RECORDED: dict[str, Recorded] = {
    "hermes": HERMES,
    "qwen3": HERMES._replace(opens=THINK),
    "qwen3_coder": CODER._replace(opens=THINK),
    "seed_oss": SEED._replace(opens=("<seed:think>", "</seed:think>")),
    "glm45": GLM,
    "hunyuan": HUNYUAN,
    "hy3": HY3,
    "minimax_m2": MINIMAX,
    "minimax_m3": MINIMAX_M3,
    "step3": STEP3,
    "deepseek_v3": V3,
    "deepseek_r1": V3._replace(opens=THINK),
    "deepseek_v31": V31,
    "deepseek_v32": V32,
    "deepseek_v4": _instead(V32, ("function_calls", "tool_calls"))._replace(opens=THINK),
    "deepseek_v41": V41,
    "kimi_k2": KIMI,
    "kimi_k3": KIMI_K3,
    "gemma4": GEMMA,
    "gpt_oss": HARMONY,
    "mistral": MISTRAL,
    "mistral_args": ARGS,
    "llama3_json": _objects("", "", "; ", "parameters"),
    "llama4": PYTHONIC,
    "pythonic": PYTHONIC,
    "lfm2": _recorded(
        (f"<|tool_call_start|>{text}<|tool_call_end|>" for text in PYTHONIC[:4]), THINK
    ),
    "phi4_mini": _objects("<|tool_call|>[", "]<|/tool_call|>", ","),
    "granite": _objects("<|tool_call|>[", "]", ", "),
    "internlm": _objects(
        "<|action_start|> <|plugin|>\n",
        "<|action_end|>",
        "<|action_end|><|action_start|><|plugin|>",
        "parameters",
    ),
    "jamba": _objects("<tool_calls>[\n  ", "\n]</tool_calls>", ",\n  "),
    "nemotron_json": _objects("<TOOLCALL>[", "]</TOOLCALL>", ", ")._replace(opens=THINK),
    "hunyuan_a13b": _objects("<tool_calls>[", "]</tool_calls>", ", ")._replace(opens=THINK),
    "command_a": COMMAND,
    "json_array": _objects("[", "]", ", ", "parameters"),
}
ANSWERS = {"one": ONE, "two": TWO, "nested": NESTED, "empty": EMPTY}

# Further ways in which models write, and what these are made of: content, and the names and
# arguments of calls.
OTHERS: list[tuple[str, str, list[Any]]] = [
    (
        "hermes",
        '<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>',
        ONE,
    ),
    ("hermes", '<tool_call>{"name": "now"}</tool_call>', EMPTY),
    ("hermes", '<tool_call>{"name": "now", "arguments": null}</tool_call>', EMPTY),
    (
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>',
        ONE,
    ),
    ("hermes", '<tool_call>{"type": "x", "name": "now", "arguments": {}}</tool_call>', EMPTY),
    ("hermes", f"Well.\n{HERMES.one}\nSo.", ["Well.\n", *ONE, "\nSo."]),
    ("hermes", f"{HERMES.one}\n\n", ONE),
    ("hermes", f"\n{HERMES.one}", ONE),
    ("hermes", f"<tool_call>\n{HERMES.one}", ["<tool_call>\n", *ONE]),
    ("llama3_json", f"<|python_tag|>{HERMES.one[12:-13]}", ONE),
    ("llama3_json", '{"name": "Ada", "a": {"a": 1}}', ['{"name": "Ada", "a": {"a": 1}}']),
    ("llama3_json", '{"type": "function", "name": "now", "parameters": {}}', EMPTY),
    ("llama3_json", '{"name": "now"}; and', [*EMPTY, "; and"]),
    ("llama4", '<|python_start|>[get_weather(city="Paris")]<|python_end|>', ONE),
    ("llama4", '{"name": "get_weather", "parameters": {"city": "Paris"}}', ONE),
    ("pythonic", "a[0] and [now] and [now()]", ["a[0] and [now] and ", *EMPTY]),
    ("phi4_mini", 'functools[{"name": "now", "arguments": {}}]', EMPTY),
    ("phi4_mini", "functools.partial", ["functools.partial"]),
    ("mistral", ARGS.two, TWO),
    ("mistral_args", MISTRAL.two, TWO),
    ("granite", "<tool_call>[" + HERMES.one[12:-13] + "]", ONE),
    ("deepseek_v31", f"{V31.one}", ONE),
    (
        "qwen3_coder",
        "<tool_call>\n<function=now>\n<parameter=x>\n\n5 a\n\n</parameter></function></tool_call>",
        [("now", {"x": "\n5 a\n"})],
    ),
    ("glm45", "<tool_call>now<arg_key>x</arg_key><arg_value>a 5</arg_value></tool_call>",
     [("now", {"x": "a 5"})]),
    ("glm45", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>5</arg_value></tool_call>",
     [("get_weather", {"city": "5"})]),
    ("glm45", "<tool_call>add<arg_key>b</arg_key><arg_value>null</arg_value></tool_call>",
     [("add", {"b": None})]),
    ("deepseek_v32", '<｜DSML｜invoke name="now"><｜DSML｜parameter name="x" string="true">5'
     "</｜DSML｜parameter></｜DSML｜invoke>", [("now", {"x": "5"})]),
    ("gemma4", "<|tool_call>call:get_weather{ city: Paris , }<tool_call|>", ONE),
    ("gemma4", "<|tool_call>call:get_weather{city:5}<tool_call|>",
     [("get_weather", {"city": "5"})]),
    ("gemma4", '<|tool_call>call:now{<|"|>a:{b}<|"|>:{c:[<|"|>,}]<|"|>,"d\\n"]}}<tool_call|>',
     [("now", {"a:{b}": {"c": [",}]", "d\n"]}})]),
    ("gemma4", "<|tool_call>call:now{a}<tool_call|>", ["<|tool_call>call:now{a}<tool_call|>"]),
    ("minimax_m3", f'{_M3}<tool_call>{_M3}<invoke name="get_weather">{_M3}<city>Paris</city>{_M3}'
     f"</invoke>{_M3}</tool_call>", ONE),
    ("minimax_m3", f'{_M3}<tool_call>{_M3}<invoke name="now">{_M3}<a>{_M3}<item>{_M3}<b>x{_M3}</b>'
     f"{_M3}</item>{_M3}<item>2{_M3}</item>{_M3}</a>{_M3}</invoke>{_M3}</tool_call>",
     [("now", {"a": [{"b": "x"}, 2]})]),
    ("minimax_m3", f'{_M3}<tool_call>{_M3}<invoke name="plan">{_M3}<stops>{_M3}</stops>{_M3}<deep>'
     f"{_M3}<item>1{_M3}</item>{_M3}</deep>{_M3}</invoke>{_M3}</tool_call>",
     [("plan", {"stops": [], "deep": {"item": 1}})]),
    ("minimax_m3", "</mm:think>Well.", ["Well."]),
    ("minimax_m3", '<invoke name="now">', ['<invoke name="now">']),
    ("kimi_k3", '<|open|>call tool="get_weather" index="1"<|sep|><|open|>json type="object"<|sep|>'
     f"{PARIS}<|close|>json<|sep|><|close|>call<|sep|>", ONE),
    ("kimi_k3", '<|open|>call tool="now" index="1"<|sep|><|open|>argument key="a &quot;&amp;quot;"'
     ' type="string"<|sep|>5<|open|>argument key="b" type="number"<|sep|>6<|close|>call<|sep|>',
     [("now", {'a "&quot;': "5", "b": 6})]),
    ("deepseek_v4", V41.one, ONE),
    ("deepseek_v41", V32.one, ONE),
]  # fmt: skip
