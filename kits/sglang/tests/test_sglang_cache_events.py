"""What SGLang publishes of its pages becomes blocks of Tandem's, whatever the pages' size."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from one_case import one_case

from tandem.engine.cache_events import CacheEvents
from tandem.engine.prefix_log import EnteredBlock, Owner
from tandem.prefix_blocks import BLOCK_TOKENS, packed, unpacked
from tandem_sglang import requests

PROMPT = [n % 251 for n in range(4 * BLOCK_TOKENS + 30)]
SIZES = (1, 16, 64, 128, 48)


class Scheduler:
    """Publishes as SGLang's does: msgpack, maps with a `type` in an array."""

    def __init__(self, size: int) -> None:
        self.events, self.size, self._number = CacheEvents(requests.owner_of), size, 0

    def publish(self, *events: dict[str, Any], skipped: int = 0) -> None:
        self._number += skipped
        self.events.take(self._number, msgspec.msgpack.encode([0.5, events, 0]))
        self._number += 1

    def pages(self, tokens: Sequence[int], salt: str = "") -> list[int]:
        """The hashes of its whole pages."""
        ends = range(self.size, len(tokens) + 1, self.size)
        return [hash((salt, *tokens[:end])) for end in ends]

    def stored(self, tokens: Sequence[int], *, first: int = 0, salt: str = "") -> dict[str, Any]:
        """Its pages from one on."""
        pages = self.pages(tokens, salt)
        return {
            "type": "BlockStored",
            "block_hashes": pages[first:],
            "parent_block_hash": pages[first - 1] if first else None,
            "token_ids": tokens[first * self.size : len(pages) * self.size],
            "block_size": self.size,
            "lora_id": None,
            "medium": "GPU",
            **({"cache_salt": requests.salt(salt, "")} if salt else {}),
        }

    def removed(self, tokens: Sequence[int], *, first: int) -> dict[str, Any]:
        return {"type": "BlockRemoved", "block_hashes": self.pages(tokens)[first:]}

    def held(self) -> list[int]:
        return list(self.events.log.held)


def whole(tokens: Sequence[int], size: int, salt: str = "") -> list[int]:
    """Blocks that lie on whole pages of a prompt."""
    return list(unpacked(packed(tokens[: len(tokens) // size * size], salt)))


@pytest.mark.promise("S5-254")
@one_case("size", SIZES)
@one_case("salt", ["", "acme"])
def test_pages_that_enter_are_the_blocks_that_frontends_tell_of(size: int, salt: str) -> None:
    scheduler = Scheduler(size)
    scheduler.publish(scheduler.stored(PROMPT, salt=salt))
    assert scheduler.held() == whole(PROMPT, size, salt) != []


@pytest.mark.parametrize("size", SIZES)
def test_pages_may_come_one_after_the_other_and_leave_from_the_end(size: int) -> None:
    scheduler = Scheduler(size)
    for page in range(len(scheduler.pages(PROMPT))):
        part = scheduler.stored(PROMPT[: (page + 1) * size], first=page)
        scheduler.publish(part)
    assert scheduler.held() == whole(PROMPT, size)
    keep = random.Random(1).randrange(1, len(scheduler.pages(PROMPT)))
    scheduler.publish(scheduler.removed(PROMPT, first=keep))
    assert scheduler.held() == whole(PROMPT[: keep * size], size)


def test_what_goes_on_from_a_known_page_shares_its_blocks() -> None:
    scheduler = Scheduler(16)
    other = [*PROMPT[:160], *[7] * 100]
    scheduler.publish(scheduler.stored(PROMPT), scheduler.stored(other, first=10))
    assert scheduler.held() == [*whole(PROMPT, 16), *whole(other, 16)[2:]]


def test_what_follows_an_unknown_page_is_left_out() -> None:
    scheduler = Scheduler(64)
    scheduler.publish(scheduler.stored(PROMPT, first=1))
    assert scheduler.held() == []


def test_pages_of_drafted_tokens_come_with_the_token_behind_each() -> None:
    scheduler = Scheduler(64)
    event = scheduler.stored(PROMPT)
    event["token_ids"] = [(each, 9) for each in event["token_ids"]]
    scheduler.publish(event)
    assert scheduler.held() == whole(PROMPT, 64)


def test_pages_in_the_host_s_memory_do_not_count() -> None:
    scheduler = Scheduler(64)
    scheduler.publish(scheduler.stored(PROMPT))
    scheduler.publish(scheduler.removed(PROMPT, first=0) | {"medium": "CPU_PINNED"})
    assert scheduler.held() == whole(PROMPT, 64)


@pytest.mark.parametrize("how", ["cleared", "missed"])
def test_after_a_gap_or_a_flush_nothing_is_known_to_be_there(how: str) -> None:
    scheduler = Scheduler(64)
    scheduler.publish(scheduler.stored(PROMPT))
    if how == "cleared":
        scheduler.publish({"type": "AllBlocksCleared"})
    else:
        scheduler.publish(skipped=1)
    assert scheduler.held() == []
    scheduler.publish(scheduler.stored(PROMPT))
    assert scheduler.held() == whole(PROMPT, 64)


class Watcher:
    """Keeps what it is told of a cache."""

    def __init__(self) -> None:
        self.told: list[EnteredBlock | int | str] = []

    def entered(self, block: EnteredBlock) -> None:
        self.told.append(block)

    def left(self, number: int) -> None:
        self.told.append(number)

    def cleared(self) -> None:
        self.told.append("cleared")


@pytest.mark.promise("S5-787")
@one_case("size", SIZES)
@one_case("salt", ["", "acme"])
def test_a_watcher_is_told_each_block_with_its_tokens_and_the_block_before(
    size: int, salt: str
) -> None:
    scheduler, watcher = Scheduler(size), Watcher()
    scheduler.events.log.watcher = watcher
    half = len(PROMPT) // size // 2
    scheduler.publish(scheduler.stored(PROMPT[: half * size], salt=salt))
    scheduler.publish(scheduler.stored(PROMPT, salt=salt))  # the first half is there already
    blocks = whole(PROMPT, size, salt)
    told = [each for each in watcher.told if isinstance(each, EnteredBlock)]
    parts = [PROMPT[n * BLOCK_TOKENS :][:BLOCK_TOKENS] for n in range(len(blocks))]
    assert [each.number for each in told] == blocks
    assert [list(each.token_ids) for each in told] == parts
    assert [each.after for each in told] == [None, *blocks[:-1]]
    assert {each.owner for each in told} == {Owner(salt)}
    scheduler.publish(scheduler.stored(PROMPT, salt="other") | {"parent_block_hash": None})
    scheduler.publish({"type": "AllBlocksCleared"})
    assert watcher.told[-1] == "cleared"
    scheduler.publish(skipped=1)
    assert watcher.told[-1] == "cleared"
    assert all(not isinstance(each, int) for each in watcher.told)


@pytest.mark.promise("S5-787")
def test_a_watcher_is_told_which_blocks_leave() -> None:
    scheduler, watcher = Scheduler(64), Watcher()
    scheduler.events.log.watcher = watcher
    scheduler.publish(scheduler.stored(PROMPT), scheduler.removed(PROMPT, first=2))
    assert watcher.told[-2:] == whole(PROMPT, 64)[2:]
