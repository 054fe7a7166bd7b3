"""What agents send beside their prompts: declarations, hints and offers are dropped and named, the
tools and instructions reach the model, and calls come back as the agent knows its tools.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from harness import BOTH_WAYS, MODEL, Harness, error_of, events, serving
from one_case import one_case
from spoken import Script

from tandem.text.tokenizer import Tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")
HEADER = "x-tandem-ignored-fields"
PATH = {"type": "object", "properties": {"path": {"type": "string"}}}
READ = {"type": "function", "name": "read", "parameters": PATH}
FILES = {
    "type": "namespace",
    "name": "files",
    "description": "Files of the project.",
    "tools": [READ | {"name": "write"}, {"type": "custom", "name": "patch"}],
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Changes files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin hunk end"},
}
USER = {"role": "user", "content": "Go on."}
CLAUDE = {
    "model": MODEL,
    "max_tokens": 50,
    "messages": [USER],
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.1c0; cch=a1;"},
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
    ],
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "thinking": {"type": "adaptive"},
    "metadata": {"user_id": "user_a_account__session_b"},
}
CODEX = {
    "model": MODEL,
    "instructions": "You are an agent.",
    "input": [
        {"type": "message", "role": "developer", "content": "Never delete files."},
        {"type": "message", "role": "developer", "content": "The sandbox is read-only."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go on."}]},
    ],
    "tools": [READ, FILES, {"type": "web_search", "external_web_access": False}],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "detailed"},
    "text": {"verbosity": "low"},
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "thread",
    "client_metadata": {"x-codex-installation-id": "i"},
    "store": False,
}
SCRIPT = Script()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(model_path: Path) -> AsyncIterator[Harness]:
    """A model that does not think, and calls tools."""
    async with serving(model_path, SCRIPT, {"model_family": "hermes"}) as harness:
        await harness.set_fleet(logits_processors=("json_schema", "tagged"))
        yield harness


@pytest.fixture(autouse=True)
def _says_well() -> None:
    """What the model says where a test wants nothing of it."""
    SCRIPT.says("Well.")


async def ask(served: Harness, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    return await served.http.post(path, json=body, headers=headers)


def dropped(response: httpx.Response) -> set[str]:
    assert response.status_code == 200, response.text
    return {*response.headers.get(HEADER, "").split(", ")} - {""}


@pytest.fixture
def prompt(model_path: Path) -> Any:
    """The last that the model was shown."""
    tokenizer = Tokenizer.load(model_path)
    return lambda: tokenizer.decode(SCRIPT.tasks[-1].prompt_token_ids)


def called(name: str, arguments: dict[str, Any]) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


# --- Claude Code ---


@pytest.mark.promise("S5-622")
async def test_claude_codes_request_is_answered_and_its_hints_are_named(
    served: Harness, prompt: Any
) -> None:
    answer = await ask(served, "/v1/messages?beta=true", CLAUDE)
    assert dropped(answer) == {
        "context_management",
        "output_config.effort",
        "system[].cache_control",
        "x-anthropic-billing-header",
    }
    assert "You are an agent." in prompt()
    assert "billing" not in prompt()


@pytest.mark.promise("S5-622")
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"context_management": {"edits": []}}, set()),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            {"context_management"},
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"thinking.budget_tokens"}),
        ({"mcp_servers": []}, set()),
        ({"mcp_servers": [{"type": "url", "url": "http://a", "name": "b"}]}, {"mcp_servers"}),
        ({"container": "c"}, {"container"}),
        ({"service_tier": "priority"}, set()),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]},
            {"tools[web_search]"},
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, {"tools[bash]"}),
        ({"tools": [{"type": "mcp_toolset", "mcp_server_name": "a"}]}, {"tools[mcp_toolset]"}),
    ],
)
async def test_what_is_only_offered_is_dropped_and_named(
    served: Harness, fields: dict[str, Any], named: set[str]
) -> None:
    body = {"model": MODEL, "max_tokens": 50, "messages": [USER]} | fields
    assert dropped(await ask(served, "/v1/messages", body)) == named
    if "service_tier" not in fields:
        count = {name: value for name, value in body.items() if name != "max_tokens"}
        counted = await ask(served, "/v1/messages/count_tokens", count)
        assert dropped(counted) == named


@pytest.mark.promise("S5-622")
async def test_tools_that_a_client_has_found_are_shown_by_name(
    served: Harness, prompt: Any
) -> None:
    found = [{"type": "tool_reference", "tool_name": name} for name in ("Grep", "Glob")]
    result = {"type": "tool_result", "tool_use_id": "t", "content": found}
    search = {"type": "tool_use", "id": "t", "name": "ToolSearch", "input": {"query": "find"}}
    said = [USER, {"role": "assistant", "content": [search]}]
    body = {"model": MODEL, "max_tokens": 50}
    messages = [*said, {"role": "user", "content": [result]}]
    assert dropped(await ask(served, "/v1/messages", body | {"messages": messages})) == set()
    assert "Grep\nGlob" in prompt()
    for role in ("user", "assistant"):
        wrong = [*said, {"role": role, "content": found}]
        refused = await ask(served, "/v1/messages", body | {"messages": wrong})
        assert refused.status_code == 400
        assert "result" in refused.json()["error"]["message"]


@pytest.mark.promise("S5-622")
@pytest.mark.parametrize(
    ("include", "named"),
    [
        ([], set()),
        (["reasoning.encrypted_content"], set()),
        (["reasoning.encrypted_content", "web_search_call.action.sources"], {"include"}),
        (["file_search_call.results"], {"include"}),
        (["reasoning.encrypted_content", "message.output_text.logprobs"], None),
        ([["reasoning.encrypted_content"]], None),
        (["file_search_call.results"] * 100, None),
    ],
)
async def test_what_built_in_tools_found_is_not_included(
    served: Harness, include: list[Any], named: set[str] | None
) -> None:
    """None: it is refused."""
    body = {"model": MODEL, "input": "Hi", "include": include}
    answer = await ask(served, "/v1/responses", body)
    if named is None:
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "include")
    else:
        assert dropped(answer) == named


@pytest.mark.promise("S5-622")
async def test_a_tool_that_is_left_out_cannot_be_forced(served: Harness) -> None:
    body = {"model": MODEL, "max_tokens": 50, "messages": [USER]}
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    choice = {"type": "tool", "name": "web_search"}
    refused = await ask(served, "/v1/messages", body | {"tools": tools, "tool_choice": choice})
    assert refused.status_code == 400
    assert "tool_choice" in refused.json()["error"]["message"]


@pytest.mark.promise("S5-622")
async def test_a_prompt_of_a_preamble_alone_is_an_empty_one(served: Harness) -> None:
    system = {"role": "system", "content": "x-anthropic-billing-header: a"}
    refused = await served.chat(
        messages=[system], continue_final_message=True, add_generation_prompt=False
    )
    assert error_of(refused)[::2] == (400, "continue_final_message")


# --- Codex ---


@pytest.mark.promise("S5-623")
async def test_codexs_request_is_answered_and_its_hints_are_named(
    served: Harness, prompt: Any
) -> None:
    answer = await ask(served, "/v1/responses", CODEX)
    assert dropped(answer) == {
        "client_metadata",
        "reasoning.effort",
        "reasoning.summary",
        "text.verbosity",
        "tools[web_search]",
    }
    for told in ("You are an agent.", "Never delete files.", "The sandbox is read-only."):
        assert told in prompt()
    for name in ("read", "files__write", "files__patch"):
        assert f'"name": "{name}"' in prompt()
    assert [tool["type"] for tool in answer.json()["tools"]] == ["function", "namespace"]


@pytest.mark.promise("S5-623")
@BOTH_WAYS
async def test_a_call_of_a_tool_in_a_namespace_comes_back_as_the_client_knows_it(
    served: Harness, prompt: Any, stream: bool
) -> None:
    SCRIPT.says(called("files__write", {"path": "a"}))
    (item,) = output_of(await ask(served, "/v1/responses", CODEX | {"stream": stream}))
    assert (item["type"], item["namespace"], item["name"]) == ("function_call", "files", "write")
    result = {"type": "function_call_output", "call_id": item["call_id"], "output": "done"}
    SCRIPT.says("Well.")
    again = CODEX | {"input": [*CODEX["input"], item, result]}  # type: ignore[misc]
    assert "Well." in (await ask(served, "/v1/responses", again)).text
    assert called("files__write", {"path": "a"}) in prompt()


@pytest.mark.promise("S5-623")
@BOTH_WAYS
async def test_a_custom_tool_is_called_with_its_text(
    served: Harness, prompt: Any, stream: bool
) -> None:
    text = '*** Begin Patch\n+ a "b"\n'
    SCRIPT.says(called("apply_patch", {"input": text}))
    body = CODEX | {"tools": [PATCH], "stream": stream}
    answer = await ask(served, "/v1/responses", body)
    (item,) = output_of(answer)
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "apply_patch", text)
    assert "start: begin hunk end" in prompt()
    if stream:
        for event in ("delta", "done"):
            assert f"event: response.custom_tool_call_input.{event}\n" in answer.text
    result = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "done"}
    SCRIPT.says("Well.")
    again = body | {"input": [USER, item, result], "stream": False}
    assert "Well." in (await ask(served, "/v1/responses", again)).text
    assert called("apply_patch", {"input": text}) in prompt()


def output_of(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"].startswith("application/json"):
        found: list[dict[str, Any]] = answer.json()["output"]
        return found
    last = answer.text.removesuffix("\n\n").rpartition("\ndata: ")[2]
    done: list[dict[str, Any]] = json.loads(last)["response"]["output"]
    return done


@pytest.mark.promise("S5-623")
async def test_what_a_namespace_may_not_be_is_refused_by_name(served: Harness) -> None:
    nested = FILES | {"tools": [FILES]}
    refused = await ask(served, "/v1/responses", CODEX | {"tools": [nested]})
    assert error_of(refused) == (400, "invalid_request", "tools[0].tools[0].type")
    long = FILES | {"name": "x" * 127}
    refused = await ask(served, "/v1/responses", CODEX | {"tools": [long]})
    assert error_of(refused) == (400, "invalid_request", "tools")


@pytest.mark.promise("S5-624")
@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_calls_are_kept_to_the_tools_that_are_allowed(
    served: Harness, prompt: Any, mode: str
) -> None:
    """The prompt names the others too: the prefix stays the same."""
    allowed = {"type": "function", "name": "read"}
    choice = {"type": "allowed_tools", "mode": mode, "tools": [allowed]}
    tools = [READ, READ | {"name": "write"}]
    SCRIPT.says(called("write", {"path": "a"}))
    body = CODEX | {"tools": tools, "tool_choice": choice}
    answer = await ask(served, "/v1/responses", body)
    assert {item["type"] for item in output_of(answer)} == {"message"}
    assert '"name": "write"' in prompt()
    if mode == "required":
        (form,) = SCRIPT.tasks[-1].logits.processors
        begins = [call["begin"] for call in json.loads(form.args_json)["calls"]]
        assert len(begins) == 1
        assert "read" in begins[0]
    unknown = choice | {"tools": [allowed | {"name": "other"}]}
    refused = await ask(served, "/v1/responses", body | {"tool_choice": unknown})
    assert error_of(refused)[::2] == (400, "tool_choice")


@pytest.mark.promise("S5-624")
async def test_chats_too_keep_calls_to_the_tools_that_are_allowed(served: Harness) -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": PATH}}
        for name in ("read", "write")
    ]
    kept = {"type": "function", "function": {"name": "read"}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [kept]}}
    for name, calls in (("read", 1), ("write", 0)):
        SCRIPT.says(called(name, {"path": "a"}))
        answer = await served.chat(tools=tools, tool_choice=choice)
        assert len(answer.json()["choices"][0]["message"].get("tool_calls") or ()) == calls
    custom = [*tools, {"type": "custom", "custom": {"name": "f"}}]
    assert dropped(await served.chat(tools=custom)) == {"tools[custom]"}


# --- what every client may send ---


@pytest.mark.promise("S5-625", "S5-633")
@one_case(
    ("fields", "tier", "priority"),
    [
        ({"service_tier": "auto"}, "default", 0),
        ({"service_tier": "default"}, "default", 0),
        ({"service_tier": "flex"}, "flex", -50),
        ({"service_tier": "priority"}, "priority", 50),
        ({"service_tier": "flex", "priority": 3}, "priority", 3),
        ({"service_tier": "priority", "priority": 0}, "default", 0),
    ],
)
async def test_a_tier_is_a_class_of_the_queue_and_the_answer_names_that_it_was_really_in(
    served: Harness, fields: dict[str, Any], tier: str, priority: int
) -> None:
    assert (await served.chat(**fields)).json()["service_tier"] == tier
    assert SCRIPT.submits[-1].priority == priority
    chunks = events((await served.chat(**fields, stream=True)).text)
    assert {chunk["service_tier"] for chunk in chunks} == {tier}
    assert "service_tier" not in (await served.chat(priority=3)).json()
    assert "service_tier" not in (await served.complete(**fields)).json()
    if "priority" not in fields:
        body = {"model": MODEL, "input": "Hi"} | fields
        response = await served.http.post("/v1/responses", json=body)
        assert response.json()["service_tier"] == tier


@pytest.mark.promise("S5-633")
@pytest.mark.parametrize(
    ("asked", "tier"),
    [(None, "standard"), ("flex", "standard"), ("auto", "standard"), ("priority", "priority")],
)
async def test_the_usage_of_a_message_names_the_tier_in_anthropics_words(
    served: Harness, asked: str | None, tier: str
) -> None:
    body = {"model": MODEL, "max_tokens": 5, "messages": [USER], "service_tier": asked}
    whole = await served.http.post("/v1/messages", json=body)
    assert whole.json()["usage"]["service_tier"] == tier
    streamed = (await served.http.post("/v1/messages", json=body | {"stream": True})).text
    data = [json.loads(line[6:]) for line in streamed.split("\n") if line.startswith("data: ")]
    (start,) = [each["message"] for each in data if each["type"] == "message_start"]
    assert start["usage"]["service_tier"] == tier


@pytest.mark.promise("S5-639")
@pytest.mark.parametrize("size", [0, 17_000], ids=["on the loop", "in a process"])
async def test_a_tool_of_a_type_that_nobody_knows_is_an_offer(served: Harness, size: int) -> None:
    """It is dropped and named, as those are that are known, and the other tools are kept."""
    unknown = {"type": "teleport_20301231", "name": "t", "deep": [1, {"x": "y" * size}]}
    function = {"type": "function", "function": {"name": "read", "parameters": PATH}}
    mine = {"name": "read", "input_schema": PATH}
    chat = {"model": MODEL, "messages": [USER]}
    response = {"model": MODEL, "input": "Hi"}
    inner = FILES | {"tools": [READ, unknown]}
    for path, body, label in (
        ("/v1/chat/completions", chat | {"tools": [function, unknown]}, "tools[teleport]"),
        ("/v1/responses", response | {"tools": [unknown, READ]}, "tools[teleport]"),
        ("/v1/responses", response | {"tools": [inner]}, "tools[].tools[teleport]"),
        ("/v1/messages", chat | {"max_tokens": 5, "tools": [unknown, mine]}, "tools[teleport]"),
        ("/v1/messages/count_tokens", chat | {"tools": [mine, unknown]}, "tools[teleport]"),
        ("/tokenize", chat | {"tools": [function, unknown]}, "tools[teleport]"),
    ):
        answer = await served.http.post(path, json=body)
        assert (answer.status_code, answer.headers.get(HEADER)) == (200, label)
    metrics = await served.http.get(f"http://127.0.0.1:{served.metrics_port}/metrics")
    assert "teleport" not in metrics.text, "clients add no names to metrics"


@pytest.mark.promise("S5-639")
@one_case(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "t"}}},
            "tool_choice",
        ),
        ({"tool_choice": {"type": "teleport"}}, "tool_choice.type"),
        ({"tools": [{"type": "funtion", "function": {"name": "t"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function_2", "function": {"name": "t"}}]}, "tools[0].type"),
        ({"tools": [{"type": "namespace", "name": "t"}]}, "tools[0].type"),
        ({"tools": [{"type": 7, "name": "t"}]}, "tools[0].type"),
        ({"tools": [{"name": "t"}]}, "tools[0].type"),
        ({"tools": [{"type": f"t{'x' * place}"} for place in range(17)]}, "tools[16].type"),
    ],
)
async def test_a_type_that_must_be_called_or_is_a_slip_is_refused(
    served: Harness, fields: dict[str, Any], param: str
) -> None:
    asked = {"tools": [{"type": "teleport", "name": "t"}]} | fields
    refused = await served.chat(**asked)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


@pytest.mark.promise("S5-625")
async def test_a_requests_own_salt_keeps_its_prefixes_apart(served: Harness) -> None:
    salts = []
    for fields in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"extra_key": "a"}):
        assert (await served.chat(**fields)).status_code == 200
        salts.append(SCRIPT.tasks[-1].cache_salt)
    assert len({*salts}) == 4
    assert max(map(len, salts)) <= 64
    long = await served.chat(cache_salt="x" * 257)
    assert error_of(long) == (400, "invalid_request", "cache_salt")
