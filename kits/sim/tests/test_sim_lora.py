"""LoRA adapters of the simulated model: each says something else, in both phases."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest
from make_lora_adapter import make

from tandem.engine import lora
from tandem.engine.base import EngineRequest, EngineSettings, Role
from tandem.logits.registry import Registry
from tandem.prefix_blocks import BLOCK_TOKENS
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


@pytest.mark.promise("S5-410")
async def test_an_adapter_that_one_phase_alone_applies_is_seen(start: Any, pairing: Any) -> None:
    """Else no test could see that it is lost on the way to either phase."""
    pair = pairing(*[await start(role, kv_check="off") for role in (Role.PREFILL, Role.DECODE)])
    right = {name: await pair.tokens(lora_adapter=name) for name in NAMES}
    peer = pair.prefill.description.kv_endpoint
    for first in NAMES:
        for second in set(NAMES) - {first}:
            room = secrets.randbits(63) | 1
            pair.prefill.ask(room=room, lora_adapter=first)
            number = pair.decode.ask(room=room, peer=peer, lora_adapter=second)
            assert await pair.decode.tokens_of(number) not in right.values()


@pytest.mark.promise("S5-413")
async def test_what_one_adapter_has_cached_no_other_uses(start: Any, pairing: Any) -> None:
    prompt = tuple(n % 200 + 1 for n in range(4 * BLOCK_TOKENS + 5))
    options = {"prefix_cache_tokens": 64 * BLOCK_TOKENS}
    pair = pairing(await start(Role.PREFILL, **options), await start(Role.DECODE))
    for name in NAMES:
        for cached in (0, 4 * BLOCK_TOKENS):
            first, second = pair.ask(prompt, lora_adapter=name)
            assert max(d.cached_tokens for d in await pair.prefill.end_of(first)) == cached
            await pair.decode.end_of(second)


def test_the_numbers_of_blocks_are_those_that_frontends_say() -> None:
    request = EngineRequest(
        request_id=1,
        token_ids=range(1, 200),
        sampling=common_pb2.SamplingParams(max_tokens=1),
        cache_salt="acme",
        lora_adapter="sql",
    )
    numbers = PrefixCache(1000).blocks(request)
    from tandem.upstream.submission import Prompt

    said = Prompt.of(range(1, 200), max_tokens=1, cache_salt="acme", lora_adapter="sql")
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
