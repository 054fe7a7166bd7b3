"""The KV pool's contents and accounts, and the memory that engines write to."""

from __future__ import annotations

import asyncio
import os
import secrets
import zlib
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.errors import KvTransferError, StartError, TandemError
from tandem.v1 import kv_pb2
from tandem_sim.kv_pool import KvPool
from tandem_sim.kv_transfer import nixl
from tandem_sim.kv_transfer.memory import Memory, new_memory
from tandem_sim.kv_transfer.nixl import NixlWrite
from tandem_sim.kv_transfer.sender import Export, Sender, SenderLink

PAGE_SIZE, TOKEN_BYTES = 4, 16
Prompt = st.lists(st.integers(0, 50_000), min_size=1, max_size=40)


def new_pool(pages: int = 20) -> KvPool:
    memory = np.zeros((pages, PAGE_SIZE * TOKEN_BYTES), dtype=np.uint8)
    return KvPool(memory, page_size=PAGE_SIZE, token_bytes=TOKEN_BYTES, context_length=40)


@given(Prompt, st.data())
def test_a_slot_follows_from_its_prefix_alone(prompt: list[int], data: st.DataObject) -> None:
    pool = new_pool()
    cut = data.draw(st.integers(1, len(prompt)))
    whole = pool.allocate(pool.pages_for(len(prompt)))
    prefix = pool.allocate(pool.pages_for(cut))
    assert whole is not None
    assert prefix is not None
    pool.fill(whole, prompt)
    pool.fill(prefix, prompt[:cut])
    for token in range(cut):
        assert pool.slot(whole, token) == pool.slot(prefix, token)


@given(Prompt, st.data())
def test_one_other_token_changes_every_slot_from_there_on(
    prompt: list[int], data: st.DataObject
) -> None:
    pool = new_pool()
    place = data.draw(st.integers(0, len(prompt) - 1))
    other = [*prompt[:place], prompt[place] + 1, *prompt[place + 1 :]]
    pages = [pool.allocate(pool.pages_for(len(prompt))) for _ in range(2)]
    for own, tokens in zip(pages, (prompt, other), strict=True):
        assert own is not None
        pool.fill(own, tokens)
    for token in range(len(prompt)):
        same = pool.slot(pages[0], token) == pool.slot(pages[1], token)
        assert same == (token < place)


@given(Prompt, st.data())
def test_the_checksum_notices_any_damaged_slot(prompt: list[int], data: st.DataObject) -> None:
    pool = new_pool()
    pages = pool.allocate(pool.pages_for(len(prompt)))
    assert pages is not None
    checksum = pool.fill(pages, prompt)
    assert pool.checksum(pages, len(prompt)) == checksum
    slots = [pool.slot(pages, token) for token in range(len(prompt))]
    assert zlib.crc32(b"".join(slots)) == checksum
    pool.damage(pages, data.draw(st.integers(0, len(prompt) - 1)))
    assert pool.checksum(pages, len(prompt)) != checksum
    pool.clear(pages)
    assert pool.checksum(pages, len(prompt)) != checksum


@given(st.lists(st.integers(0, 8), max_size=30))
def test_pages_are_never_given_twice(counts: list[int]) -> None:
    pool = new_pool()
    held: list[list[int]] = []
    for count in counts:
        pages = pool.allocate(count)
        if pages is None:
            assert count > pool.free_pages
            pool.release(held.pop(0))
        else:
            held.append(pages)
        out = [page for pages in held for page in pages]
        assert len(out) == len(set(out))
        assert pool.used_tokens == len(out) * PAGE_SIZE


@pytest.fixture(params=["nixl", "memfd"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which memory the engines of this test have."""
    if request.param == "memfd":
        monkeypatch.setattr(nixl, "installed", lambda: False)
    kind: str = request.param
    return kind


def memory_of(pages: int = 8, *, name: str = "") -> Memory:
    name = name or f"test-{secrets.token_hex(4)}"
    return new_memory(name=name, page_count=pages, page_bytes=256)


async def test_pages_arrive_where_they_were_offered_and_nowhere_else(kind: str) -> None:
    source, target = memory_of(), memory_of(pages=5)
    source.pages[:] = np.arange(8, dtype=np.uint8)[:, None]
    peer = source.connect(target.describe(token_bytes=4))
    write = peer.write([6, 1], [0, 4])
    async with asyncio.timeout(10):
        while not write.settled():
            target.progress()
            await asyncio.sleep(0)
    write.release()
    assert [int(page[0]) for page in target.pages] == [6, 0, 0, 0, 1]
    assert (target.pages == target.pages[:, :1]).all()
    peer.close()
    source.close()
    target.close()


def test_writing_nothing_has_settled_at_once(kind: str) -> None:
    source, target = memory_of(), memory_of()
    peer = source.connect(target.describe(token_bytes=4))
    write = peer.write([], [])
    assert write.settled()
    write.release()
    peer.close()


@pytest.mark.parametrize("pages", [([0], [8]), ([8], [0])])
def test_a_page_outside_the_memory_is_refused(
    kind: str, pages: tuple[list[int], list[int]]
) -> None:
    source, target = memory_of(), memory_of()
    peer = source.connect(target.describe(token_bytes=4))
    with pytest.raises(KvTransferError):
        peer.write(*pages)
    peer.close()


@pytest.mark.promise("S5-700")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agent_metadata": b"from NIXL"}, "takes KV over NIXL, which is not installed here"),
        ({"agent_metadata": b"memfd 4194303 3"}, "cannot be reached"),
        ({"agent_metadata": b"memfd %d 0" % os.getpid()}, "is not the KV memory of"),
        ({"instance": "another"}, "is not the KV memory of another"),
        ({"pages": 9}, "is not as it was described"),
        ({"page_bytes": 128}, "is not as it was described"),
    ],
)
def test_a_memory_that_is_not_the_described_one_is_never_mapped(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, object], message: str
) -> None:
    monkeypatch.setattr(nixl, "installed", lambda: False)
    source, target = memory_of(), memory_of()
    hello = target.describe(token_bytes=4)
    for field, value in change.items():
        setattr(hello, field, value)
    with pytest.raises(KvTransferError, match=message):
        source.connect(hello)


def test_a_memory_whose_size_may_change_is_never_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl, "installed", lambda: False)
    source, target = memory_of(), memory_of()
    hello = target.describe(token_bytes=4)
    file = os.memfd_create(hello.instance)
    os.ftruncate(file, 8 * 256)
    hello.agent_metadata = b"memfd %d %d" % (os.getpid(), file)
    with pytest.raises(KvTransferError, match="is not as it was described"):
        source.connect(hello)
    os.close(file)


def test_a_memory_that_cannot_be_had_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl, "installed", lambda: False)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(StartError, match="no memory for KV pages"):
        new_memory(name="too-large", page_count=2**30, page_bytes=2**32)
    assert os.listdir("/proc/self/fd") == before


def test_a_worker_with_nixl_says_which_one_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    source = memory_of()
    monkeypatch.setattr(nixl, "installed", lambda: False)
    with pytest.raises(KvTransferError, match=r"has no NIXL.*tandem-serving\[nixl\]"):
        source.connect(memory_of().describe(token_bytes=4))


class StuckAgent:
    """NIXL while a write neither ends nor can be cancelled."""

    def __init__(self, stuck: int) -> None:
        self.stuck = stuck
        """Which of the writes, counted from 1, cannot be cancelled."""
        self.released: list[int] = []
        self.agent, self.errors = self, (RuntimeError,)

    def write(self, pages: list[int], remote_pages: list[int]) -> NixlWrite:
        return NixlWrite(self, StuckHandle(self, pages[0]), "PROC")  # type: ignore[arg-type]

    def check_xfer_state(self, handle: StuckHandle) -> str:
        return "PROC"

    def close(self) -> None:
        self.released.append(0)


class StuckHandle:
    def __init__(self, agent: StuckAgent, number: int) -> None:
        self.agent, self.number = agent, number

    def release(self) -> None:
        if self.number == self.agent.stuck:
            raise RuntimeError("NIXL_ERR_REPOST_ACTIVE")
        self.agent.released.append(self.number)


async def test_a_write_that_cannot_be_cancelled_holds_up_no_other_room() -> None:
    memory = memory_of()
    sender = Sender(memory, token_bytes=4, on_crash=lambda error: None)
    link, agent = SenderLink(sender), StuckAgent(stuck=1)
    link._peer = agent  # type: ignore[assignment]
    settled: dict[int, kv_pb2.KvLanded | TandemError] = {}
    for room in (1, 2):
        settle = partial(settled.__setitem__, room)
        sender.export(
            Export(
                landed=kv_pb2.KvLanded(room=room), pages=[room], wait_seconds=60.0, settle=settle
            )
        )
        sender.on_offer(link, kv_pb2.KvOffer(room=room, pages=[room], lease_ms=60_000))
    sender.drop_link(link)
    assert [type(settled[room]) for room in (1, 2)] == [KvTransferError] * 2
    assert agent.released == [2, 0]
    assert not len(sender)
    await sender.close()
    memory.close()


def test_metadata_that_is_none_is_refused() -> None:
    source = memory_of()
    hello = source.describe(token_bytes=4)
    hello.agent_metadata = b"nonsense"
    with pytest.raises(KvTransferError):
        source.connect(hello)
