"""No instruction is lost on its way through a chat template, whatever roles the template takes."""

from __future__ import annotations

import pytest
from one_case import one_case

from tandem_frontend.openai.chat_template import ChatTemplate
from tandem_frontend.openai.conversation import ChatMessage, Role
from tandem_frontend.openai.system_messages import SystemMessages

CHATML = """\
{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}"""
QWEN3 = """\
{% if messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}{% for m in messages %}\
{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% elif m.role == 'assistant' %}<|im_start|>assistant
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}"""
QWEN35 = """\
{% for m in messages %}{% if m.role == 'system' %}{% if not loop.first %}\
{{ raise_exception('System message must be at the beginning.') }}{% endif %}<|im_start|>system
{{ m.content }}<|im_end|>
{% elif m.role in ('user', 'assistant') %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% else %}{{ raise_exception('Unexpected message role.') }}{% endif %}{% endfor %}"""
LLAMA3 = """\
{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content']|trim %}\
{% set messages = messages[1:] %}{% else %}{% set system_message = '' %}{% endif %}\
<|start_header_id|>system<|end_header_id|>

{{ system_message }}<|eot_id|>{% for m in messages %}<|start_header_id|>{{ m['role'] }}\
<|end_header_id|>

{{ m['content']|trim }}<|eot_id|>{% endfor %}"""
GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}\
{{ raise_exception('System role not supported') }}{% endif %}{% for m in messages %}\
{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate') }}{% endif %}<start_of_turn>\
{{ 'model' if m['role'] == 'assistant' else m['role'] }}
{{ m['content'] | trim }}<end_of_turn>
{% endfor %}"""
GEMMA3 = """\
{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\n\n' %}\
{% set loop_messages = messages[1:] %}{% else %}{% set first = '' %}\
{% set loop_messages = messages %}{% endif %}{% for m in loop_messages %}\
{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate') }}{% endif %}<start_of_turn>\
{{ m['role'] }}
{{ first if loop.first else '' }}{{ m['content'] }}<end_of_turn>
{% endfor %}"""
MISTRAL = """\
{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}\
{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}<s>{% for m in rest %}\
{% if m['role'] == 'user' %}{% if loop.last and system is defined %}\
[INST]{{ system }}

{{ m['content'] }}[/INST]{% else %}[INST]{{ m['content'] }}[/INST]{% endif %}\
{% elif m['role'] == 'assistant' %}{{ m['content'] }}</s>{% else %}\
{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"""
GPT_OSS = """\
{% if messages[0].role == 'developer' or messages[0].role == 'system' %}\
{% set developer = messages[0].content %}{% set rest = messages[1:] %}{% else %}\
{% set developer = '' %}{% set rest = messages %}{% endif %}\
<|start|>developer<|message|># Instructions

{{ developer }}<|end|>{% for m in rest %}{% if m.role == 'user' %}\
<|start|>user<|message|>{{ m.content }}<|end|>{% elif m.role == 'assistant' %}\
<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"""
DEEPSEEK = """\
{% set ns = namespace(system='') %}{% for m in messages %}{% if m['role'] == 'system' %}\
{% set ns.system = ns.system + m['content'] %}{% endif %}{% endfor %}{{ ns.system }}\
{% for m in messages %}{% if m['role'] == 'user' %}<｜User｜>{{ m['content'] }}\
{% elif m['role'] == 'assistant' %}<｜Assistant｜>{{ m['content'] }}{% endif %}{% endfor %}"""
OLD = """\
{% for m in messages %}{% if m.role == 'user' %}### User: {{ m.content }}
{% elif m.role == 'assistant' %}### Assistant: {{ m.content }}
{% endif %}{% endfor %}"""
LEADING = """\
{% set ns = namespace(talked=false) %}{% for m in messages %}{% if m.role == 'system' %}\
{% if ns.talked %}{{ raise_exception('Instructions come before the turns.') }}{% endif %}\
[{{ m.content }}]{% elif m.role in ('user', 'assistant') %}{% set ns.talked = true %}\
<{{ m.role }}>{{ m.content }}{% else %}{{ raise_exception('Unknown role.') }}{% endif %}\
{% endfor %}"""
FAMILIES = {
    "chatml": CHATML,
    "qwen3": QWEN3,
    "qwen3.5": QWEN35,
    "llama3": LLAMA3,
    "gemma": GEMMA,
    "gemma3": GEMMA3,
    "mistral": MISTRAL,
    "gpt-oss": GPT_OSS,
    "deepseek": DEEPSEEK,
    "no-roles": OLD,
    "leading": LEADING,
}
CHATS: dict[str, tuple[Role, ...]] = {
    "developer": ("developer", "user"),
    "two developers": ("developer", "developer", "user"),
    "codex": ("system", "developer", "developer", "user"),
    "two systems": ("system", "system", "user"),
    "later": ("system", "user", "assistant", "system", "user"),
    "later alone": ("user", "assistant", "system", "user"),
    "later developer": ("system", "user", "assistant", "developer", "user"),
    "last": ("user", "assistant", "user", "system"),
}


def rendered(template: str, *messages: ChatMessage) -> str:
    return ChatTemplate(template, {"bos_token": "<bos>"}).render(messages)


@pytest.mark.promise("S5-626")
@one_case("family", FAMILIES)
@one_case("chat", CHATS)
def test_no_instruction_is_lost_or_refused(family: str, chat: str) -> None:
    said = [
        ChatMessage(role=role, content=f"<{role} {place}>")
        for place, role in enumerate(CHATS[chat])
    ]
    prompt = rendered(FAMILIES[family], *said)
    assert [prompt.count(each.text) for each in said] == [1] * len(said)
    turns = [prompt.find(each.text) for each in said if each.role in ("user", "assistant")]
    assert turns == sorted(turns)
    told = [prompt.find(each.text) for each in said if each.role in ("system", "developer")]
    assert told == sorted(told)


@pytest.mark.promise("S5-626")
@one_case("family", [name for name in FAMILIES if name != "gpt-oss"])
def test_developer_is_system_where_the_template_does_not_name_it(family: str) -> None:
    user = ChatMessage(role="user", content="Go on.")
    prompts = [
        rendered(FAMILIES[family], ChatMessage(role=role, content="Be brief."), user)
        for role in ("system", "developer")
    ]
    assert prompts[0] == prompts[1]


@pytest.mark.promise("S5-626")
def test_a_template_of_which_nothing_can_be_found_out_gets_the_messages_as_they_are() -> None:
    strict = "{% if not mood %}{{ raise_exception('No mood.') }}{% endif %}" + CHATML
    said = [ChatMessage(role=role, content=f"<{role}>") for role in ("developer", "user")]
    prompt = ChatTemplate(strict, {}).render(said, options={"mood": "good"})
    assert prompt.startswith("<|im_start|>developer\n<developer>")


@pytest.mark.promise("S5-626")
def test_what_a_template_takes_stays_where_it_is() -> None:
    roles = CHATS["later"]
    said = [ChatMessage(role=role, content=f"<{place}>") for place, role in enumerate(roles)]
    places = [rendered(QWEN3, *said).find(each.text) for each in said]
    assert places == sorted(places)
    several = [ChatMessage(role=role, content=f"<{role}>") for role in ("system", "developer")]
    leading = rendered(LEADING, *several, ChatMessage(role="user", content="Go on."))
    assert leading == "[<system>][<developer>]<user>Go on."
    folded = rendered(QWEN35, *said)
    assert "<|im_start|>system\n<0>\n\n<3><|im_end|>" in folded


def test_a_chat_of_instructions_alone_takes_a_step_for_each() -> None:
    asked = 0

    class Counted(dict[str, str]):
        def __getitem__(self, key: str) -> str:
            nonlocal asked
            asked += key == "role"
            return super().__getitem__(key)

    said = [Counted(role="system", content=f"<{place}>") for place in range(500)]
    assert len(SystemMessages().placed(said)) == 500
    assert asked <= 3 * len(said)
