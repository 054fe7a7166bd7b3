"""The families of models whose answers are known, and how to tell a model's."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from tandem_answers.parsing.family import JSON_ARRAY, Family
from tandem_answers.parsing.formats import (
    Attributed,
    Header,
    Named,
    Nested,
    Objects,
    Pythonic,
    Unquoted,
    Xml,
)
from tandem_frontend.openai.answer_parsers import ModelFamilies, Thinking

_SUFFIXES = "hy3:"
_SUFFIX = re.compile(r"[\w.-]{1,64}")
_SUFFIXED = re.compile(rf"<tool_sep:({_SUFFIX.pattern})>")
_TAG = re.compile(r"(</?\w+)>")


_THINK = Thinking("<think>", "</think>")
_HERMES = Objects("<tool_call>\n", "\n</tool_call>")
_PYTHON_TAG = Objects("<|python_tag|>", arguments="parameters")
_MISTRAL_ARRAY = Objects("[TOOL_CALLS] ", array=True)
_MISTRAL_NAMED = Named("[TOOL_CALLS]", "[ARGS]", skipped=("[CALL_ID]",), id="[CALL_ID]")
_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_DEEPSEEK_V3 = Named(
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    "\n```json\n",
    "\n```<｜tool▁call▁end｜>",
    section=_DEEPSEEK,
    separator="\n",
)
_DEEPSEEK_V31 = Named(
    "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", section=_DEEPSEEK
)
_KIMI = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
_KIMI_K2 = Named(
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    name="functions.{name}:0",
    pattern=r"(?:functions\.)?(.+):\d+",
    ids=True,
    section=_KIMI,
)
_QWEN_FUNCTION = Xml(
    begin="<tool_call>\n<function=",
    name_end=">",
    key="<parameter=",
    key_end=">",
    value="",
    value_end="</parameter>",
    end="</function>\n</tool_call>",
    padded=True,
)
_ARG_KEYS = Xml(
    begin="<tool_call>",
    name_end="",
    key="<arg_key>",
    key_end="</arg_key>",
    value="<arg_value>",
    value_end="</arg_value>",
    end="</tool_call>",
)
_INVOKE = Xml(
    begin='<invoke name="',
    name_end='">',
    key='<parameter name="',
    key_end='">',
    value="",
    value_end="</parameter>",
    end="</invoke>",
    padded=True,
)
_DSML = Xml(
    begin='<｜DSML｜invoke name="',
    name_end='">',
    key='<｜DSML｜parameter name="',
    key_end='">',
    value="",
    value_end="</｜DSML｜parameter>",
    end="</｜DSML｜invoke>",
    typed='" string="',
)
_DSML_SECTIONS = (
    "<｜DSML｜function_calls>",
    "</｜DSML｜function_calls>",
    "<｜DSML｜tool_calls>",
    "</｜DSML｜tool_calls>",
)
_DSML_SPACED = replace(
    _DSML,
    begin='<｜DSML｜ invoke name="',
    key='<｜DSML｜ parameter name="',
    value_end="</｜DSML｜ parameter>",
    end="</｜DSML｜ invoke>",
)
_DSML_SPACED_SECTIONS = ("<｜DSML｜ calls>", "</｜DSML｜ calls>")
_V3_SIGNS = ("<｜tool▁sep｜>", "```json")
_PLUGIN = Objects(end="<|action_end|>", arguments="parameters")
_TOOL_CALLS = Objects("<tool_calls>", "</tool_calls>", array=True)
_TO_FUNCTION = Named(
    "<|channel|>commentary to=",
    "<|message|>",
    "<|call|>",
    usual=" <|constrain|>json",
    skipped=("<|channel|>commentary", "<|channel|>analysis", "<|constrain|>", "json", "code"),
    name="functions.{name}",
    pattern=r"(?:functions\.)?(.+)",
    separator="<|start|>assistant",
)
_HARMONY = (
    "<|start|>assistant",
    "<|channel|>final<|message|>",
    "<|channel|>commentary<|message|>",
    "<|end|>",
    "<|return|>",
)

_HUNYUAN = Family(
    "hunyuan",
    _THINK,
    (replace(_ARG_KEYS, name_end="<tool_sep>"),),
    ("<tool_calls>", "</tool_calls>"),
    call_ends_thought=True,
    signs=("<tool_sep>", "<arg_key>"),
)


def _suffixed(name: str, suffix: str) -> Family:
    """Hunyuan 3's family: Hunyuan's markers, whose names have a suffix from the vocabulary."""

    def text(marker: str) -> str:
        return _TAG.sub(rf"\1:{suffix}>", marker)

    def all_texts(row: Any) -> Any:
        said = {each.name: getattr(row, each.name) for each in fields(row)}
        return replace(row, **{key: text(v) for key, v in said.items() if isinstance(v, str)})

    assert _HUNYUAN.thinking is not None
    return replace(
        _HUNYUAN,
        name=name,
        thinking=Thinking(*map(text, _HUNYUAN.thinking)),
        calls=tuple(map(all_texts, _HUNYUAN.calls)),
        sections=tuple(map(text, _HUNYUAN.sections)),
        signs=(f"<tool_sep:{suffix}>",),
        architectures=("HYV3ForCausalLM",),
    )


_LFM2 = Family(
    "lfm2",
    _THINK,
    (Pythonic(inside="<|tool_call_start|>"),),
    ("<|tool_call_start|>", "<|tool_call_end|>"),
    signs=("<|tool_list_start|>",),
)
_MINIMAX_MARK = "]<]minimax[>["

# In the order in which they are looked for: whose signs another's contain comes after it.
_KNOWN = (
    Family(
        "gpt_oss",
        Thinking("<|channel|>analysis<|message|>", "<|end|>"),
        (
            _TO_FUNCTION,
            replace(_TO_FUNCTION, begin="<|channel|>analysis to="),
            replace(_TO_FUNCTION, begin="<|start|>assistant to="),
        ),
        silent=_HARMONY,
        headers=(
            Header("<|channel|>final", "<|message|>", "<|constrain|>"),
            Header("<|channel|>commentary", "<|message|>", "<|constrain|>"),
        ),
        signs=("<|channel|>", "<|message|>", "<|call|>"),
        architectures=("GptOssForCausalLM",),
    ),
    Family(
        "kimi_k2",
        _THINK,
        (_KIMI_K2,),
        (*_KIMI, "<|tool_call_section_begin|>", "<|tool_call_section_end|>"),
        call_ends_thought=True,
        signs=("<|tool_call_begin|>", *_KIMI),
    ),
    Family(
        "kimi_k3",
        Thinking("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        (Attributed(),),
        ("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
        ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        call_ends_thought=True,
        signs=("<|open|>", "<|close|>", "<|sep|>"),
        thought_sign="think",
        architectures=("KimiK3ForConditionalGeneration", "KimiK3LinearForCausalLM"),
    ),
    Family(
        "gemma4",
        Thinking("<|channel>thought", "<channel|>"),
        (Unquoted("<|tool_call>call:", "<tool_call|>", quote='<|"|>'),),
        signs=("<|tool_call>call:", "<tool_call|>"),
        architectures=("Gemma4ForConditionalGeneration", "Gemma4ForCausalLM"),
    ),
    Family("deepseek_r1", _THINK, (_DEEPSEEK_V3,), _DEEPSEEK, signs=(*_V3_SIGNS, "</think>")),
    Family("deepseek_v3", None, (_DEEPSEEK_V3,), _DEEPSEEK, signs=_V3_SIGNS),
    Family("deepseek_v31", _THINK, (_DEEPSEEK_V31,), _DEEPSEEK, signs=("<｜tool▁sep｜>",)),
    Family(
        "deepseek_v32",
        _THINK,
        (_DSML,),
        _DSML_SECTIONS,
        signs=("｜DSML｜function_calls",),
        architectures=("DeepseekV32ForCausalLM",),
    ),
    Family(
        "deepseek_v4",
        _THINK,
        (_DSML, _DSML_SPACED),
        (*_DSML_SECTIONS, *_DSML_SPACED_SECTIONS),
        call_ends_thought=True,
        signs=("｜DSML｜tool_calls",),
        architectures=("DeepseekV4ForCausalLM",),
    ),
    Family(
        "deepseek_v41",
        _THINK,
        (_DSML_SPACED, _DSML),
        (*_DSML_SPACED_SECTIONS, *_DSML_SECTIONS),
        call_ends_thought=True,
        signs=("｜DSML｜ calls",),
        architectures=("DeepseekV41ForCausalLM",),
    ),
    Family(
        "seed_oss",
        Thinking("<seed:think>", "</seed:think>"),
        (
            replace(
                _QWEN_FUNCTION,
                begin="<seed:tool_call>\n<function=",
                end="</function>\n</seed:tool_call>",
            ),
        ),
        signs=("<seed:tool_call>",),
    ),
    Family(
        "qwen3_coder",
        _THINK,
        (_QWEN_FUNCTION,),
        call_ends_thought=True,
        signs=("<tool_call>", "<function="),
    ),
    _HUNYUAN,
    _suffixed("hy3", "opensource"),
    Family(
        "glm45",
        _THINK,
        (_ARG_KEYS,),
        call_ends_thought=True,
        signs=("<tool_call>", "<arg_key>"),
    ),
    Family(
        "minimax_m2",
        _THINK,
        (replace(_INVOKE, inside="<minimax:tool_call>"),),
        ("<minimax:tool_call>", "</minimax:tool_call>"),
        signs=("<minimax:tool_call>",),
    ),
    Family(
        "step3",
        _THINK,
        (
            replace(
                _INVOKE,
                begin='<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="',
                key='<steptml:parameter name="',
                value_end="</steptml:parameter>",
                end="</steptml:invoke><｜tool_call_end｜>",
            ),
        ),
        ("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
        signs=("steptml:invoke",),
    ),
    Family(
        "minimax_m3",
        Thinking("<mm:think>", "</mm:think>"),
        (Nested(_MINIMAX_MARK, f"{_MINIMAX_MARK}\n<tool_call>", "</tool_call>"),),
        # Answers without thoughts may begin with the end of one.
        silent=("</mm:think>",),
        signs=(_MINIMAX_MARK,),
        architectures=("MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"),
    ),
    Family(
        "qwen3",
        _THINK,
        (_HERMES,),
        call_ends_thought=True,
        signs=("<tool_call>", "</think>"),
    ),
    Family("hermes", None, (_HERMES,), signs=("<tool_call>",)),
    Family(
        "mistral_args",
        None,
        (_MISTRAL_NAMED, _MISTRAL_ARRAY),
        signs=("[TOOL_CALLS]", "[ARGS]"),
    ),
    Family("mistral", None, (_MISTRAL_ARRAY, _MISTRAL_NAMED), signs=("[TOOL_CALLS]",)),
    Family(
        "command_a",
        Thinking("<|START_THINKING|>", "<|END_THINKING|>"),
        (
            Objects(
                "<|START_ACTION|>",
                "<|END_ACTION|>",
                array=True,
                arguments="parameters",
                name="tool_name",
                id="tool_call_id",
            ),
        ),
        silent=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        signs=("<|START_ACTION|>",),
    ),
    Family(
        "llama4",
        None,
        (Pythonic(), replace(JSON_ARRAY, begin="[", first=True), Objects(arguments="parameters")),
        ("<|python_start|>", "<|python_end|>"),
        signs=("<|python_start|>",),
        architectures=("Llama4ForConditionalGeneration",),
    ),
    Family(
        "llama3_json",
        None,
        (Objects(arguments="parameters", separator="; "), _PYTHON_TAG),
        signs=("<|start_header_id|>", '"parameters"'),
    ),
    Family(
        "granite",
        None,
        (Objects("<|tool_call|>", array=True), Objects("<tool_call>", array=True)),
        signs=("<|start_of_role|>", "<|tool_call|>"),
    ),
    Family(
        "phi4_mini",
        None,
        (
            Objects("<|tool_call|>", "<|/tool_call|>", array=True),
            Objects("functools", array=True, first=True),
        ),
        signs=("<|tool|>", "<|/tool|>"),
    ),
    Family(
        "internlm",
        None,
        (
            replace(_PLUGIN, begin="<|action_start|><|plugin|>\n"),
            replace(_PLUGIN, begin="<|action_start|> <|plugin|>\n"),
        ),
        signs=("<|action_start|>", "<|plugin|>"),
    ),
    Family(
        "hunyuan_a13b",
        _THINK,
        (_TOOL_CALLS,),
        silent=("<answer>", "</answer>"),
        signs=("<tool_calls>", "<answer>"),
    ),
    Family("jamba", None, (_TOOL_CALLS,), signs=("<tool_calls>",)),
    Family(
        "nemotron_json",
        _THINK,
        (Objects("<TOOLCALL>", "</TOOLCALL>", array=True),),
        signs=("<TOOLCALL>",),
    ),
    _LFM2,
    replace(_LFM2, signs=_LFM2.sections),
    Family("pythonic", None, (Pythonic(),)),
    Family("json_array", None, (JSON_ARRAY,)),
    Family("think", _THINK, signs=("think>",)),
    Family("magistral", Thinking("[THINK]", "[/THINK]"), signs=("THINK]",)),
)

FAMILIES: Mapping[str, Family] = {family.name: family for family in _KNOWN}
"""By name, as settings spell it. "think" and "magistral" tell reasoning alone."""


@lru_cache(maxsize=64)
def named(name: str) -> Family:
    """The family of a name: one of `FAMILIES`, or `hy3:SUFFIX`. Raises KeyError."""
    suffix = name.removeprefix(_SUFFIXES)
    if suffix == name or not _SUFFIX.fullmatch(suffix):
        return FAMILIES[name]
    family = _suffixed(name, suffix)
    return FAMILIES["hy3"] if family.signs == FAMILIES["hy3"].signs else family


def detect(
    chat_template: str | None, architectures: Sequence[str], tokens: Collection[str]
) -> Family | None:
    """The family of a model by its chat template, or by its added tokens if that says nothing, or
    else by its architecture. None: it cannot be told.

    The family has `thinking` or `calls` alone where no more than that is known of the model.
    """
    for text in (chat_template or "", "\n".join(tokens)):
        if suffixed := _SUFFIXED.search(text):
            family = named(f"{_SUFFIXES}{suffixed[1]}")
            return replace(family, thinking=_thinking_in(text, family))
        for family in _KNOWN:
            if family.signs and all(sign in text for sign in family.signs):
                return replace(family, thinking=_thinking_in(text, family))
    return next((each for each in _KNOWN if {*architectures} & {*each.architectures}), None)


def _thinking_in(text: str, family: Family) -> Thinking | None:
    """The markers of reasoning that the model has: the family's, or those of another. Templates
    write the beginning alone, or take all up to the end out of earlier answers, or both.
    """
    if family.thought_sign and family.thought_sign in text:
        return family.thinking
    all_known = (family.thinking, _THINK, FAMILIES["magistral"].thinking)
    known = [each for each in all_known if each is not None]
    return next((each for each in known if each.begin in text or each.end in text), None)


OFFERED = ModelFamilies(FAMILIES.keys(), named, detect)
"""What the kit's entry point names."""
