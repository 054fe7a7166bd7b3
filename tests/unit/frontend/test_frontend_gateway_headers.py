"""What inference gateways say in headers: what routers are told of it, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from harness import BODIES, CHAT, Harness, Start, key_line, say_hello

from tandem_frontend.openai.gateway_headers import FAIRNESS_ID, FIRST_TOKEN, MOST_CHARACTERS

IGNORED = "x-tandem-ignored-fields"
FAIRNESS = [name.decode() for name in FAIRNESS_ID]
TTFT = [name.decode() for name in FIRST_TOKEN]
TPOT = ["x-llm-d-slo-tpot-ms", "x-slo-tpot-ms"]
OBJECTIVE = ["x-llm-d-inference-objective", "x-gateway-inference-objective"]


async def told(frontend: Harness, headers: Any = None, path: str = "/v1/chat/completions") -> Any:
    """The router's message of a request with these headers, which is answered."""
    body = {"model": CHAT["model"], **BODIES[path]}
    response = await frontend.http.post(path, json=body, headers=headers)
    assert response.status_code == 200, response.text
    return frontend.router.last.submit


async def refused(frontend: Harness, headers: Any) -> dict[str, Any]:
    """The error of a request with these headers, which reaches no router."""
    before = len(frontend.router.replies)
    response = await frontend.http.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert response.status_code == 400, headers
    assert len(frontend.router.replies) == before
    error: dict[str, Any] = response.json()["error"]
    assert error["code"] == "invalid_request"
    return error


def test_the_names_are_those_of_llm_d_and_of_the_inference_extension() -> None:
    assert FAIRNESS == ["x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"]
    assert TTFT == ["x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"]


@pytest.mark.promise("S5-782")
async def test_a_router_is_told_a_number_for_each_fairness_id_in_every_dialect(
    start: Start,
) -> None:
    frontend = await start(say_hello)
    for path in BODIES:
        numbers = [(await told(frontend, {name: "a"}, path)).fairness for name in FAIRNESS]
        other = (await told(frontend, {FAIRNESS[0]: "b"}, path)).fairness
        assert numbers[0] == numbers[1] != other, path
        assert 0 not in (*numbers, other)
        for headers in ({}, {FAIRNESS[0]: ""}):
            submit = await told(frontend, headers, path)
            assert (submit.fairness, submit.first_token_ms) == (0, 0)


@pytest.mark.promise("S5-784")
async def test_a_router_is_told_when_a_first_token_is_due_in_milliseconds(start: Start) -> None:
    frontend = await start(say_hello)
    values = {"1": 1, "250": 250, "0.2": 1, "1500.5": 1501, "999999999": 10**9 - 1}
    for name in TTFT:
        for value, ms in values.items():
            assert (await told(frontend, {name: value})).first_token_ms == ms, value


NO_NUMBERS = ("0", "0.0", "-1", "+1", "soon", "1s", "1e3", "1_000", "nan", "inf", "1.", "1" * 10)


@pytest.mark.promise("S5-785")
async def test_an_objective_that_is_no_number_of_milliseconds_is_refused_by_its_name(
    start: Start,
) -> None:
    frontend = await start(say_hello)
    for name in (*TTFT, *TPOT):
        for value in NO_NUMBERS:
            error = await refused(frontend, {name: value})
            assert error["param"] == name
            assert f"`{name}` is a number of milliseconds" in error["message"]


@pytest.mark.promise("S5-785")
async def test_a_fairness_id_has_a_bound(start: Start) -> None:
    frontend = await start(say_hello)
    for name in FAIRNESS:
        longest = "ü" * MOST_CHARACTERS
        assert (await told(frontend, [(name.encode(), longest.encode("latin-1"))])).fairness
        error = await refused(frontend, {name: "x" * (MOST_CHARACTERS + 1)})
        assert error["param"] == name
        assert f"at most {MOST_CHARACTERS} characters" in error["message"]


@pytest.mark.promise("S5-785")
@pytest.mark.parametrize("names", [FAIRNESS, TTFT, TPOT])
async def test_two_names_of_one_thing_must_say_the_same(start: Start, names: list[str]) -> None:
    """Else what a gateway sets under one name, its client could say otherwise under the other."""
    frontend = await start(say_hello)
    await told(frontend, dict.fromkeys(names, "5"))
    await told(frontend, {names[0]: "", names[1]: "5"})
    error = await refused(frontend, {names[0]: "5", names[1]: "6"})
    assert error["param"] == names[0]
    assert all(f"`{name}`" in error["message"] for name in names)


@pytest.mark.promise("S5-786")
async def test_hints_that_nothing_follows_are_dropped_named_and_counted(start: Start) -> None:
    frontend = await start(say_hello)
    plain = await told(frontend)
    for name in (*TPOT, *OBJECTIVE):
        response = await frontend.http.post("/v1/chat/completions", json=CHAT, headers={name: "20"})
        assert response.status_code == 200
        assert response.headers[IGNORED] == name
        now = frontend.router.last.submit
        assert (now.priority, now.fairness, now.first_token_ms) == (plain.priority, 0, 0)
        assert await frontend.metric("tandem_frontend_ignored_fields_total", field=name) == 1
    for name in (*FAIRNESS, *TTFT):
        response = await frontend.http.post("/v1/chat/completions", json=CHAT, headers={name: "20"})
        assert IGNORED not in response.headers


@pytest.mark.promise("S5-783")
async def test_whose_request_it_is_follows_from_its_key_and_from_no_header(
    start: Start, tmp_path: Any
) -> None:
    file = tmp_path / "keys.jsonl"
    file.write_text(key_line("acme") + key_line("other", weight=3))
    frontend = await start(say_hello, api_keys_file=str(file))
    claims = {FAIRNESS[0]: "other", TTFT[0]: "1", OBJECTIVE[0]: "critical"}
    submits = {
        key: await told(frontend, {"authorization": f"Bearer {key}", **claims})
        for key in ("acme", "other")
    }
    assert [(each.tenant, each.weight) for each in submits.values()] == [("acme", 1), ("other", 3)]
    assert [each.priority for each in submits.values()] == [0, 0]
