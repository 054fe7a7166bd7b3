"""Output hooks through the whole stack: each phase for itself, the same streaming and not, closed
on failure.
"""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
import switch_hook
from stacks import MODEL, Served

BODY: dict[str, Any] = {
    "model": MODEL,
    "prompt": "The for statement is used to",
    "max_tokens": 12,
    "temperature": 0,
    "ignore_eos": True,
}


_SHOWN = re.compile(r'"(?:text|content|delta)": ?("(?:[^"\\]|\\.)*")')
"""Texts of an answer, as JSON has them."""
STACKS = ("sim", "sim_pool", "sim_aggregated")


@pytest.fixture(params=[*STACKS, pytest.param("sglang", marks=pytest.mark.sglang)])
def served(request: pytest.FixtureRequest) -> Served:
    """The same in the worker itself, in processes of its own, where one worker serves both phases,
    and on both engines.
    """
    stack: Served = request.getfixturevalue(request.param)
    return stack


def _trace(behaviour: str, phase: str) -> tuple[str, dict[str, str]]:
    trace_id = switch_hook.trace(behaviour, phase)
    return trace_id, {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}


def _post(served: Served, behaviour: str, phase: str, **fields: Any) -> tuple[str, httpx.Response]:
    trace_id, headers = _trace(behaviour, phase)
    url = f"{served.url}/v1/completions"
    return trace_id, httpx.post(url, json=BODY | fields, headers=headers, timeout=60)


def _streamed(served: Served, behaviour: str, phase: str, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream, errors included."""
    _, response = _post(served, behaviour, phase, stream=True, **fields)
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    if not lines:
        return [response.json()]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def _text(events: list[dict[str, Any]], index: int = 0) -> str:
    choices = [c for event in events for c in event.get("choices", ()) if c["index"] == index]
    return "".join(choice["text"] for choice in choices)


def _finish(events: list[dict[str, Any]], index: int = 0) -> tuple[str, str | None]:
    choices = [c for event in events for c in event.get("choices", ()) if c["index"] == index]
    finished = [choice for choice in choices if choice["finish_reason"]]
    assert len(finished) == 1
    return finished[0]["finish_reason"], finished[0]["stop_reason"]


@pytest.mark.promise("S0-034", "S0-022", "S0-023", "S6-174")
def test_each_phase_calls_its_own_hook_under_its_own_request_id(served: Served) -> None:
    for stream in (True, False):
        trace_id, response = _post(served, switch_hook.PASS, "both", stream=stream)
        assert response.status_code == 200
        calls = served.hook_calls(trace_id)
        prefill = [call for call in calls if call["phase"] == "prefill"]
        decode = [call for call in calls if call["phase"] == "decode"]
        assert len(prefill) == 1
        assert {call["hook"] for call in prefill}.isdisjoint(call["hook"] for call in decode)
        assert len({call["request_id"] for call in decode}) == 1
        assert [call["is_final"] for call in prefill] == [True]
        assert [call["is_final"] for call in decode].count(True) == 1
        assert decode[-1]["is_final"]
        assert all(call["streaming"] is stream for call in calls)
        assert "".join(call["text_diff"] for call in decode) == decode[-1]["text"]
        # Decode begins with the token that prefill made.
        assert decode[0]["token_ids"][:1] == prefill[0]["token_ids"]


@pytest.mark.promise("S0-006", "S0-007")
def test_upper_case_reaches_the_client_and_nothing_else_changes(served: Served) -> None:
    plain = _post(served, switch_hook.PASS, "both")[1].json()
    upper = _post(served, switch_hook.UPPER, "decode")[1].json()
    streamed = _streamed(served, switch_hook.UPPER, "decode")
    text = plain["choices"][0]["text"]
    assert text != text.upper()
    assert upper["choices"][0]["text"] == text.upper() == _text(streamed)
    assert upper["usage"] == plain["usage"]


@pytest.mark.promise("S0-007")
@pytest.mark.parametrize("endpoint", ["chat/completions", "completions", "responses", "messages"])
def test_upper_case_reaches_clients_of_every_endpoint_streaming_and_not(
    served: Served, endpoint: str
) -> None:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "for"}], "max_tokens": 12}
    if endpoint == "completions":
        asked = BODY
    elif endpoint == "responses":
        asked = {"input": "for", "max_output_tokens": 12}

    def ask(behaviour: str, stream: bool) -> str:
        """The texts of the whole answer."""
        _, headers = _trace(behaviour, "decode")
        body = asked | {"model": MODEL, "temperature": 0, "stream": stream}
        url = f"{served.url}/v1/{endpoint}"
        answer = httpx.post(url, json=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        return "".join(map(json.loads, _SHOWN.findall(answer.text)))

    plain, upper = (ask(each, False) for each in (switch_hook.PASS, switch_hook.UPPER))
    assert plain != plain.upper()
    assert upper == plain.upper()
    shown = ask(switch_hook.UPPER, True)
    assert plain.upper() in shown
    assert shown == shown.upper()


@pytest.mark.promise("S0-030")
@pytest.mark.parametrize("served", STACKS, indirect=True)
def test_a_redacted_output_stays_redacted_while_the_other_goes_on(served: Served) -> None:
    fields: dict[str, Any] = {"n": 2, "temperature": 1, "seed": 5, "max_tokens": 24}
    plain = _post(served, switch_hook.PASS, "both", **fields)[1].json()["choices"]
    first, second = (choice["text"] for choice in plain)
    stop = next(
        first[place : place + 3]
        for place in range(4, len(first) - 3)
        if first[place : place + 3] not in second
    )
    redacted = _post(served, switch_hook.UPPER, "decode", **fields, stop=stop)[1].json()
    texts = [choice["text"] for choice in redacted["choices"]]
    assert texts == [first[: first.index(stop)].upper(), second.upper()]
    assert len(texts[0]) < len(texts[1])


@pytest.mark.promise("S0-010", "S0-024", "S0-038")
@pytest.mark.parametrize(
    "channel", [{}, {"detokenize": False}, {"logprobs": 2}, {"return_token_ids": True}]
)
def test_suppressed_output_shows_in_no_channel(served: Served, channel: dict[str, Any]) -> None:
    whole = _post(served, switch_hook.SUPPRESS, "decode", **channel)[1].json()
    choice = whole["choices"][0]
    assert choice["text"] == ""
    assert not choice.get("token_ids")
    assert not (choice.get("logprobs") or {}).get("tokens")
    assert whole["usage"]["completion_tokens"] == BODY["max_tokens"]
    events = _streamed(
        served, switch_hook.SUPPRESS, "decode", stream_options={"include_usage": True}, **channel
    )
    assert _text(events) == ""
    assert not [c for e in events for c in e["choices"] if c.get("token_ids")]
    assert events[-1]["usage"]["completion_tokens"] == BODY["max_tokens"]


@pytest.mark.promise("S5-632", "S0-009")
@pytest.mark.parametrize("served", ["sim", "sim_pool"], indirect=True)
@pytest.mark.parametrize(
    "behaviour",
    [
        switch_hook.PASS,
        switch_hook.UPPER,
        switch_hook.REDACT,
        switch_hook.SUPPRESS_SECOND,
        switch_hook.TERMINATE_THIRD,
    ],
)
def test_token_ids_beside_the_text_are_of_what_hooks_and_stop_strings_let_go(
    served: Served, behaviour: str
) -> None:
    """Each chunk of this engine is one token."""
    for stop in (None, _stop_of(served)):
        fields = {"return_token_ids": True, "stop": stop}
        trace_id, response = _post(served, behaviour, "decode", **fields)
        choice = response.json()["choices"][0]
        calls = [call for call in served.hook_calls(trace_id) if call["phase"] == "decode"]
        chunks = [call for call in calls if not call["aborted"]]
        if behaviour == switch_hook.SUPPRESS_SECOND:
            del chunks[1]
        if behaviour == switch_hook.TERMINATE_THIRD:
            del chunks[2:]
        ids = [token for chunk in chunks for token in chunk["token_ids"]]
        text = "".join(chunk["text_diff"] for chunk in chunks)
        rewrites = behaviour in (switch_hook.UPPER, switch_hook.REDACT)
        assert choice["text"] == (text.upper() if rewrites else text)
        assert choice["token_ids"] == ([] if behaviour == switch_hook.REDACT else ids)
        assert text.startswith(_detokenized(served, ids)), "no token that the stop string cut"
        events = _streamed(served, behaviour, "decode", **fields)
        assert _text(events) == choice["text"]
        parts = [part for event in events for part in event["choices"]]
        assert _ids(parts) == choice["token_ids"]


def _ids(choices: list[dict[str, Any]]) -> list[int]:
    """Those of all, joined."""
    return [token for choice in choices for token in choice.get("token_ids") or ()]


def _stop_of(served: Served) -> str:
    """Some letters in the middle of the answer."""
    text: str = _post(served, switch_hook.PASS, "both")[1].json()["choices"][0]["text"]
    return text[len(text) // 2 :][:3]


def _detokenized(served: Served, ids: list[int]) -> str:
    answer = httpx.post(f"{served.url}/detokenize", json={"tokens": ids}, timeout=60)
    text: str = answer.json()["prompt"]
    return text


@pytest.mark.promise("S0-011", "S0-012")
def test_one_suppressed_chunk_is_lost_and_the_others_arrive(served: Served) -> None:
    trace_id, response = _post(served, switch_hook.SUPPRESS_SECOND, "decode")
    calls = [call for call in served.hook_calls(trace_id) if call["phase"] == "decode"]
    kept = "".join(call["text_diff"] for number, call in enumerate(calls, 1) if number != 2)
    assert response.json()["choices"][0]["text"] == kept
    if served.engine == "sim":  # one chunk a token: the same calls in every run
        assert _text(_streamed(served, switch_hook.SUPPRESS_SECOND, "decode")) == kept


@pytest.mark.promise("S0-013", "S0-018", "S0-014")
def test_terminate_keeps_what_came_before_and_gives_its_reason(served: Served) -> None:
    trace_id, response = _post(
        served, switch_hook.TERMINATE_THIRD, "decode", max_tokens=200, detokenize=True
    )
    choice = response.json()["choices"][0]
    calls = [call for call in served.hook_calls(trace_id) if call["phase"] == "decode"]
    # The last call only says that it is over.
    assert [call["aborted"] for call in calls] == [False, False, False, True]
    assert choice["text"] == "".join(call["text_diff"] for call in calls[:2])
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", switch_hook.REASON)
    events = _streamed(served, switch_hook.TERMINATE_THIRD, "decode", max_tokens=200)
    assert _finish(events) == ("stop", switch_hook.REASON)


@pytest.mark.promise("S0-019", "S0-020")
@pytest.mark.parametrize("behaviour", [switch_hook.RAISE_SECOND, switch_hook.NONSENSE])
def test_a_failing_hook_fails_its_request_closed(served: Served, behaviour: str) -> None:
    trace_id, response = _post(served, behaviour, "decode")
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "hook_failed"
    events = _streamed(served, behaviour, "decode")
    assert events[-1]["error"]["code"] == "hook_failed"
    shown = [call for call in served.hook_calls(trace_id) if call["phase"] == "decode"]
    # What came before the failing chunk may have been shown, if it left before the failure.
    assert _text(events) in (
        "",
        shown[0]["text_diff"] if behaviour == switch_hook.RAISE_SECOND else "",
    )
    assert _post(served, switch_hook.PASS, "both")[1].status_code == 200


@pytest.mark.promise("S0-035")
def test_terminate_in_prefill_leaves_decode_alone_by_default(served: Served) -> None:
    plain = _post(served, switch_hook.PASS, "both")[1].json()
    ended = _post(served, switch_hook.TERMINATE_FIRST, "prefill")[1].json()
    assert ended["choices"] == plain["choices"]


@pytest.mark.promise("S0-019")
def test_a_prefill_hook_that_fails_shows_nothing_of_decode(served: Served) -> None:
    for stream in (True, False):
        _, response = _post(served, switch_hook.FAIL_FIRST, "prefill", stream=stream)
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "hook_failed"


@pytest.mark.promise("S0-029")
def test_terminate_in_one_output_ends_all(served: Served) -> None:
    events = _streamed(served, switch_hook.TERMINATE_THIRD, "decode", n=3, max_tokens=400)
    for index in range(3):
        assert _finish(events, index) == ("stop", switch_hook.REASON)
