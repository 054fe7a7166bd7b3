"""Tools and reasoning through whole stacks, with a hook that reads what the parser will read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tool_hook
from openai import OpenAI

from tandem.engine import model_files
from tandem.testing.sim_stack import SimStack, sim_stack

USER = {"role": "user", "content": "What is the code of my door?"}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"door": {"type": "string"}}},
        },
    }
    for name in ("look", "delete")
]
THOUGHT = "<think>I look it up.</think>"
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])


def call(name: str, door: str = "front") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"door": "{door}"}}}}\n</tool_call>'


@pytest.fixture(scope="module")
def stack() -> Iterator[SimStack]:
    settings = {"frontend": {"model_family": "qwen3"}}
    with sim_stack(tool_hook.ToolGuard, settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def openai(stack: SimStack) -> Iterator[OpenAI]:
    with OpenAI(base_url=stack.base_url, api_key="none", max_retries=0) as client:
        yield client


def asked(
    openai: OpenAI, stack: SimStack, says: str, *, stream: bool, messages: list[Any] | None = None
) -> tuple[Any, str, str | None]:
    """What the client's library makes of an answer: its message, finish_reason, stop_reason."""
    fields: dict[str, Any] = {
        "model": stack.model,
        "messages": messages or [USER],
        "tools": TOOLS,
        "extra_body": stack.saying(says),
    }
    if stream:
        with openai.chat.completions.stream(**fields) as events:
            ends = [event.chunk.choices[0] for event in events if event.type == "chunk"]
            choice = events.get_final_completion().choices[0]
        (end,) = [end for end in ends if end.finish_reason]
    else:
        end = choice = openai.chat.completions.create(**fields).choices[0]
    return choice.message, choice.finish_reason, (end.model_extra or {}).get("stop_reason")


@BOTH_WAYS
@pytest.mark.promise("S6-310", "S6-311", "S6-313")
def test_a_tool_is_called_over_two_turns_with_the_clients_own_objects(
    openai: OpenAI, stack: SimStack, stream: bool
) -> None:
    message, reason, _ = asked(openai, stack, THOUGHT + call("look"), stream=stream)
    assert reason == "tool_calls"
    assert message.reasoning_content == "I look it up."
    (made,) = message.tool_calls
    assert (made.function.name, made.function.arguments) == ("look", '{"door": "front"}')
    result = {"role": "tool", "tool_call_id": made.id, "content": "1234"}
    again = [USER, message, result]
    message, reason, _ = asked(openai, stack, "It is 1234.", stream=stream, messages=again)
    assert (message.content, reason) == ("It is 1234.", "stop")


@BOTH_WAYS
@pytest.mark.promise("S0-033")
def test_a_hook_reads_the_text_before_it_is_taken_apart(
    openai: OpenAI, stack: SimStack, stream: bool
) -> None:
    message, reason, why = asked(openai, stack, "Well. " + call("delete"), stream=stream)
    assert (reason, why) == ("stop", tool_hook.FORBIDDEN)
    assert not message.tool_calls
    said = message.content or ""
    assert said.startswith("Well.")
    assert "front" not in said


@BOTH_WAYS
@pytest.mark.promise("S0-033")
def test_what_a_hook_rewrites_is_rewritten_in_arguments_and_reasoning(
    openai: OpenAI, stack: SimStack, stream: bool
) -> None:
    says = "<think>The code is 1777.</think>" + call("look", "7th")
    message, _, _ = asked(openai, stack, says, stream=stream)
    assert message.reasoning_content == "The code is 1***."
    assert message.tool_calls[0].function.arguments == '{"door": "*th"}'


@pytest.fixture(scope="module")
def harmony() -> Iterator[SimStack]:
    settings = {"frontend": {"model_family": "gpt_oss"}}
    with sim_stack(tool_hook.ToolGuard, settings=settings) as running:
        yield running


@BOTH_WAYS
@pytest.mark.promise("S0-026")
def test_a_model_of_channels_runs_with_a_hook_that_reads_them(
    harmony: SimStack, stream: bool
) -> None:
    called = (
        "<|channel|>analysis<|message|>The code is 1777.<|end|><|start|>assistant<|channel|>"
        'commentary to=functions.look <|constrain|>json<|message|>{"door": "7th"}<|call|>'
    )
    said = "<|channel|>final<|message|>It is 17. ENOUGH said"
    with OpenAI(base_url=harmony.base_url, api_key="none", max_retries=0) as client:
        message, reason, _ = asked(client, harmony, called, stream=stream)
        assert message.reasoning_content == "The code is 1***."
        (made,) = message.tool_calls
        assert (made.function.name, made.function.arguments) == ("look", '{"door": "*th"}')
        assert reason == "tool_calls"
        message, reason, why = asked(client, harmony, said, stream=stream)
    assert message.content.startswith("It is 1*. ")
    assert "ENOUGH" not in message.content
    assert (reason, why) == ("stop", tool_hook.CUT)


@BOTH_WAYS
@pytest.mark.promise("S0-016")
def test_the_end_of_a_hook_after_a_call_is_still_the_hooks(
    openai: OpenAI, stack: SimStack, stream: bool
) -> None:
    message, reason, why = asked(openai, stack, call("look") + " ENOUGH said", stream=stream)
    assert (reason, why) == ("stop", tool_hook.CUT)
    assert [made.function.name for made in message.tool_calls] == ["look"]


def test_fields_that_are_logits_processors_pass_a_router_that_allows_none(
    model_path: Path, openai: OpenAI, stack: SimStack
) -> None:
    """An answer that would end at once goes on, and a thought that would go on ends."""
    fields: dict[str, Any] = {"model": stack.model, "messages": [USER], "max_tokens": 60}
    (end,) = model_files.eos_token_ids(model_path)
    ends = {"logit_bias": {str(end): 100}}
    least = openai.chat.completions.create(**fields, **ends, extra_body={"min_tokens": 40})
    assert least.usage is not None
    assert least.usage.completion_tokens == 41
    opened = {"continue_final_message": True, "add_generation_prompt": False}
    fields["messages"] = [USER, {"role": "assistant", "content": "<think>"}]
    thought = openai.chat.completions.create(
        **fields,
        extra_body=opened | {"thinking_token_budget": 10},
        logit_bias={str(end): -100},
    )
    assert thought.usage is not None
    details = thought.usage.completion_tokens_details
    assert details is not None
    assert 0 < (details.reasoning_tokens or 0) < 30
    assert thought.choices[0].message.content
