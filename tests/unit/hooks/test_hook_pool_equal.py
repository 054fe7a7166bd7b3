"""What a pool shows is what the same chain shows in the worker, whatever hooks decide."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hook_rulings import WAIT_SECONDS, Rulings, settings, work
from hypothesis import given
from hypothesis import strategies as st
from judging import abort, judge

from tandem.errors import HookError
from tandem.hooks.chain import Chain
from tandem.hooks.counters import CountedHook, HookCounters
from tandem.hooks.deferred import Ruling, SequenceInfo, Work
from tandem.hooks.piece import Piece
from tandem.hooks.runner import in_this_process
from tandem.hooks.runner.async_ import AsyncRunner
from tandem.hooks.runner.inline import InlineRunner
from tandem.hooks.runner.processes.counters import PooledHook, ProcessCounters, counts_of
from tandem.hooks.runner.processes.pool import HookPool
from tandem.hooks.runner.processes.sequence import PoolGroup, PoolSequence
from tandem.hooks.runner.processes.wire import MAX_MESSAGE_BYTES, Changed
from tandem.hooks.settings import HookEntry, HookSettings
from tandem.pool.frames import Frames, WireError, frame

REQUESTS = 2000
AT_ONCE = 200
WORDS = ["a", " word", "", "ö", "🙂", "\n", "a longer piece of text "]


@dataclass
class Script:
    """A sequence's chunks. Some are aborted before their last one."""

    request_id: int
    chunks: list[tuple[str, list[int]]]
    aborted: bool

    def works(self) -> Iterator[Work]:
        for place, (text, token_ids) in enumerate(self.chunks):
            final = place == len(self.chunks) - 1 and not self.aborted
            yield work(self.request_id, text, *token_ids, final=final)


def _scripts(seed: int) -> list[Script]:
    choice = random.Random(seed)

    def chunk() -> tuple[str, list[int]]:
        return choice.choice(WORDS), choice.choices(range(1000), k=choice.choice([1, 1, 1, 0, 3]))

    return [
        Script(number, [chunk() for _ in range(choice.randint(1, 9))], choice.random() < 0.1)
        for number in range(REQUESTS)
    ]


def _two(second: str) -> HookSettings:
    """Two hooks that decide by different dice, however long a busy machine takes for them."""
    first = settings("Scripted", config={"seed": 3}, timeout_ms=30_000).chain
    last = settings(second, config={"seed": 4}, timeout_ms=30_000).chain
    return HookSettings(chain=first + last, workers=2)


def _alone(chain: Chain, script: Script) -> list[Any]:
    """The outcomes of one sequence by itself, in this process."""
    info = SequenceInfo(
        request_id=script.request_id, group=0, output_index=0, streaming=True, trace_id="t"
    )
    sequence = chain.sequence(info)
    outcomes: list[Any] = []
    for item in script.works():
        try:
            piece = judge(sequence, item.piece, item.final)
        except HookError as error:
            outcomes.append((None, None, str(error)))
            break
        outcomes.append((_plain(piece), sequence.reason, None))
        if sequence.reason is not None:
            break
    else:
        abort(sequence)
    return outcomes


def _plain(piece: Piece | None) -> Any:
    if piece is None:
        return None
    return piece.text, list(piece.token_ids), list(piece.extras or [])


def _outcome(ruling: Ruling) -> Any:
    return _plain(ruling.piece), ruling.reason, ruling.error and str(ruling.error)


async def _interleave(rulings: Rulings, scripts: list[Script]) -> None:
    """As a worker would: a step at a time, without waiting for what earlier ones bring."""
    waiting = list(reversed(scripts))
    running: dict[int, Iterator[Work]] = {}
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            script = waiting.pop()
            running[script.request_id] = script.works()
            rulings.open(script.request_id)
        step: list[Work] = []
        for request_id, works in list(running.items()):
            item = next(works, None)
            if item is None:
                del running[request_id]
            else:
                step.append(item)
        rulings.hooks.submit(step)
        await asyncio.sleep(0)


@pytest.mark.promise("S0-006", "S0-021")
@pytest.mark.parametrize("where", ["pool", "pool of an async chain", "lanes"])
async def test_two_thousand_interleaved_requests_get_what_each_would_get_alone(where: str) -> None:
    scripts = _scripts(seed=7)
    chain = Chain.build(_two("Scripted"), phase="decode", model="m")
    expected = {script.request_id: _alone(chain, script) for script in scripts}
    given_settings = _two("Scripted" if where == "pool" else "AsyncScripted")
    hooks: HookPool | AsyncRunner | InlineRunner
    if where == "lanes":
        hooks = in_this_process(Chain.build(given_settings, phase="decode", model="m"))
    else:
        hooks = HookPool(given_settings, phase="decode", model="m", log_level="error")
    rulings = Rulings(hooks)
    await asyncio.wait_for(hooks.start(rulings.deliver), WAIT_SECONDS)
    await _interleave(rulings, scripts)
    await rulings.until(sum(len(script.chunks) for script in scripts))
    for script in scripts:
        if script.aborted:
            hooks.abort(script.request_id)
    got: dict[int, list[Any]] = {script.request_id: [] for script in scripts}
    for ruling in rulings.all:
        got[ruling.request_id].append(_outcome(ruling))
    for script in scripts:
        wanted = expected[script.request_id]
        assert got[script.request_id][: len(wanted)] == wanted
        assert all(piece is None for piece, _, _ in got[script.request_id][len(wanted) :])
    await asyncio.wait_for(hooks.close(), WAIT_SECONDS)
    assert hooks.open_sequences == 0
    counted: Sequence[CountedHook] = (
        hooks.hooks if isinstance(hooks, HookPool) else hooks.chain.hooks
    )
    for there, here in zip(counted, chain.hooks, strict=True):
        assert Counter(there.counters.verdicts) == Counter(here.counters.verdicts)
        assert (there.counters.sequences, there.counters.held_tokens) == (0, 0)


@given(
    chunks=st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=8),
    data=st.data(),
)
def test_positions_name_the_tokens_that_came_and_each_at_most_once(
    chunks: list[list[int]], data: st.DataObject
) -> None:
    info = SequenceInfo(request_id=1, group=1, output_index=0, streaming=True, trace_id="t")
    sequence: PoolSequence[None] = PoolSequence(info, PoolGroup(1, 1))
    came: list[tuple[int, str]] = []
    shown_to = 0
    for token_ids in chunks:
        item = work(1, "text", *token_ids)
        came += zip(item.piece.token_ids, item.piece.extras or [], strict=True)
        sequence.waiting.append(item)
        positions = [
            position for position in range(shown_to, len(came)) if data.draw(st.booleans())
        ]
        shown_to = positions[-1] + 1 if positions else shown_to
        piece = sequence.answer(Changed(0, "other", positions), 0.0).piece
        assert piece is not None
        assert piece.text == "other"
        assert list(piece.token_ids) == [came[position][0] for position in positions]
        assert list(piece.extras or []) == [came[position][1] for position in positions]


@pytest.mark.parametrize("positions", [[2], [-1], [1, 0], [1, 1]])
def test_positions_that_cannot_be_are_refused(positions: list[int]) -> None:
    info = SequenceInfo(request_id=1, group=1, output_index=0, streaming=True, trace_id="t")
    sequence: PoolSequence[None] = PoolSequence(info, PoolGroup(1, 1))
    sequence.waiting.append(work(1, "text", 5, 6))
    with pytest.raises(WireError):
        sequence.answer(Changed(0, "other", positions), 0.0)
    with pytest.raises(WireError):
        sequence.answer(None, 0.0)  # nothing waits any more


def test_what_was_shown_or_passed_over_is_kept_no_more() -> None:
    info = SequenceInfo(request_id=1, group=1, output_index=0, streaming=True, trace_id="t")
    sequence: PoolSequence[None] = PoolSequence(info, PoolGroup(1, 1))
    for token_id in range(5):
        sequence.waiting.append(work(1, "text", token_id))
    sequence.answer(Changed(0, None, None), 0.0)  # held, or dropped
    sequence.answer(Changed(0, "text", [0]), 0.0)
    with pytest.raises(WireError):
        sequence.answer(Changed(0, "text", [0]), 0.0)
    sequence.answer(None, 0.0)
    with pytest.raises(WireError):
        sequence.answer(Changed(0, "text", [2]), 0.0)


@dataclass
class _Hook:
    counters: HookCounters
    entry: HookEntry = HookEntry(path="h")  # noqa: RUF009 - it is frozen


def test_what_a_lost_process_counted_stays_and_what_it_held_does_not() -> None:
    hook = PooledHook(settings("Upper").chain[0])
    lost, other = ProcessCounters([hook]), ProcessCounters([hook])
    told = HookCounters()
    told.verdicts["emit"], told.sequences, told.held_tokens = 3, 2, 5
    told.seconds.observe(0.5)
    for process in (lost, other):
        process.update(counts_of([_Hook(told)]))
    told.verdicts["emit"] = 4
    lost.update(counts_of([_Hook(told)]))
    lost.gone()
    assert hook.counters.verdicts["emit"] == 7
    assert (hook.counters.seconds.total, sum(hook.counters.seconds.counts)) == (1.0, 2)
    assert (hook.counters.sequences, hook.counters.held_tokens) == (2, 5)


@given(payloads=st.lists(st.binary(max_size=40)), cuts=st.lists(st.integers(1, 30)))
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(
    payloads: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(map(frame, payloads))
    frames = Frames(MAX_MESSAGE_BYTES)
    got: list[bytes] = []
    for size in [*cuts, len(stream) + 1]:
        got += frames.feed(stream[:size])
        stream = stream[size:]
    assert got == payloads


def test_a_frame_of_absurd_length_is_refused() -> None:
    with pytest.raises(WireError):
        list(Frames(MAX_MESSAGE_BYTES).feed(b"\xff\xff\xff\xff"))
