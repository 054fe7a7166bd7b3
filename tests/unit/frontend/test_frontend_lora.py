"""LoRA adapters of a model, by model:adapter and by other names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import BODIES, COMPLETION, MODEL, Harness, Start, key_line, replace_file, say_hello
from test_frontend_models import listed, until_listed

from tandem.prefix_blocks import BLOCK_TOKENS
from tandem_frontend.openai.reading.bodies import SMALL_BYTES

SQL, TONE = f"{MODEL}:sql", f"{MODEL}:tone"
LONG = list(range(4, 4 + 2 * BLOCK_TOKENS))


async def serving(start: Start, *adapters: str, **settings: Any) -> Harness:
    harness = await start(say_hello, **settings)
    harness.router.change_fleet(harness.fleet(lora_adapters=adapters or ("sql", "tone")))
    return harness


@pytest.mark.promise("S5-410")
@pytest.mark.parametrize("size", [0, SMALL_BYTES], ids=["on the loop", "in a process"])
@pytest.mark.parametrize("path", BODIES)
async def test_a_request_names_an_adapter_after_its_model(
    start: Start, path: str, size: int
) -> None:
    harness = await serving(start)
    await until_listed(harness, MODEL, SQL, TONE)
    for name, adapter in ((SQL, "sql"), (MODEL, ""), (TONE, "tone")):
        body = BODIES[path] | {"model": name, "invented": "x" * size}
        answer = await harness.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == name
        task = harness.router.last.task
        assert (task.model, task.lora_adapter) == (MODEL, adapter)
        assert harness.router.last.submit.model == MODEL
    metric = "tandem_frontend_model_requests_total"
    assert await harness.metric(metric, model=SQL, outcome="success") == 1


@pytest.mark.promise("S5-410")
async def test_adapters_are_listed_as_models_with_their_parent(start: Start) -> None:
    harness = await serving(start, model_aliases=["gpt-4o"])
    await until_listed(harness, MODEL, SQL, TONE, "gpt-4o")
    cards = {each["id"]: each for each in (await harness.http.get("/v1/models")).json()["data"]}
    assert (cards[SQL]["parent"], cards[SQL]["root"]) == (MODEL, SQL)
    assert "parent" not in cards[MODEL]
    assert cards[SQL]["max_model_len"] == cards[MODEL]["max_model_len"]
    assert (await harness.http.get(f"/v1/models/{SQL}")).json() == cards[SQL]
    harness.router.change_fleet(harness.fleet(lora_adapters=["tone"]))
    await until_listed(harness, MODEL, TONE, "gpt-4o")
    assert (await harness.http.get(f"/v1/models/{SQL}")).status_code == 404


@pytest.mark.promise("S5-581")
async def test_a_model_of_a_simulated_engine_is_listed_as_such_with_its_adapters(
    start: Start,
) -> None:
    harness = await serving(start, model_aliases=["gpt-4o"])
    await until_listed(harness, MODEL, SQL, TONE, "gpt-4o")
    cards = (await harness.http.get("/v1/models")).json()["data"]
    assert not any("simulated" in card for card in cards)
    harness.router.change_fleet(harness.fleet(lora_adapters=["tone"], simulated=True))
    await until_listed(harness, MODEL, TONE, "gpt-4o")
    cards = (await harness.http.get("/v1/models")).json()["data"]
    assert [card["simulated"] for card in cards] == [True] * 3


@pytest.mark.promise("S5-411")
@pytest.mark.parametrize("size", [0, SMALL_BYTES], ids=["on the loop", "in a process"])
@pytest.mark.parametrize(
    "name", [f"{MODEL}:none", f"{MODEL}:", ":sql", "other:sql", f"{MODEL}:sql:tone", "sql"]
)
async def test_an_adapter_that_nobody_has_is_an_unknown_model(
    start: Start, name: str, size: int
) -> None:
    harness = await serving(start)
    await until_listed(harness, MODEL, SQL, TONE)
    answer = await harness.complete(model=name, invented="x" * size)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert answer.json()["error"]["param"] == "model"
    answer = await harness.http.post("/tokenize", json={"model": name, "prompt": "a"})
    assert answer.status_code == 404
    assert not harness.router.replies


async def test_tokens_are_those_of_the_model(start: Start) -> None:
    harness = await serving(start)
    await until_listed(harness, MODEL, SQL, TONE)
    counts = set()
    for name in (MODEL, SQL):
        answer = await harness.http.post("/tokenize", json={"model": name, "prompt": "Hello"})
        counts.add(tuple(answer.json()["tokens"]))
    assert len(counts) == 1


@pytest.mark.promise("S5-410")
async def test_a_file_of_names_gives_adapters_other_names(start: Start, tmp_path: Path) -> None:
    text = f"writer: {SQL}\nboth:\n  {SQL}: 1\n  {TONE}: 0\ngone: {MODEL}:gone\n"
    names = replace_file(tmp_path / "names.yaml", text)
    harness = await serving(start, model_names_file=str(names))
    await until_listed(harness, MODEL, SQL, TONE, "writer", "both")
    for name in ("writer", "both"):
        answer = await harness.complete(model=name)
        assert answer.json()["model"] == name
        assert harness.router.last.task.lora_adapter == "sql"
    card = (await harness.http.get("/v1/models/writer")).json()
    assert (card["root"], card["parent"]) == (SQL, MODEL)
    answer = await harness.complete(model="gone")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_pair"), (
        "it was promised"
    )


@pytest.mark.promise("S5-414")
async def test_a_key_is_allowed_adapters_one_by_one(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "keys.jsonl"
    grants: dict[str, Any] = {
        "base": {"models": [MODEL]},
        "sql": {"models": [SQL]},
        "all": {},
    }
    file.write_text("".join(key_line(name, **limits) for name, limits in grants.items()))
    harness = await serving(start, api_keys_file=str(file))
    seen_by = {"base": [MODEL], "sql": [SQL], "all": [MODEL, SQL, TONE]}
    for key, names in seen_by.items():
        while (found := await listed(harness, key)) != names:
            assert set(found) < {MODEL, SQL, TONE}
        for name in (MODEL, SQL, TONE):
            answer = await harness.http.post(
                "/v1/completions",
                json=COMPLETION | {"model": name},
                headers={"authorization": f"Bearer {key}"},
            )
            assert answer.status_code == (200 if name in names else 403), answer.text


@pytest.mark.promise("S5-413")
async def test_prompts_of_an_adapter_have_numbers_of_their_own(start: Start) -> None:
    harness = await serving(start)
    await until_listed(harness, MODEL, SQL, TONE)
    blocks, sessions = [], []
    for name in (MODEL, SQL, TONE, SQL):
        await harness.complete(model=name, prompt=LONG, user="me")
        blocks.append(harness.router.last.submit.prompt_blocks)
        sessions.append(harness.router.last.submit.session)
    for found in (blocks, sessions):
        assert len(set(found)) == 3
        assert found[1] == found[3]
    assert [len(each) for each in blocks] == [16] * 4
