"""Several models behind one frontend: which request is for which, and how they come and go."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_router import fleet
from harness import (
    BODIES,
    MODEL,
    Harness,
    Start,
    error_of,
    key_line,
    replace_file,
    say_hello,
    until,
)
from second_model import CONTEXT_LENGTH, OPENING, second_model

from tandem.engine.model_files import tokenizer_sha256
from tandem.errors import ConfigError
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import router_pb2
from tandem.watched_file import LOOK_SECONDS
from tandem_frontend import lifecycle
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai.reading.bodies import SMALL_BYTES

SECOND = "second"


def models(harness: Harness) -> Counter[str]:
    """How many requests a router got, by the model that they named."""
    return Counter(each.submit.model for each in harness.router.replies.values())


@pytest.fixture
def second(model_path: Path, tmp_path: Path) -> Path:
    return second_model(model_path, tmp_path / SECOND)


def both(harness: Harness, second: Path) -> router_pb2.Fleet:
    """A fleet of workers of both models."""
    other = fleet(
        model=SECOND, tokenizer_sha256=tokenizer_sha256(second), context_length=CONTEXT_LENGTH
    )
    return router_pb2.Fleet(models=[*harness.fleet().models, *other.models])


async def listed(harness: Harness, key: str = "") -> list[str]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    answer = await harness.http.get("/v1/models", headers=headers)
    return [card["id"] for card in answer.json()["data"]]


async def until_listed(harness: Harness, *names: str) -> None:
    await until(lambda: listed(harness), lambda found: found == list(names))


async def serving_both(start: Start, second: Path, **settings: Any) -> Harness:
    harness = await start(say_hello, models={SECOND: str(second)}, **settings)
    harness.router.change_fleet(both(harness, second))
    await harness.until(f"/v1/models/{SECOND}", 200)
    return harness


@pytest.mark.promise("S6-325")
@pytest.mark.parametrize("size", [0, SMALL_BYTES], ids=["on the loop", "in a process"])
async def test_each_request_is_read_and_sent_as_its_model_wants_it(
    start: Start, second: Path, model_path: Path, size: int
) -> None:
    harness = await serving_both(start, second)
    folders = {MODEL: model_path, SECOND: second}

    async def ask(path: str, name: str) -> None:
        body = BODIES[path] | {"model": name, "invented": "x" * size}
        answer = await harness.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == name

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            for path in BODIES:
                for name in folders:
                    group.create_task(ask(path, name))
    assert models(harness) == {name: 3 * len(BODIES) for name in folders}
    for reply in harness.router.replies.values():
        name = reply.submit.model
        folder = folders[name]
        assert reply.task.model == name
        assert reply.submit.tokenizer_sha256 == tokenizer_sha256(folder)
        text = Tokenizer.load(folder).decode(reply.task.prompt_token_ids)
        assert "Hello" in text
        assert text.startswith(OPENING) == (name == SECOND and text != "Hello")


@pytest.mark.promise("S6-325")
async def test_limits_and_tokens_are_each_model_s_own(start: Start, second: Path) -> None:
    harness = await serving_both(start, second)
    cards = (await harness.http.get("/v1/models")).json()["data"]
    assert {card["id"]: card["max_model_len"] for card in cards} == {
        MODEL: 4096,
        SECOND: CONTEXT_LENGTH,
    }
    ids = {}
    for name in (MODEL, SECOND):
        body = {"model": name, "prompt": "Hello"}
        ids[name] = (await harness.http.post("/tokenize", json=body)).json()["tokens"]
        back = await harness.http.post("/detokenize", json={"model": name, "tokens": ids[name]})
        assert back.json()["prompt"] == "Hello"
        too_many = await harness.complete(model=name, max_tokens=CONTEXT_LENGTH)
        assert too_many.status_code == (200 if name == MODEL else 400)
    assert ids[MODEL] != ids[SECOND]
    large = {"model": SECOND, "prompt": "Hello " * SMALL_BYTES}
    tokens = (await harness.http.post("/tokenize", json=large)).json()["tokens"]
    assert tokens[0] == ids[SECOND][0]


@pytest.mark.promise("S6-325")
async def test_a_model_that_appears_later_is_served_without_a_restart(
    start: Start, model_path: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    harness = await start(say_hello, models_folder=str(folder))
    assert error_of(await harness.complete(model=SECOND)) == (404, "model_not_found", "model")
    # Its workers are there, and its files are not.
    second = second_model(model_path, tmp_path / "made")
    harness.router.change_fleet(both(harness, second))
    answer = await until(
        lambda: harness.complete(model=SECOND), lambda told: "no files of it" in told.text
    )
    assert error_of(answer) == (404, "model_not_found", "model")
    assert await listed(harness) == [MODEL]
    shutil.copytree(second, folder / "partial")
    os.rename(folder / "partial", folder / SECOND)
    await harness.until(f"/v1/models/{SECOND}", 200)
    assert (await harness.complete(model=SECOND)).status_code == 200
    assert models(harness) == {SECOND: 1}


@pytest.mark.promise("S6-325")
async def test_a_model_that_goes_away_is_a_typed_error_and_is_unloaded(
    start: Start, second: Path
) -> None:
    harness = await serving_both(start, second, router_wait_seconds=0.1, model_unload_seconds=1.5)
    assert await harness.metric("tandem_frontend_model_ready", model=SECOND) == 1
    harness.router.change_fleet(harness.fleet())
    await harness.until_metric("tandem_frontend_model_ready", 0, model=SECOND)
    assert error_of(await harness.complete(model=SECOND)) == (503, "no_pair", None)
    assert (await harness.complete()).status_code == 200
    await until_listed(harness, MODEL)
    url = f"http://127.0.0.1:{harness.metrics_port}/metrics"
    assert f'served_model_info{{model="{SECOND}"}}' not in (await harness.http.get(url)).text
    # Whoever names it is told the same, and it comes back with its workers.
    assert error_of(await harness.complete(model=SECOND)) == (503, "no_pair", None)
    harness.router.change_fleet(both(harness, second))
    await harness.until_metric("tandem_frontend_model_ready", 1, model=SECOND)
    assert (await harness.complete(model=SECOND)).status_code == 200
    requests = "tandem_frontend_model_requests_total"
    assert await harness.metric(requests, model=SECOND, outcome="success") == 1
    assert await harness.metric(requests, model=MODEL, outcome="success") == 1


@pytest.mark.promise("S6-325")
async def test_a_model_that_is_served_stays_loaded_though_nobody_asks_for_it(
    start: Start, second: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        await serving_both(start, second, model_unload_seconds=0.1)
        await asyncio.sleep(2.5 * LOOK_SECONDS)
    assert "model loaded" in caplog.messages
    assert not [said for said in caplog.messages if said.startswith("model unloaded")]


@pytest.mark.promise("S6-325")
async def test_workers_of_another_model_with_the_same_tokenizer_are_not_its_own(
    start: Start,
) -> None:
    harness = await start(say_hello, router_wait_seconds=0.1)
    twin = fleet(model=SECOND, tokenizer_sha256=harness.tokenizer_sha256)
    harness.router.change_fleet(twin)
    refused = await until(harness.complete, lambda answer: answer.status_code == 503)
    assert error_of(refused) == (503, "no_pair", None)
    harness.router.change_fleet(router_pb2.Fleet(models=[*harness.fleet().models, *twin.models]))
    await until(harness.complete, lambda answer: answer.status_code == 200)


@pytest.mark.promise("S6-325")
async def test_files_that_cannot_be_used_cost_their_model_alone(start: Start, second: Path) -> None:
    (second / "tokenizer.json").write_text("{")
    harness = await start(say_hello, models={SECOND: str(second)})
    harness.router.change_fleet(both(harness, second))
    assert error_of(await harness.complete(model=SECOND)) == (503, "no_pair", None)
    assert await listed(harness) == [MODEL]
    assert (await harness.complete()).status_code == 200


async def test_what_names_no_model_is_for_the_first_or_the_only_one(
    start: Start, second: Path, model_path: Path, tmp_path: Path
) -> None:
    harness = await serving_both(start, second)
    asked = {"prompt": "Hello"}
    plain = await harness.http.post("/tokenize", json=asked)
    named = await harness.http.post("/tokenize", json=asked | {"model": MODEL})
    assert plain.json() == named.json()
    folder = tmp_path / "folder"
    for name in (MODEL, "other"):
        shutil.copytree(model_path, folder / name)
    several = await start(say_hello, model_path="", models_folder=str(folder))
    unnamed = await several.http.post("/tokenize", json=asked)
    assert error_of(unnamed) == (400, "invalid_request", "model")


# --- names ---


def names(path: Path, content: Any) -> str:
    return str(replace_file(path / "names.yaml", json.dumps(content)))


async def spread(harness: Harness, name: str, count: int, **fields: Any) -> httpx.Response:
    answer = None
    for _ in range(count):
        answer = await harness.complete(model=name, **fields)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == name
    assert answer is not None
    return answer


@pytest.mark.promise("S6-326")
async def test_requests_for_a_name_are_divided_by_its_weights(
    start: Start, second: Path, tmp_path: Path
) -> None:
    file = names(
        tmp_path, {"chat": {MODEL: 3, SECOND: 1}, MODEL: {MODEL: 0, SECOND: 1}, "a": MODEL}
    )
    harness = await serving_both(start, second, model_names_file=file)
    assert await listed(harness) == [MODEL, SECOND, "chat", "a"]
    card = (await harness.http.get("/v1/models/chat")).json()
    assert card["max_model_len"] == CONTEXT_LENGTH
    await spread(harness, "chat", 200)
    assert 20 <= models(harness)[SECOND] <= 85, models(
        harness
    )  # 50 are expected; 1 of 10**6 misses
    harness.router.replies.clear()
    await spread(harness, MODEL, 10)
    assert models(harness) == {SECOND: 10}
    harness.router.replies.clear()
    await spread(harness, "a", 3)
    assert models(harness) == {MODEL: 3}


@pytest.mark.promise("S6-326")
@pytest.mark.parametrize("size", [0, SMALL_BYTES], ids=["on the loop", "in a process"])
async def test_requests_of_one_user_go_to_one_model(
    start: Start, second: Path, tmp_path: Path, size: int
) -> None:
    file = names(tmp_path, {"chat": {MODEL: 1, SECOND: 1}})
    harness = await serving_both(start, second, model_names_file=file)
    went = set()
    for user in map(str, range(16)):
        harness.router.replies.clear()
        await spread(harness, "chat", 3, user=user, invented="x" * size)
        assert len(models(harness)) == 1, (user, models(harness))
        went |= set(models(harness))
    assert went == {MODEL, SECOND}


@pytest.mark.promise("S6-326")
async def test_names_are_read_again_and_the_last_good_ones_stay(
    start: Start, second: Path, tmp_path: Path
) -> None:
    file = names(tmp_path, {"chat": MODEL})
    harness = await serving_both(start, second, model_names_file=file)
    await spread(harness, "chat", 1)
    names(tmp_path, {"chat": "absent", "new": SECOND})
    await harness.until("/v1/models/new", 200)
    answer = await harness.complete(model="chat")
    assert error_of(answer) == (503, "no_pair", None)
    assert "chat" not in await listed(harness)
    names(tmp_path, {"chat": {MODEL: -1}})
    await harness.until_metric("tandem_frontend_model_names_file_failures_total", 1)
    assert await harness.metric("tandem_frontend_model_names_file_stale") == 1
    await spread(harness, "new", 1)
    names(tmp_path, {"chat": {SECOND: 1}})
    await harness.until("/v1/models/chat", 200)
    await spread(harness, "chat", 1)
    await harness.until("/v1/models/new", 404)
    await harness.until_metric("tandem_frontend_model_names_file_stale", 0)
    assert models(harness) == {MODEL: 1, SECOND: 2}


# --- keys ---


@pytest.mark.promise("S6-327")
async def test_a_key_is_refused_and_not_shown_what_it_is_not_allowed(
    start: Start, second: Path, tmp_path: Path
) -> None:
    lines = {
        "all": None,
        "one": [MODEL],
        "by-alias": ["other"],
        "divided": ["chat"],
        "both": ["a", SECOND],
        "none": ["elsewhere"],
    }
    keys = tmp_path / "keys"
    keys.write_text("".join(key_line(name, models=some) for name, some in lines.items()))
    content = {"chat": {MODEL: 1, SECOND: 1}, "a": MODEL, "other": SECOND}
    harness = await start(
        say_hello,
        models={SECOND: str(second)},
        model_names_file=names(tmp_path, content),
        api_keys=("plain",),
        api_keys_file=str(keys),
    )
    harness.router.change_fleet(both(harness, second))
    await harness.until(f"/v1/models/{SECOND}", 200)
    every = [MODEL, SECOND, "chat", "a", "other"]
    expected = {
        "all": every,
        "one": [MODEL, "a"],
        "by-alias": [SECOND, "other"],
        "divided": ["chat"],
        "both": every,
        "none": [],
    }
    for key, allowed in expected.items():
        head = {"authorization": f"Bearer {key}"}
        assert await listed(harness, key) == allowed, key
        for name in every:
            body = {"model": name, "prompt": "Hello"}
            answer = await harness.http.post("/v1/completions", json=body, headers=head)
            card = await harness.http.get(f"/v1/models/{name}", headers=head)
            if name in allowed:
                assert (answer.status_code, card.status_code) == (200, 200), (key, name)
            else:
                assert error_of(answer) == (403, "not_allowed", "model"), (key, name)
                assert error_of(card) == (404, "model_not_found", "model")


# --- settings ---


async def test_a_frontend_whose_settings_name_no_folder_of_a_model_does_not_start(
    model_path: Path, tmp_path: Path
) -> None:
    config = FrontendConfig(model_path=str(model_path), models={"a": str(tmp_path)})
    with pytest.raises(ConfigError, match="holds no model"):
        await lifecycle.serve(config, asyncio.Event())


async def test_a_frontend_needs_some_model(model_path: Path) -> None:
    for settings, words in (
        ({}, "needs --model-path"),
        ({"models_folder": "m", "model_aliases": ("a",)}, "model_aliases are names of"),
        ({"models": {"a": str(model_path)}, "max_models": 1}, "set max_models above"),
    ):
        with pytest.raises(ConfigError, match=words):
            FrontendConfig(**settings)  # type: ignore[arg-type]
