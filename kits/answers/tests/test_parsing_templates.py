"""A model's family is told by its chat template, and reads what the template writes."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from one_case import one_case

from tandem_answers.parsing.families import FAMILIES, Family, detect, named
from tandem_answers.parsing.parser import Parser
from tandem_frontend.openai.answer_parsers import CallArguments, CallStart, Content, Reasoning
from tandem_frontend.openai.asked import Parsing
from tandem_frontend.openai.chat_template import ChatTemplate
from tandem_frontend.openai.conversation import ChatMessage
from tandem_frontend.openai.thought import thought_of
from tandem_frontend.openai.tools import CalledFunction, MadeCall

# The templates have the shape and the markers of the models' own, without what is of no matter
# here: how tools are declared, images, checks of roles.
GEMMA4 = r"""
{%- macro written(value) -%}
{%- if value is string -%}<|"|>{{ value }}<|"|>
{%- elif value is boolean -%}{{ 'true' if value else 'false' }}
{%- elif value is mapping -%}{{ '{' }}{% for key, each in value | dictsort -%}
{{ key }}:{{ written(each) }}{{ ',' if not loop.last }}{%- endfor -%}{{ '}' }}
{%- elif value is sequence -%}[{% for each in value -%}
{{ written(each) }}{{ ',' if not loop.last }}{%- endfor -%}]
{%- else -%}{{ value }}{%- endif -%}
{%- endmacro -%}
{%- if tools or enable_thinking -%}<|turn>system
{% if enable_thinking %}<|think|>{% endif %}{% for tool in tools or [] -%}
<|tool>declaration:{{ tool.function.name }}<tool|>{%- endfor %}<turn|>
{% endif %}{% for m in messages %}<|turn>{{ 'model' if m.role == 'assistant' else m.role }}
{% if m.reasoning_content %}<|channel>thought
{{ m.reasoning_content }}<channel|>{% endif %}
{%- for call in m.tool_calls or [] -%}
<|tool_call>call:{{ call.function.name }}{{ written(call.function.arguments) }}<tool_call|>
{%- endfor -%}{{ m.content }}<turn|>
{% endfor %}{% if add_generation_prompt %}<|turn>model
{% if not enable_thinking | default(false) %}{{ '<|channel>thought\n<channel|>' }}{% endif %}
{%- endif %}"""
MINIMAX_M3 = r"""{%- set ns_token = ']<]minimax[>[' -%}
{%- macro written(value) -%}
{%- if value is mapping -%}{% for key, each in value.items() -%}
{{ ns_token }}<{{ key }}>{{ written(each) }}{{ ns_token }}</{{ key }}>{%- endfor -%}
{%- elif value is string -%}{{ value }}
{%- elif value is iterable -%}{% for each in value -%}
{{ ns_token }}<item>{{ written(each) }}{{ ns_token }}</item>{%- endfor -%}
{%- else -%}{{ value | tojson }}{%- endif -%}
{%- endmacro -%}
{% for tool in tools or [] %}<tool>{{ tool | tojson }}</tool>{% endfor %}
{% for m in messages %}]~b]{{ 'ai' if m.role == 'assistant' else m.role }}
{% if m.role == 'assistant' %}
{%- if m.reasoning_content %}<mm:think>{{ m.reasoning_content }}{% endif %}</mm:think>{% endif %}
{{- m.content }}{% if m.tool_calls %}{{ ns_token ~ '<tool_call>\n' }}
{%- for call in m.tool_calls %}{{ ns_token ~ '<invoke name="' ~ call.function.name ~ '">' }}
{{- written(call.function.arguments) }}{{ ns_token ~ '</invoke>\n' }}{% endfor %}
{{- ns_token ~ '</tool_call>' }}{% endif %}[e~[
{% endfor %}{% if add_generation_prompt %}]~b]ai
{% if thinking_mode == 'enabled' %}<mm:think>{% endif %}{% endif %}"""
KIMI_K3 = r"""
{%- macro escape_attr(value) -%}
{{- value|string|replace('&', '&amp;')|replace('"', '&quot;') -}}{%- endmacro -%}
{%- macro open_tag(tag, attrs=[]) -%}{{- '<|open|>' + tag -}}{%- for attr in attrs -%}
{{- ' ' + attr[0] + '="' -}}{{- escape_attr(attr[1]) -}}{{- '"' -}}{%- endfor -%}
{{- '<|sep|>' -}}{%- endmacro -%}
{%- macro close_tag(tag) -%}{{- '<|close|>' + tag + '<|sep|>' -}}{%- endmacro -%}
{%- macro xtml_type(value) -%}
{%- if value is boolean -%}boolean{%- elif value is none -%}null{%- elif value is number -%}number
{%- elif value is string -%}string{%- elif value is mapping -%}object{%- else -%}array{%- endif -%}
{%- endmacro -%}
{%- if thinking is undefined -%}{%- set thinking = true -%}{%- endif -%}
{%- for tool in tools or [] -%}{{ tool | tojson }}{%- endfor -%}
{%- for m in messages -%}{{- open_tag('message', [('role', m.role)]) -}}
{%- if m.role == 'assistant' -%}
{%- if thinking -%}
{{- open_tag('think') + m.get('reasoning_content', '') + close_tag('think') -}}{%- endif -%}
{{- open_tag('response') + m.content + close_tag('response') -}}
{%- if m.tool_calls -%}{{- open_tag('tools') -}}{%- for call in m.tool_calls -%}
{{- open_tag('call', [('tool', call.function.name), ('index', loop.index)]) -}}
{%- for key, value in call.function.arguments.items() -%}
{{- open_tag('argument', [('key', key), ('type', xtml_type(value))]) -}}
{{- value if value is string else value|tojson -}}{{- close_tag('argument') -}}{%- endfor -%}
{{- close_tag('call') -}}{%- endfor -%}{{- close_tag('tools') -}}{%- endif -%}
{%- else -%}{{- m.content -}}{%- endif -%}
{{- close_tag('message') -}}{{- '<|end_of_msg|>' -}}{%- endfor -%}
{%- if add_generation_prompt -%}{{- open_tag('message', [('role', 'assistant')]) -}}
{{- open_tag('think' if thinking else 'response') -}}{%- endif -%}"""
DEEPSEEK_V41 = r"""{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for m in messages %}{{ '<｜User｜>' if m.role == 'user' else '<｜Assistant｜>' }}
{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}
{{- m.content }}{% if m.tool_calls %}{{ '\n\n<｜DSML｜ calls>\n' }}
{%- for call in m.tool_calls %}<｜DSML｜ invoke name="{{ call.function.name }}">
{% for key, value in call.function.arguments.items() -%}
<｜DSML｜ parameter name="{{ key }}" string="{{ 'true' if value is string else 'false' }}">
{{- value if value is string else value | tojson }}</｜DSML｜ parameter>
{% endfor %}</｜DSML｜ invoke>
{% endfor %}</｜DSML｜ calls>{% endif %}<｜end▁of▁sentence｜>{% endfor %}
{%- if add_generation_prompt %}<｜Assistant｜>
{{- '<think>' if thinking else '</think>' }}{% endif %}"""
HY3 = r"""{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for m in messages %}<｜hy_{{ m.role }}:opensource｜>
{%- if m.reasoning_content %}<think:opensource>{{ m.reasoning_content }}</think:opensource>
{%- endif %}{{ m.content }}{% if m.tool_calls %}<tool_calls:opensource>
{% for call in m.tool_calls -%}
<tool_call:opensource>{{ call.function.name }}<tool_sep:opensource>
{% for key, value in call.function.arguments.items() -%}
<arg_key:opensource>{{ key }}</arg_key:opensource>
<arg_value:opensource>{{ value if value is string else value | tojson }}</arg_value:opensource>
{% endfor %}</tool_call:opensource>
{% endfor %}</tool_calls:opensource>{% endif %}<｜hy_eos:opensource｜>{% endfor %}
{%- if add_generation_prompt %}<｜hy_assistant:opensource｜><think:opensource>{% endif %}"""
LFM25 = r"""
{%- macro format_arg_value(value) -%}
{%- if value is string -%}'{{ value }}'{%- elif value is mapping -%}{{ value | tojson -}}
{%- else -%}{{ value | string }}{%- endif -%}{%- endmacro -%}
{%- if tools %}List of tools: {{ tools | tojson }}{% endif -%}
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}
{%- if m.tool_calls %}<|tool_call_start|>[
{%- for call in m.tool_calls %}{{ call.function.name }}(
{%- for key, value in call.function.arguments.items() -%}
{{ key }}={{ format_arg_value(value) }}{{ ', ' if not loop.last }}{% endfor %})
{{- ', ' if not loop.last }}{% endfor %}]<|tool_call_end|>{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
STEP35 = r"""{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' %}<think>
{{ m.reasoning_content }}
</think>
{% endif %}{{ m.content }}{% for call in m.tool_calls or [] %}
<tool_call>
<function={{ call.function.name }}>
{% for key, value in call.function.arguments.items() %}<parameter={{ key }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"""


class Known(NamedTuple):
    """A template, its model's family, and what stands before and behind an answer."""

    template: str
    family: str
    turn: str
    end: str


MODELS = {
    "Gemma 4": Known(GEMMA4, "gemma4", "<|turn>model\n", "<turn|>"),
    "MiniMax M3": Known(MINIMAX_M3, "minimax_m3", "]~b]ai\n", "[e~["),
    "Kimi K3": Known(
        KIMI_K3, "kimi_k3", '<|open|>message role="assistant"<|sep|>', "<|end_of_msg|>"
    ),
    "DeepSeek V4.1": Known(
        DEEPSEEK_V41, "deepseek_v41", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"
    ),
    "Hy3": Known(HY3, "hy3", "<｜hy_assistant:opensource｜>", "<｜hy_eos:opensource｜>"),
    "Hy3 with another suffix": Known(
        HY3.replace(":opensource", ":v2"), "hy3:v2", "<｜hy_assistant:v2｜>", "<｜hy_eos:v2｜>"
    ),
    "LFM2.5": Known(LFM25, "lfm2", "<|im_start|>assistant\n", "<|im_end|>"),
    "Step 3.5": Known(STEP35, "qwen3_coder", "<|im_start|>assistant\n", "<|im_end|>"),
}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("weather", {"place": "Bern", "days": 3, "exact": True}),
    ("plan", {"stops": [{"at": "Basel", "hours": 1.5}], "note": "a, b: {c} <d> & [5]\n"}),
]
TOOLS: dict[str, dict[str, Any]] = {
    "weather": {"properties": {"days": {"type": "integer"}, "exact": {"type": "boolean"}}},
    "plan": {
        "properties": {
            "stops": {"type": "array", "items": {"$ref": "#/$defs/stop"}},
            "note": {"type": "string"},
        },
        "$defs": {"stop": {"properties": {"at": {"type": "string"}}}},
    },
}


def found(model: str) -> Family:
    family = detect(MODELS[model].template, [], [])
    assert family is not None
    return family


def read(model: str, answer: str, *, opened: bool = False) -> tuple[str, str, list[Any]]:
    """Reasoning, content and calls, as a request has its answer taken apart."""
    family = found(model)
    assert family.thinking is not None
    thought = thought_of(
        family.thinking, family.thinking.begin if opened else "", options={}, variables=()
    )
    parsing = Parsing(
        family=family.name, most_held=10_000, reasoning=True, thought=thought, tools=TOOLS
    )
    one = Parser(
        parsing.writes, reasoning=True, opened=parsing.opened, tools=TOOLS, most_held=10_000
    )
    parts = [*one.push(answer), *one.flush()]
    assert (one.broken, one.in_reasoning) == (0, False)
    arguments = [""] * one.calls
    for part in parts:
        if isinstance(part, CallArguments):
            arguments[part.call] += part.text
    names = [part.name for part in parts if isinstance(part, CallStart)]
    calls = list(zip(names, map(json.loads, arguments), strict=True))
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    content = "".join(part.text for part in parts if isinstance(part, Content))
    return reasoning.strip(), content.strip(), calls


def answer_of(model: str, **said: Any) -> str:
    """An answer, as the template writes it into the next turn's prompt."""
    template = ChatTemplate(MODELS[model].template, {})
    calls = [
        MadeCall(id=f"call{place}", function=CalledFunction(name=name, arguments=arguments))
        for place, (name, arguments) in enumerate(said.pop("calls", ()))
    ]
    messages = [
        ChatMessage(role="user", content="Go."),
        ChatMessage(role="assistant", tool_calls=calls or None, **said),
    ]
    prompt = template.render(messages, options={"add_generation_prompt": False})
    return prompt.rpartition(MODELS[model].turn)[2].rpartition(MODELS[model].end)[0]


@pytest.mark.promise("S5-630")
@pytest.mark.parametrize("model", MODELS)
def test_a_template_tells_the_family_and_the_family_reads_what_it_writes(model: str) -> None:
    family = found(model)
    assert family.name == MODELS[model].family
    assert family.thinking == named(family.name).thinking
    answer = answer_of(model, reasoning_content="I look.", content="Wait.", calls=CALLS)
    reasoning, content, calls = read(model, answer)
    assert calls == CALLS
    assert (reasoning, content) == ("I look.", "Wait.")


@pytest.mark.promise("S5-630")
@pytest.mark.parametrize("model", MODELS)
def test_an_answer_without_calls_shows_no_marker(model: str) -> None:
    answer = answer_of(model, reasoning_content="I know.", content="Five <b>, {6}.")
    assert read(model, answer) == ("I know.", "Five <b>, {6}.", [])


@pytest.mark.promise("S5-631")
@pytest.mark.parametrize(
    "model", ["Kimi K3", "DeepSeek V4.1", "Hy3", "Hy3 with another suffix", "Step 3.5"]
)
def test_a_call_ends_a_thought_that_the_model_forgot_to_end(model: str) -> None:
    calls = answer_of(model, content="", reasoning_content="", calls=CALLS)
    thinking = found(model).thinking
    assert thinking is not None
    calls = calls.rpartition(thinking.end)[2].rpartition("<|close|>response<|sep|>")[2]
    assert read(model, f"I call.\n{calls}", opened=True) == ("I call.", "", CALLS)


@one_case(
    ("model", "options", "state"),
    [
        ("Gemma 4", {}, "off"),
        ("Gemma 4", {"enable_thinking": True}, "possible"),
        ("MiniMax M3", {"thinking_mode": "enabled"}, "opened"),
        ("MiniMax M3", {}, "possible"),
        ("Kimi K3", {}, "opened"),
        ("Kimi K3", {"thinking": False}, "off"),
        ("DeepSeek V4.1", {}, "off"),
        ("DeepSeek V4.1", {"thinking": True}, "opened"),
        ("Hy3", {}, "opened"),
        ("LFM2.5", {}, "possible"),
        ("Step 3.5", {}, "opened"),
    ],
)
def test_the_prompt_tells_whether_the_answer_thinks(
    model: str, options: dict[str, Any], state: str
) -> None:
    template = ChatTemplate(MODELS[model].template, {})
    given = options | {"add_generation_prompt": True}
    prompt = template.render([ChatMessage(role="user", content="Go.")], options=given)
    variables = template.variables
    told = thought_of(found(model).thinking, prompt, options=options, variables=variables)
    assert told is not None
    assert told.state == state


@pytest.mark.parametrize("name", ["hy3:", "hy3:a b", "hy3:<x>", "hy4:x", "nobody"])
def test_a_family_that_nobody_knows_has_no_name(name: str) -> None:
    with pytest.raises(KeyError):
        named(name)


def test_the_suffix_of_most_checkpoints_is_the_family_itself() -> None:
    assert named("hy3:opensource") is FAMILIES["hy3"]
    tokens = ["<tool_sep:x1>", "<think:x1>", "</think:x1>"]
    told = detect("{{ messages }}", [], tokens)
    assert told is not None
    assert told.name == "hy3:x1"
    assert {"<think:x1>", "</arg_value:x1>", "<tool_calls:x1>"} <= {*told.markers}
