"""How full KV caches are, in an executor's statistics: as routers say it, and what of its own
prompts was cached. What nobody says is absent.
"""

from __future__ import annotations

import asyncio
from typing import Any

import fake_router
import pytest
from both import final, running
from fake_router import Reply

from tandem.upstream.served_model import union
from tandem.v1 import router_pb2
from tandem_executor import ExecutorConfig, IterationStats, KvCacheStats, Request

MODEL = "tandem-tiny"


def fleet(**cache: int) -> router_pb2.Fleet:
    more = {"kv_cache": router_pb2.KvCache(**cache)} if cache else {}
    return fake_router.fleet(model=MODEL, tokenizer_sha256="any", **more)


async def half_cached(reply: Reply) -> None:
    reply.token_ids([11])
    await reply.flush()
    reply.finish(length=True, cached_tokens=len(reply.task.prompt_token_ids) // 2)


async def withheld(reply: Reply) -> None:
    reply.end(stop_reason="no")


async def stats_until(executor: Any, max_num_blocks: int | None) -> KvCacheStats | None:
    """Those of the last iteration, once the router has said so many blocks."""
    seen: list[IterationStats] = []
    async with asyncio.timeout(20):
        while True:
            await final(executor, executor.enqueue_request(Request([1, 2, 3, 4], max_tokens=1)))
            seen += executor.get_latest_iteration_stats()
            found = seen[-1].kv_cache_stats if seen else None
            if seen and (found and found.max_num_blocks) == max_num_blocks:
                return found
            await asyncio.sleep(0.01)


@pytest.mark.promise("S2-077")
@pytest.mark.parametrize("kind", ["threads", "asyncio"])
async def test_it_is_what_the_router_said_last_and_what_was_cached(kind: str) -> None:
    said = fleet(pages=100, used_pages=30, page_size=16)
    async with (
        fake_router.running(half_cached, said) as router,
        running(kind, router.address, ExecutorConfig()) as executor,
    ):
        await stats_until(executor, 100)
        assert await stats_until(executor, 100) == KvCacheStats(
            max_num_blocks=100,
            free_num_blocks=70,
            used_num_blocks=30,
            tokens_per_block=16,
            cache_hit_rate=0.5,
        )
        router.change_fleet(fleet(pages=80, used_pages=90))
        found = await stats_until(executor, 80)
        assert found is not None
        assert (found.free_num_blocks, found.tokens_per_block) == (0, None)


@pytest.mark.promise("S2-077")
async def test_what_the_router_does_not_say_is_absent() -> None:
    async with (
        fake_router.running(half_cached, fleet()) as router,
        running("asyncio", router.address, ExecutorConfig()) as executor,
    ):
        await stats_until(executor, None)
        assert await stats_until(executor, None) == KvCacheStats(cache_hit_rate=0.5)


async def test_a_prompt_of_which_nobody_says_what_was_cached_does_not_count() -> None:
    async with (
        fake_router.running(withheld, fleet()) as router,
        running("asyncio", router.address, ExecutorConfig()) as executor,
    ):
        await stats_until(executor, None)
        assert await stats_until(executor, None) is None


def test_of_several_routers_it_is_what_the_one_says_that_sees_most() -> None:
    said = [fleet(pages=10, used_pages=9), fleet(), fleet(pages=20, used_pages=1)]
    served = union([each.models[0] for each in said])
    assert served is not None
    assert served.kv_cache == router_pb2.KvCache(pages=20, used_pages=1)
    silent = union([each.models[0] for each in (fleet(), fleet())])
    assert silent is not None
    assert not silent.HasField("kv_cache")
