"""Clients' keys at the HTTP API: who is let in, within which limits, and what is told of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import fake_router
import httpx
import pytest
from harness import (
    CHAT,
    MODEL,
    Harness,
    Start,
    error_of,
    key_line,
    replace_file,
    say_hello,
    say_nothing,
    until,
)
from prometheus_client import CollectorRegistry

from tandem.errors import ConfigError, QueueFullError, RateLimitError
from tandem.keys import OTHERS
from tandem.keys.file import KeyFile
from tandem.keys.ring import digest_of
from tandem.prefix_blocks import packed
from tandem_frontend import lifecycle, tenants
from tandem_frontend.config import FrontendConfig
from tandem_frontend.key_metrics import KeyMetrics
from tandem_frontend.tenants import Tenant, Tenants


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.jsonl"


@pytest.fixture
def keyed(start: Start, path: Path) -> Start:
    """Starts frontends: `await keyed(lines, script, setting=value)`, with such a file of keys."""

    async def go(lines: str, script: fake_router.Script = say_hello, **settings: Any) -> Harness:
        return await start(script, api_keys_file=str(replace_file(path, lines)), **settings)

    return go


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def ask(frontend: Harness, key: str, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "prompt": "Hello", **fields}
    return await frontend.http.post("/v1/completions", json=body, headers=bearer(key))


def made(
    file: KeyFile | None = None,
    *,
    plain: tuple[str, ...] = (),
    most: int = 10,
    frontends: int = 1,
    max_open: int = 1000,
) -> Tenants:
    metrics = KeyMetrics(CollectorRegistry(), most=most)
    return Tenants(plain, file, metrics, frontends=frontends, max_open=max_open)


def of(content: str, path: Path, **how: Any) -> Tenants:
    return made(KeyFile(str(replace_file(path, content))), **how)


def holder(found: Tenants, key: bytes) -> Tenant:
    tenant = found.find(key)
    assert tenant is not None
    return tenant


# --- over HTTP ---


async def test_a_key_of_the_file_opens_and_others_do_not(keyed: Start) -> None:
    frontend = await keyed(key_line("acme") + key_line("b"), api_keys=("plain",))
    for key in ("acme", "b", "plain"):
        assert (await ask(frontend, key)).status_code == 200
    for key in ("Acme", digest_of(b"acme"), "api-key-1", "acme x"):
        assert error_of(await ask(frontend, key))[:2] == (401, "invalid_api_key")


@pytest.mark.promise("S6-151")
async def test_a_file_without_keys_opens_nothing(path: Path) -> None:
    for content in ("", "\n", "# later\n"):
        file = str(replace_file(path, content))
        config = FrontendConfig(model_path="m", listen="127.0.0.1:0", api_keys_file=file)
        with pytest.raises(ConfigError, match="holds no key"):
            await lifecycle.serve(config, asyncio.Event())


@pytest.mark.promise("S6-152")
async def test_keys_come_and_go_without_a_restart(
    keyed: Start, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenants, "LOOK_SECONDS", 0.01)
    frontend = await keyed(key_line("old"))
    assert (await ask(frontend, "old")).status_code == 200
    replace_file(path, key_line("new"))
    await until(lambda: ask(frontend, "new"), lambda answer: answer.status_code == 200)
    assert (await ask(frontend, "old")).status_code == 401
    replace_file(path, "{")
    await frontend.until_metric("tandem_frontend_key_file_failures_total", 1)
    assert await frontend.metric("tandem_frontend_key_file_stale") == 1
    assert (await ask(frontend, "new")).status_code == 200
    replace_file(path, "")
    await until(lambda: ask(frontend, "new"), lambda answer: answer.status_code == 401)
    assert await frontend.metric("tandem_frontend_keys") == 0
    assert await frontend.metric("tandem_frontend_key_file_stale") == 0


@pytest.mark.promise("S6-153")
async def test_what_is_left_is_told_and_too_much_is_refused(keyed: Start) -> None:
    limits = key_line("acme", requests_per_minute=2, tokens_per_minute=1000)
    frontend = await keyed(limits + key_line("free"))
    first, second, third = [await ask(frontend, "acme") for _ in range(3)]
    told = "x-ratelimit-{}-{}"
    assert first.headers[told.format("limit", "requests")] == "2"
    assert first.headers[told.format("remaining", "requests")] == "1"
    assert first.headers[told.format("remaining", "tokens")] == "1000"
    assert second.headers[told.format("remaining", "requests")] == "0"
    spent = first.json()["usage"]["total_tokens"]
    assert second.headers[told.format("remaining", "tokens")] == str(1000 - spent)
    assert error_of(third) == (429, "rate_limit_exceeded", None)
    assert 58 <= int(third.headers["retry-after"]) <= 61
    assert third.headers[told.format("remaining", "requests")] == "0"
    free = await ask(frontend, "free")
    assert free.status_code == 200
    assert not [name for name in free.headers if name.startswith("x-ratelimit")]
    count = "tandem_frontend_key_requests_total"
    assert await frontend.metric(count, key="acme", outcome="success") == 2
    assert await frontend.metric(count, key="acme", outcome="refused") == 1
    assert await frontend.metric("tandem_frontend_key_tokens_total", key="free", kind="prompt") > 0
    codes = await frontend.metric(
        "tandem_frontend_requests_total", outcome="rate_limit_exceeded", fault="client"
    )
    assert codes == 1


@pytest.mark.promise("S6-153")
async def test_tokens_are_counted_and_end_a_key_s_minute(keyed: Start) -> None:
    frontend = await keyed(key_line("acme", tokens_per_minute=1))
    assert (await ask(frontend, "acme")).status_code == 200
    refused = await ask(frontend, "acme")
    assert error_of(refused)[:2] == (429, "rate_limit_exceeded")
    assert "1 tokens a minute" in refused.json()["error"]["message"]


@pytest.mark.promise("S6-153")
async def test_open_requests_of_one_key_are_bounded(keyed: Start) -> None:
    go = asyncio.Event()

    async def wait(reply: fake_router.Reply) -> None:
        await go.wait()
        await say_hello(reply)

    frontend = await keyed(key_line("acme", open_requests=2) + key_line("b"), wait)
    async with asyncio.TaskGroup() as group:
        held = [group.create_task(ask(frontend, "acme")) for _ in range(2)]
        await frontend.until_metric("tandem_frontend_key_open_requests", 2, key="acme")
        refused = await ask(frontend, "acme")
        assert error_of(refused)[:2] == (429, "rate_limit_exceeded")
        assert refused.headers["retry-after"] == "1"
        other = group.create_task(ask(frontend, "b"))
        await frontend.until_metric("tandem_frontend_open_requests", 3)
        go.set()
    assert [each.result().status_code for each in (*held, other)] == [200] * 3
    assert (await ask(frontend, "acme")).status_code == 200


async def test_a_client_that_goes_away_gives_its_place_back(keyed: Start) -> None:
    frontend = await keyed(key_line("acme", open_requests=1), say_nothing)
    asked = asyncio.create_task(ask(frontend, "acme"))
    await frontend.until_metric("tandem_frontend_open_requests", 1)
    asked.cancel()
    await frontend.until_metric("tandem_frontend_key_open_requests", 0, key="acme")
    count = "tandem_frontend_key_requests_total"
    assert await frontend.metric(count, key="acme", outcome="failed") == 1


@pytest.mark.promise("S6-153")
async def test_what_a_key_is_not_allowed_is_refused(keyed: Start) -> None:
    frontend = await keyed(
        key_line("acme", max_n=2, max_priority=5, logits_processors=["other"]),
        client_logits_processors=("forced_sequence", "other"),
    )
    processors = [{"name": "other"}, {"name": "forced_sequence"}]
    for fields, expected in (
        ({"n": 3}, (400, "invalid_request", "n")),
        ({"priority": 6}, (403, "not_allowed", "priority")),
        ({"logits_processors": processors}, (403, "not_allowed", "logits_processors[1].name")),
    ):
        assert error_of(await ask(frontend, "acme", **fields)) == expected
    allowed = {"n": 2, "priority": 5, "logits_processors": [{"name": "other"}]}
    assert (await ask(frontend, "acme", **allowed)).status_code == 200


def priorities(frontend: Harness) -> list[int]:
    """That routers were told, of requests since it was last asked."""
    told = [reply.submit.priority for reply in frontend.router.replies.values()]
    frontend.router.replies.clear()
    return told


@pytest.mark.promise("S6-153", "S5-637")
@pytest.mark.parametrize("order", ["higher-first", "lower-first"])
async def test_a_keys_highest_priority_holds_in_either_order(keyed: Start, order: str) -> None:
    """`asked` is written as the order has it; None: it is refused."""
    sign = -1 if order == "lower-first" else 1
    keys = key_line("acme", max_priority=5) + key_line("none") + key_line("last", max_priority=-60)
    frontend = await keyed(keys, priority_order=order)
    for key, most in (("acme", 5), ("none", 0), ("last", -60)):
        for priority in (-100, -60, -59, -5, 0, 1, 5, 6, 60, 100):
            response = await ask(frontend, key, priority=sign * priority)
            if priority <= most:
                assert (response.status_code, priorities(frontend)) == (200, [priority])
            else:
                assert error_of(response) == (403, "not_allowed", "priority")
                bound = f"below {-most}" if sign < 0 else f"above {most}"
                assert bound in response.json()["error"]["message"]
        for priority in (-101, 101, -(2**31), 2**31, -(2**63), 2**64):
            assert (await ask(frontend, key, priority=priority)).status_code == 400
    assert (await ask(frontend, "acme", service_tier="flex")).status_code == 200
    assert (await ask(frontend, "acme", service_tier="priority")).status_code == 200
    assert priorities(frontend) == [-50, 5], "tiers have no sign that could be turned"


@pytest.mark.promise("S6-153", "S5-625", "S5-644")
async def test_a_tier_or_a_hint_asks_for_what_the_key_is_allowed_and_nothing_else_is_lowered(
    keyed: Start,
) -> None:
    keys = key_line("acme", max_priority=5) + key_line("last", max_priority=-60)
    frontend = await keyed(keys)
    assert (await ask(frontend, "acme", service_tier="priority")).status_code == 200
    assert (await ask(frontend, "last", service_tier="priority")).status_code == 200
    for hinted in (2**31 - 1, 3, -7):
        nvext = {"agent_hints": {"priority": hinted}}
        assert (await ask(frontend, "acme", nvext=nvext)).status_code == 200
    assert priorities(frontend) == [5, -60, 5, 3, -7]
    body = CHAT | {"service_tier": "priority"}
    answer = await frontend.http.post("/v1/chat/completions", json=body, headers=bearer("last"))
    assert answer.json()["service_tier"] == "flex", "the tier that it had, not what it asked for"
    for fields in ({}, {"service_tier": "flex"}):
        assert (await ask(frontend, "last", **fields)).status_code == 403


@pytest.mark.promise("S6-153")
@pytest.mark.parametrize("named", [MODEL, "gpt-4o"])
async def test_a_key_may_use_a_model_by_all_of_its_names_or_by_none(
    keyed: Start, named: str
) -> None:
    keys = key_line("other", models=["m2"]) + key_line("none", models=[])
    keys += key_line("mine", models=[named])
    aliases = ("gpt-4o", "gpt-4o-mini")
    frontend = await keyed(keys, model_aliases=aliases)
    for key in ("other", "none"):
        for name in (MODEL, *aliases):
            assert error_of(await ask(frontend, key, model=name)) == (403, "not_allowed", "model")
        count = "tandem_frontend_key_requests_total"
        assert await frontend.metric(count, key=key, outcome="failed") == 3
        tokens = await frontend.http.post("/tokenize", json={"prompt": "x"}, headers=bearer(key))
        assert tokens.status_code == 403
    for name in (MODEL, *aliases):
        assert (await ask(frontend, "mine", model=name)).status_code == 200


async def cached(reply: fake_router.Reply) -> None:
    reply.text("Hello")
    reply.finish(completion_tokens=1, cached_tokens=3)
    await reply.flush()


def cached_tokens(response: httpx.Response) -> int:
    return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.promise("S6-155")
async def test_each_key_has_a_prefix_cache_of_its_own(keyed: Start) -> None:
    frontend = await keyed(key_line("acme", weight=4), cached, api_keys=("plain", "second"))
    for key in ("acme", "plain", "second"):
        assert cached_tokens(await ask(frontend, key)) == 3
    replies = list(frontend.router.replies.values())
    salts = [reply.task.cache_salt for reply in replies]
    assert len({*salts, ""}) == 4
    assert [reply.submit.tenant for reply in replies] == ["acme", "api-key-1", "api-key-2"]
    assert [reply.task.tenant for reply in replies] == ["acme", "api-key-1", "api-key-2"]
    assert [reply.submit.weight for reply in replies] == [4, 1, 1]


def test_a_plain_key_keeps_its_prefix_cache_when_its_place_changes() -> None:
    salts = []
    for plain in (("mine", "other"), ("new", "other", "mine")):
        tenant = holder(made(plain=plain), b"mine")
        salts.append(tenant.salt)
    assert salts[0] == salts[1]
    assert "mine" not in salts[0]


@pytest.mark.promise("S6-155")
async def test_a_cache_that_keys_share_is_told_nothing_of(keyed: Start) -> None:
    frontend = await keyed(key_line("acme"), cached, share_prefix_cache=True)
    assert cached_tokens(await ask(frontend, "acme")) == 0
    (reply,) = frontend.router.replies.values()
    assert reply.task.cache_salt == ""


async def test_without_keys_there_is_one_cache_and_it_is_told_of(start: Start) -> None:
    frontend = await start(cached)
    assert cached_tokens(await ask(frontend, "any")) == 3
    (reply,) = frontend.router.replies.values()
    assert (reply.task.cache_salt, reply.submit.tenant) == ("", "")


@pytest.mark.promise("S6-156")
async def test_no_key_is_in_any_log_or_metric(
    keyed: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    keys = json.dumps({"name": "acme", "sha256": digest_of(b"tandem-SECRET")})
    frontend = await keyed(keys, api_keys=("plain-SECRET",))
    for key in ("tandem-SECRET", "plain-SECRET", "wrong-SECRET"):
        await ask(frontend, key)
        await ask(frontend, key, n=0)
    url = f"http://127.0.0.1:{frontend.metrics_port}/metrics"
    assert "SECRET" not in (await frontend.http.get(url)).text
    assert "SECRET" not in caplog.text


# --- shares of limits ---


@pytest.mark.parametrize(("limit", "frontends", "share"), [(10, 1, 10), (10, 4, 3), (1, 8, 1)])
def test_a_frontend_lets_its_share_through_rounded_up(
    path: Path, limit: int, frontends: int, share: int
) -> None:
    found = of(key_line("a", requests_per_minute=limit), path, frontends=frontends)
    tenant = holder(found, b"a")
    for _ in range(share):
        found.enter(tenant, 1.0)
    with pytest.raises(RateLimitError, match=f"{limit} requests a minute") as caught:
        found.enter(tenant, 2.0)
    assert caught.value.retry_after_seconds == 60.0
    found.enter(tenant, 63.0)


async def settle(found: Tenants) -> None:
    for _ in range(2):
        await found.look()


async def test_what_was_used_stays_used_when_limits_change(path: Path) -> None:
    file = KeyFile(str(replace_file(path, key_line("a", requests_per_minute=2))))
    found = made(file)
    tenant = holder(found, b"a")
    found.enter(tenant, 1.0)
    replace_file(path, key_line("a", requests_per_minute=1))
    await settle(found)
    assert found.find(b"a") is tenant
    with pytest.raises(RateLimitError):
        found.enter(tenant, 2.0)
    found.leave(tenant, None)
    assert tenant.open == 0


@pytest.mark.promise("S6-154")
def test_no_key_takes_more_of_a_frontend_than_it_leaves() -> None:
    found = made(plain=("hog", "other"), max_open=8)
    hog, other = holder(found, b"hog"), holder(found, b"other")
    for _ in range(4):
        found.enter(hog, 1.0)
    with pytest.raises(QueueFullError):
        found.enter(hog, 1.0)
    found.enter(other, 1.0)
    found.enter(other, 1.0)
    found.leave(hog, None)
    found.enter(other, 1.0)


def test_the_only_key_may_take_all_of_a_frontend() -> None:
    found = made(plain=("only",), max_open=8)
    only = holder(found, b"only")
    for _ in range(8):
        found.enter(only, 1.0)


async def test_only_so_many_keys_have_series_of_their_own(path: Path) -> None:
    registry = CollectorRegistry()
    file = KeyFile(str(replace_file(path, "".join(key_line(f"k{number}") for number in range(5)))))
    found = Tenants((), file, KeyMetrics(registry, most=2), max_open=10)
    for number in range(5):
        tenant = holder(found, f"k{number}".encode())
        tenant.spend(1.0, prompt=1)
    replace_file(path, "".join(key_line(f"n{number}") for number in range(50)))
    await settle(found)
    (family,) = [each for each in registry.collect() if each.name.endswith("key_tokens")]
    counts = {each.labels["key"]: each.value for each in family.samples if each.value}
    assert counts == {"k0": 1, "k1": 1, OTHERS: 3}
    assert {each.labels["key"] for each in family.samples} == {"k0", "k1", OTHERS}


def test_a_plain_key_has_no_limits() -> None:
    tenant = holder(made(plain=("key",)), b"key")
    tenant.grant.check(n=10**6, priority=100, processors=["any"])
    assert tenant.grant.models is None
    assert tenant.headers(1.0) == ()


@pytest.mark.promise("S6-155")
@pytest.mark.parametrize("shared", [False, True])
async def test_routers_know_a_key_s_prompts_by_its_cache_s_salt(keyed: Start, shared: bool) -> None:
    frontend = await keyed(key_line("acme"), cached, share_prefix_cache=shared)
    await ask(frontend, "acme", prompt="word " * 300)
    (reply,) = frontend.router.replies.values()
    tokens, salt = reply.task.prompt_token_ids, reply.task.cache_salt
    assert reply.submit.prompt_blocks == packed(tokens, salt) != b""
    assert (salt == "") is shared
