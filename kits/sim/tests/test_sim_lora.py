"""LoRA adapters of the simulated model: each says something else, in both phases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from make_lora_adapter import make

from tandem.engine import lora
from tandem.engine.base import EngineRequest, EngineSettings, Role
from tandem.logits.registry import Registry
from tandem.v1 import common_pb2
from tandem_sim import SimEngine
from tandem_sim.prefix_cache import PrefixCache

NAMES = ("", "sql", "tone")


@pytest.mark.promise("S5-410")
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 7}, {"logprobs": 2}])
async def test_each_adapter_says_its_own_and_a_pair_what_one_engine_says(
    pair: Any, start: Any, sampling: dict[str, Any]
) -> None:
    whole = await start(Role.AGGREGATED)
    answers = []
    for name in NAMES:
        alone = await whole.tokens_of(whole.ask(lora_adapter=name, **sampling))
        assert await pair.tokens(lora_adapter=name, **sampling) == alone
        answers.append(tuple(alone))
    assert len(set(answers)) == len(NAMES)


def test_the_numbers_of_blocks_are_those_that_frontends_say() -> None:
    request = EngineRequest(
        request_id=1,
        token_ids=range(1, 200),
        sampling=common_pb2.SamplingParams(max_tokens=1),
        cache_salt="acme",
        lora_adapter="sql",
    )
    numbers = PrefixCache(1000).blocks(request)
    from tandem.upstream.submission import SubmittedPrompt

    said = SubmittedPrompt.of(range(1, 200), max_tokens=1, cache_salt="acme", lora_adapter="sql")
    assert b"".join(each.to_bytes(8, "little") for each in numbers) == said.blocks


@pytest.mark.promise("S5-412")
async def test_the_fingerprint_names_the_set(model_path: Path, tmp_path: Path) -> None:
    folders = {name: str(make(model_path, tmp_path / name, seed=1)) for name in NAMES[1:]}
    given = lora.load(folders, model_path, max_rank=8)
    said = set()
    for adapters in ((), given[:1], given):
        settings = EngineSettings(
            model_path=model_path,
            model_name="tiny",
            max_sequences=2,
            host="127.0.0.1",
            options={},
            registry=Registry.builtin(),
            lora_adapters=adapters,
        )
        engine = SimEngine(Role.AGGREGATED, settings)
        said.add((await engine.start()).fingerprint.lora_sha256)
        await engine.close()
    assert len(said) == 3
    assert "" in said
