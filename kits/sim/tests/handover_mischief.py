"""Hand-overs between two sim engines' pools over a transfer that misbehaves, as many as are asked
for: the product's pools, model, sender and link of decode, without sockets, processes or waiting.

    python kits/sim/tests/handover_mischief.py --hand-overs 1000000

Each hand-over is answered from, refused or given up. `wrong` counts answers that are not those of
the prompt, `needless` refusals of hand-overs that nothing happened to. Both have to be 0.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from tandem.engine.base import EngineRequest
from tandem.engine.kv_tag import KvCheck
from tandem.engine.rooms import KeyedTimers
from tandem.errors import KvCorruptError, TandemError
from tandem.v1 import common_pb2, kv_pb2
from tandem_sim.kv_pool import KvPool
from tandem_sim.kv_transfer.receiver import Expected, ReceiverLink
from tandem_sim.kv_transfer.sender import Export, Sender, SenderLink
from tandem_sim.language import Language
from tandem_sim.model import SimModel, landed_of
from tandem_sim.options import SimOptions
from tandem_sim.prefix_cache import PrefixCache
from tandem_sim.sequence import NEVER, SimSequence

PAGE_SIZE, TOKEN_BYTES, PAGES = 4, 16, 48
LONGEST = 3 * PAGE_SIZE
PROMPTS, OPEN, LATEST = 200, 6, 12
"""Prompts that there are, hand-overs at a time, and how many later ones a late write waits for."""
ADAPTERS, SALTS = ("", "sql", "law"), ("", "acme", "umbrella")
WORDS = range(100, 5000)

OF_WHOSE = ("prompt", "tenant", "adapter", "crossed")
"""Prefill has other KV than decode asks for, or another room's answer comes."""
OF_PAGES = ("freed", "reused", "again")
"""Pages of decode or prefill are given away meanwhile, or an answer comes a second time."""
OF_BYTES = ("late", "stale", "torn", "doubled")
"""Bytes come after the word, not at all, in part, or again when the pages are another's."""
ANOTHERS = "another's"
"""What a hand-over without a fault of its own was hit by."""
FAULTS = (*OF_WHOSE, *OF_PAGES, *OF_BYTES)
_LANGUAGE = Language(
    words=WORDS,
    eos=None,
    vocabulary=8192,
    noise=np.zeros(1, dtype=np.float32),
    _likeliest=np.zeros(1, dtype=np.int64),
    _noise_sum=1.0,
)


@dataclass
class Tally:
    """What became of hand-overs, and of those that a fault hit, by fault."""

    answered: int = 0
    refused: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    needless: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    noticed: Counter[str] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)


@dataclass(eq=False)
class Room:
    """One hand-over, and what is done to it."""

    sequence: SimSequence
    prompt: int
    fault: str
    hit: bool = False
    """Something was done to its KV, by its own fault or by another's that came late."""


@dataclass(eq=False)
class Side:
    pool: KvPool
    model: SimModel
    memory: Any


def _side(check: KvCheck, pages: int) -> Side:
    memory = np.zeros((pages, PAGE_SIZE * TOKEN_BYTES), dtype=np.uint8)
    pool = KvPool(memory, page_size=PAGE_SIZE, token_bytes=TOKEN_BYTES, context_length=LONGEST)
    options = SimOptions(page_size=PAGE_SIZE, kv_bytes_per_token=TOKEN_BYTES, kv_check=check)
    return Side(pool, SimModel(options, _LANGUAGE, pool, PrefixCache(0), layout=7), memory)


class Mischief:
    """Two engines, and a transfer between them that does some of its writes wrong."""

    def __init__(self, seed: int, *, check: KvCheck, faults: Sequence[str], share: float) -> None:
        """`share`: of the hand-overs that a fault hits."""
        self.tally = Tally()
        self._random = random.Random(seed)
        self._faults, self._share = faults, share
        self._prefill, self._decode = _side(check, PAGES), _side(check, PAGES)
        self._prompts = self._make_prompts()
        self._right = self._answers(check)
        self._sender, self._sent = self._make_sender()
        self._link = self._make_receiver_link()
        self._rooms: dict[int, Room] = {}
        self._due: list[kv_pb2.KvLanded | kv_pb2.KvFailed] = []
        self._later: list[tuple[int, Callable[[], object]]] = []
        self._held: list[Sequence[int]] = []
        self._turn = 0
        self._last_landed: kv_pb2.KvLanded | None = None
        self._writing: Room | None = None

    def run(self, hand_overs: int) -> Tally:
        for _ in range(hand_overs):
            self._turn += 1
            self._begin()
            while len(self._rooms) > self._random.randrange(OPEN):
                self._carry()
            self._catch_up(self._turn)
        while self._rooms:
            self._carry()
        self._catch_up(sys.maxsize)
        return self.tally

    # --- one hand-over ------------------------------------------------------------------------

    def _begin(self) -> None:
        fault = ""
        if self._random.random() < self._share:
            fault = self._random.choice(self._faults)
            self.tally.injected[fault] += 1
        number, room = self._random.randrange(PROMPTS), self._random.getrandbits(63) | 1
        adapter, salt = self._random.choice(ADAPTERS), self._random.choice(SALTS)
        asked = self._request(room, number, adapter, salt)
        computed = self._request(
            room,
            (number + 1) % PROMPTS if fault == "prompt" else number,
            self._other(ADAPTERS, adapter) if fault == "adapter" else adapter,
            self._other(SALTS, salt) if fault == "tenant" else salt,
        )
        decode, prefill = (
            self._sequence(self._decode, asked),
            self._sequence(self._prefill, computed),
        )
        self._rooms[room] = Room(decode, number, fault, hit=fault in OF_WHOSE)
        if self._random.random() < 0.5:
            self._offer(decode)
            self._export(prefill)
        else:
            self._export(prefill)
            self._offer(decode)

    def _offer(self, sequence: SimSequence) -> None:
        self._decode.model.expect(sequence)
        room = sequence.request.room
        self._link.offer(
            Expected(
                room=room,
                pages=sequence.pages,
                generation=sequence.generation,
                lease_seconds=3600.0,
                settle=partial(self._arrived, room),
            )
        )
        for offer in self._link._take().offers:
            self._writing = self._rooms[offer.room]
            self._sender.on_offer(self._sent, offer)

    def _export(self, sequence: SimSequence) -> None:
        pool = self._prefill.pool
        self._prefill.model.prefill(sequence)
        self._writing = self._rooms[sequence.request.room]
        self._sender.export(
            Export(
                landed=landed_of(sequence),
                pages=sequence.pages,
                wait_seconds=3600.0,
                settle=lambda _: pool.release(sequence.pages),
                tag=sequence.tag,
                intact=lambda: pool.generation(sequence.pages) == sequence.generation,
            )
        )

    def _carry(self) -> None:
        """Bring one answer to decode, of whichever room."""
        answers = self._sent._take()
        self._due += [*answers.landed, *answers.failed]
        answer = self._due.pop(self._random.randrange(len(self._due)))
        if isinstance(answer, kv_pb2.KvFailed):
            self._link._on_refused(answer.room, KvCorruptError(answer.error.message))
            return
        room = self._rooms[answer.room]
        if room.fault == "crossed":
            answer = self._crossed(answer)
        elif room.fault == "freed":
            self._give_away(room)
        elif room.fault == "again":
            self._do_later(partial(self._link._on_landed, answer))
        self._last_landed = answer
        self._link._on_landed(answer)

    def _arrived(self, number: int, result: kv_pb2.KvLanded | TandemError) -> None:
        room = self._rooms.pop(number)
        sequence = room.sequence
        pages = sequence.pages
        try:
            if isinstance(result, TandemError):
                raise result
            self._decode.model.receive(sequence, result)
        except KvCorruptError as refused:
            self.tally.refused += 1
            self.tally.said[refused.message] += 1
            self.tally.noticed[room.fault or ANOTHERS] += room.hit
            self.tally.needless += not room.hit
        else:
            self.tally.answered += 1
            right = self._right[room.prompt, sequence.request.lora_adapter]
            if (sequence.first_token, sequence.state) != right:
                self.tally.wrong[room.fault or ANOTHERS] += 1
        if not isinstance(result, TandemError):  # else the link has freed them
            self._do_later(partial(self._decode.pool.release, pages))

    # --- what goes wrong ----------------------------------------------------------------------

    def _write(self, pages: Sequence[int], remote: Sequence[int]) -> Any:
        room = self._writing
        assert room is not None
        source, target = self._prefill.memory, self._decode.memory
        pages, remote = list(pages), list(remote)
        content, done = source[pages], True
        match room.fault:
            case "late":
                done = False
                self._do_later(partial(self._overwrite, remote, content))
            case "stale":
                done = False
            case "torn":
                room.hit = True
                cut = self._random.randrange(content.size)
                flat = target[remote].reshape(-1)
                flat[:cut] = content.reshape(-1)[:cut]
                target[remote] = flat.reshape(content.shape)
                done = bool((target[remote] == content).all())
                room.hit = not done
                return _Written()
            case "doubled":
                self._do_later(partial(self._overwrite, remote, content))
            case "reused":
                room.hit = True
                pool = self._prefill.pool
                pool.release(pages)
                others = pool.allocate(len(pages))
                assert others is not None
                pool.fill(others, self._prompts[self._random.randrange(PROMPTS)][: len(others)])
                content = source[pages]
        if done:
            target[remote] = content
        else:
            room.hit = True
        return _Written()

    def _overwrite(self, remote: list[int], content: Any) -> None:
        """Bytes come into pages that may be another's by now."""
        for room in self._rooms.values():
            if set(room.sequence.pages) & set(remote):
                room.hit = True
        self._decode.memory[remote] = content

    def _crossed(self, answer: kv_pb2.KvLanded) -> kv_pb2.KvLanded:
        """The answer that came before, as if it were this room's."""
        crossed = kv_pb2.KvLanded()
        crossed.CopyFrom(self._last_landed or kv_pb2.KvLanded(tag=bytes(64)))
        crossed.room = answer.room
        return crossed

    def _give_away(self, room: Room) -> None:
        """Decode frees the room's pages too early, and another has some of them now."""
        pool, pages = self._decode.pool, room.sequence.pages
        pool.release(pages)
        again = pool.allocate(len(pages))
        assert again is not None
        assert set(again) == set(pages)
        room.hit = True

    def _do_later(self, act: Callable[[], object]) -> None:
        self._later.append((self._turn + 1 + self._random.randrange(LATEST), act))

    def _catch_up(self, turn: int) -> None:
        due = [act for when, act in self._later if when <= turn]
        self._later = [(when, act) for when, act in self._later if when > turn]
        for act in due:
            act()

    # --- what there is ------------------------------------------------------------------------

    def _other(self, names: Sequence[str], name: str) -> str:
        return self._random.choice([each for each in names if each != name])

    def _make_prompts(self) -> list[tuple[int, ...]]:
        """Many begin alike, and many end alike."""
        draw = self._random
        heads = [tuple(draw.choices(WORDS, k=PAGE_SIZE)) for _ in range(3)]
        made: dict[tuple[int, ...], None] = {}
        while len(made) < PROMPTS:
            middle = tuple(draw.choices(WORDS, k=draw.randrange(LONGEST - PAGE_SIZE)))
            begins = (*draw.choice(heads), *middle)[: LONGEST - 1]
            made[(*begins, WORDS[0])] = None
        return list(made)

    def _answers(self, check: KvCheck) -> dict[tuple[int, str], tuple[int, int]]:
        """First token and state of each prompt with each adapter, where nothing goes wrong."""
        alone = _side(check, LONGEST)
        right = {}
        for number in range(PROMPTS):
            for adapter in ADAPTERS:
                sequence = self._sequence(alone, self._request(1, number, adapter, ""))
                alone.model.prefill(sequence)
                right[number, adapter] = sequence.first_token, sequence.state
                alone.pool.release(sequence.pages)
        return right

    def _request(self, room: int, prompt: int, adapter: str, salt: str) -> EngineRequest:
        return EngineRequest(
            request_id=room,
            token_ids=self._prompts[prompt],
            sampling=_SAMPLING,
            room=room,
            lora_adapter=adapter,
            cache_salt=salt,
        )

    def _sequence(self, side: Side, request: EngineRequest) -> SimSequence:
        count = side.pool.pages_for(len(request.token_ids))
        pages = side.pool.allocate(count)
        while pages is None:  # what is done later holds them
            self._turn += 1
            self._catch_up(self._turn)
            pages = side.pool.allocate(count)
        return SimSequence(
            request=request,
            prompt_pages=count,
            total_pages=count,
            limit=8,
            stops=frozenset(),
            sampler=None,
            faults=frozenset(),
            pages=pages,
            generation=side.pool.generation(pages),
            natural_end=NEVER,
        )

    def _make_sender(self) -> tuple[Sender, SenderLink]:
        memory: Any = SimpleNamespace(
            describe=lambda token_bytes: kv_pb2.KvMemory(page_bytes=PAGE_SIZE * TOKEN_BYTES),
            transport=lambda: "shm",
        )
        sender = Sender(memory, token_bytes=TOKEN_BYTES, on_crash=lambda error: None)
        link = SenderLink(sender)
        link._peer = SimpleNamespace(write=self._write)  # type: ignore[assignment]
        return sender, link

    def _make_receiver_link(self) -> ReceiverLink:
        receiver: Any = SimpleNamespace(
            hello=kv_pb2.KvMemory(),
            free=self._decode.pool.release,
            leases=KeyedTimers(),
            tls=None,
            lease=lambda expected: None,
            forget=lambda room: None,
        )
        return ReceiverLink(receiver, "prefill")


class _Written:
    """A write that has settled."""

    def settled(self) -> bool:
        return True

    def release(self) -> None:
        pass


_SAMPLING = common_pb2.SamplingParams(max_tokens=8)


async def hand_over(
    count: int,
    *,
    seed: int = 1,
    check: KvCheck = KvCheck.BYTES,
    faults: Sequence[str] = FAULTS,
    share: float = 0.3,
) -> Tally:
    """Run so many hand-overs; the running loop has the timers of leases."""
    # Where asking for CPU time is a call of the kernel it would take half of all of it.
    with mock.patch("tandem_sim.model.time", SimpleNamespace(thread_time=float)):
        return Mischief(seed, check=check, faults=faults, share=share).run(count)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--hand-overs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    began = time.process_time()
    tally = asyncio.run(hand_over(given.hand_overs, seed=given.seed))
    seconds = time.process_time() - began
    print(f"{given.hand_overs} hand-overs in {seconds:.0f} CPU seconds")
    print(f"{tally.answered} answered, {tally.refused} refused as corrupt")
    print(f"wrong answers: {tally.wrong.total()} {dict(tally.wrong) or ''}")
    print(f"needless refusals: {tally.needless}")
    for fault in FAULTS:
        print(f"  {fault:8} {tally.injected[fault]:8} injected {tally.noticed[fault]:8} refused")
    print(f"  hit by another's {tally.noticed[ANOTHERS]} refused")
    for said, count in tally.said.most_common():
        print(f"  {count:8} {said}")
    return 0 if not tally.wrong and not tally.needless else 1


if __name__ == "__main__":
    sys.exit(main())
