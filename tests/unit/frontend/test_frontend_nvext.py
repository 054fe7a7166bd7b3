"""What agents say of a request in `nvext`: its session, and hints for its placement."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import BODIES, CHAT, Start, say_hello

from tandem.prefix_blocks import session_number
from tandem_frontend.openai.reading.bodies import SMALL_BYTES

NVEXT = {
    "agent_hints": {"priority": 7, "osl": 8},
    "session_control": {"session_id": "s", "action": "close"},
}

ENDS: list[tuple[dict[str, str], dict[str, str] | None, str, bool]] = [
    ({}, {"session_id": "s"}, "s", False),
    ({}, {"session_id": "s", "action": "open"}, "s", False),
    ({}, {"session_id": "s", "action": "bind"}, "s", False),
    ({}, {"session_id": "s", "action": "close"}, "s", True),
    ({"x-session-id": "s"}, {"session_id": "s", "action": "close"}, "s", True),
    ({"x-session-id": "h"}, {"session_id": "s", "action": "close"}, "h", False),
    ({"x-dynamo-session-id": "h", "x-dynamo-session-final": "true"}, None, "h", True),
    ({"x-dynamo-session-id": "h", "x-dynamo-session-final": "True"}, None, "h", True),
    ({"x-dynamo-session-id": "h", "x-dynamo-session-final": "false"}, None, "h", False),
    ({"x-dynamo-session-final": "true"}, {"session_id": "s"}, "s", True),
    (
        {
            "x-dynamo-session-id": "child",
            "x-dynamo-parent-session-id": "parent",
            "x-dynamo-session-final": "true",
        },
        None,
        "parent",
        False,
    ),
    (
        {"x-parent-session-id": "parent"},
        {"session_id": "child", "action": "close"},
        "parent",
        False,
    ),
]
PRIORITIES: list[tuple[dict[str, Any], int]] = [
    ({"nvext": {"agent_hints": {"priority": 5}}}, 5),
    ({"nvext": {"agent_hints": {"priority": -5}}}, -5),
    ({"nvext": {"agent_hints": {"priority": 0}}, "service_tier": "flex"}, 0),
    ({"nvext": {"agent_hints": {"priority": 5}}, "priority": 1}, 1),
    ({"nvext": {"agent_hints": {"priority": 5}}, "priority": 0}, 0),
    ({"nvext": {"agent_hints": {"priority": 1000}}}, 100),
    ({"nvext": {"agent_hints": {"priority": -(2**31)}}}, -100),
    ({"nvext": {"agent_hints": {"osl": 3}}, "service_tier": "flex"}, -50),
    ({"nvext": {"agent_hints": None}, "service_tier": "flex"}, -50),
]
NAMED: list[tuple[dict[str, Any] | None, str]] = [
    (
        {"agent_hints": {"strict_priority": 3, "speculative_prefill": True}},
        "nvext.agent_hints.strict_priority, nvext.agent_hints.speculative_prefill",
    ),
    ({"agent_hints": {"latency_sensitivity": 1.5}}, "nvext.agent_hints.latency_sensitivity"),
    ({"cache_control": {"type": "ephemeral", "ttl": "1h"}}, "nvext.cache_control"),
    (
        {"session_control": {"session_id": "s", "timeout": 300}},
        "nvext.session_control.timeout",
    ),
    (
        {"prefill_worker_id": 3, "extra_fields": ["timing"]},
        "nvext.prefill_worker_id, nvext.extra_fields",
    ),
    ({"of_next_year": {"a": [1]}}, "nvext.of_next_year"),
    ({}, ""),
    (None, ""),
]
REFUSED: list[tuple[Any, str]] = [
    (5, "nvext"),
    ([], "nvext"),
    ({"agent_hints": "fast"}, "nvext.agent_hints"),
    ({"agent_hints": {"osl": "many"}}, "nvext.agent_hints.osl"),
    ({"agent_hints": {"osl": -1}}, "nvext.agent_hints.osl"),
    ({"agent_hints": {"osl": 10**30}}, "nvext.agent_hints.osl"),
    ({"agent_hints": {"priority": 1e300}}, "nvext.agent_hints.priority"),
    ({"agent_hints": {"priority": True}}, "nvext.agent_hints.priority"),
    ({"session_control": {}}, "nvext.session_control.session_id"),
    ({"session_control": {"session_id": 5}}, "nvext.session_control.session_id"),
    (
        {"session_control": {"session_id": "s", "action": "burn"}},
        "nvext.session_control.action",
    ),
    ({"greed_sampling": True}, "nvext.greed_sampling"),
    ({"use_raw_prompt": True}, "nvext.use_raw_prompt"),
    ({"token_data": [1, 2]}, "nvext.token_data"),
    ({"max_thinking_tokens": 3}, "nvext.max_thinking_tokens"),
]


@pytest.mark.promise("S5-643", "S5-644")
async def test_every_dialect_takes_hints_and_sessions(start: Start) -> None:
    frontend = await start(say_hello)
    for path, size in [*((path, 0) for path in BODIES), ("/v1/chat/completions", SMALL_BYTES)]:
        given = {"model": CHAT["model"], "nvext": NVEXT, **BODIES[path]}
        content = json.dumps(given) + " " * size  # what is larger is read in a process
        head = {"content-type": "application/json"}
        answer = await frontend.http.post(path, content=content, headers=head, timeout=30)
        assert answer.status_code == 200, answer.text
        assert "x-tandem-ignored-fields" not in answer.headers
        submit = frontend.router.last.submit
        assert (submit.session, submit.ends_session) == (session_number("s"), True)
        assert (submit.priority, submit.expected_tokens) == (7, 8)


@pytest.mark.promise("S5-643")
async def test_a_session_ends_when_its_own_client_says_so(start: Start) -> None:
    frontend = await start(say_hello)
    for headers, control, session, ends in ENDS:
        body = CHAT | {"nvext": {"session_control": control}}
        answer = await frontend.http.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        submit = frontend.router.last.submit
        told = submit.session, submit.ends_session
        assert told == (session_number(session), ends), (headers, control)


@pytest.mark.promise("S5-643")
async def test_a_session_of_the_body_is_the_first_that_it_names(start: Start) -> None:
    frontend = await start(say_hello)
    for given, session in (("s", "s"), ("", "k")):
        control = {"session_control": {"session_id": given}}
        fields = {"user": "u", "prompt_cache_key": "k", "nvext": control}
        await frontend.http.post("/v1/chat/completions", json=CHAT | fields)
        assert frontend.router.last.submit.session == session_number(session)


@pytest.mark.promise("S5-644")
async def test_a_hinted_priority_is_the_requests_where_that_gives_none(start: Start) -> None:
    frontend = await start(say_hello)
    for fields, priority in PRIORITIES:
        answer = await frontend.http.post("/v1/chat/completions", json=CHAT | fields)
        assert answer.status_code == 200, answer.text
        assert frontend.router.last.submit.priority == priority, fields


@pytest.mark.promise("S5-644")
async def test_no_more_is_expected_than_an_output_may_have(start: Start) -> None:
    frontend = await start(say_hello)
    for osl, expected in ((0, 0), (3, 3), (5, 5), (2**32 - 1, 5)):
        fields = {"max_tokens": 5, "nvext": {"agent_hints": {"osl": osl}}}
        await frontend.http.post("/v1/chat/completions", json=CHAT | fields)
        assert frontend.router.last.submit.expected_tokens == expected


@pytest.mark.promise("S5-644")
async def test_hints_that_nothing_here_follows_are_dropped_and_named(start: Start) -> None:
    frontend = await start(say_hello)
    for nvext, named in NAMED:
        answer = await frontend.http.post("/v1/chat/completions", json=CHAT | {"nvext": nvext})
        assert answer.status_code == 200, answer.text
        assert answer.headers.get("x-tandem-ignored-fields", "") == named
    count = "tandem_frontend_ignored_fields_total"
    assert await frontend.metric(count, field="speculative_prefill") == 1


@pytest.mark.promise("S5-644")
async def test_nonsense_and_what_would_change_the_answer_is_refused_by_its_name(
    start: Start,
) -> None:
    frontend = await start(say_hello)
    for nvext, param in REFUSED:
        answer = await frontend.http.post("/v1/chat/completions", json=CHAT | {"nvext": nvext})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param
    assert not frontend.router.replies


HINTS: dict[str, Any] = {
    "protocol_version": "0.1",
    "message_id": "m",
    "actions": [
        {
            "action_id": "a",
            "action_type": "kv.retain",
            "action_version": "1",
            "payload": {"seconds": 60},
        }
    ],
}


def envelope(**changes: Any) -> dict[str, Any]:
    return HINTS | changes


def action(**changes: Any) -> dict[str, Any]:
    return envelope(actions=[HINTS["actions"][0] | changes])


@pytest.mark.promise("S5-645")
async def test_hints_for_caches_stay_here_unless_the_deployment_lets_them_pass(
    start: Start,
) -> None:
    frontend = await start(say_hello)
    for path, body in BODIES.items():
        for hints in (HINTS, "nonsense", None):
            given = {"model": CHAT["model"], "kv_hints": hints, **body}
            answer = await frontend.http.post(path, json=given)
            assert answer.status_code == 200, answer.text
            named = answer.headers.get("x-tandem-ignored-fields", "")
            assert named == ("" if hints is None else "kv_hints")
            assert frontend.router.last.task.kv_hints == ""
    assert await frontend.metric("tandem_frontend_ignored_fields_total", field="kv_hints") == 8


@pytest.mark.promise("S5-645")
async def test_hints_that_pass_are_bounded_and_well_formed(start: Start) -> None:
    frontend = await start(say_hello, allow_kv_hints=True)
    for path, body in BODIES.items():
        answer = await frontend.http.post(
            path, json={"model": CHAT["model"], "kv_hints": HINTS, **body}
        )
        assert answer.status_code == 200, answer.text
        assert "x-tandem-ignored-fields" not in answer.headers
        assert json.loads(frontend.router.last.task.kv_hints) == HINTS
    deep: Any = {}
    for _ in range(20):
        deep = {"d": deep}
    for hints in (
        5,
        [],
        {},
        envelope(message_id=3),
        envelope(message_id="m" * 129),
        envelope(actions=HINTS["actions"] * 17),
        envelope(actions=[{"action_id": "a"}]),
        action(payload=[]),
        action(payload=deep),
        action(payload={"p": "p" * 16_384}),
    ):
        answer = await frontend.http.post("/v1/chat/completions", json=CHAT | {"kv_hints": hints})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == "kv_hints"
    answer = await frontend.http.post("/v1/chat/completions", json=CHAT | {"kv_hints": None})
    assert answer.status_code == 200
    assert frontend.router.last.task.kv_hints == ""
    assert len(frontend.router.replies) == len(BODIES) + 1, "none of the others came to a router"
