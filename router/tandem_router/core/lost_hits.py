"""Sessions whose prompts begin to differ at the same early place, turn after turn: a clock stands
there, or an id that is drawn for each request, so that no cache has what follows.

A prompt is compared with the last few of its session by the numbers of their blocks, so nobody
needs their tokens: two prompts that share a block share all before it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

from tandem.prefix_blocks import BLOCK_TOKENS, Blocks
from tandem.v1 import router_pb2

MOST_SESSIONS = 2_048
"""Whose last prompts are kept; the one that came longest ago is forgotten."""
MOST_COMPARED = 512
"""Blocks of a prompt: of 32,768 tokens, which take 4 KiB."""
MOST_PROMPTS = 3
"""Kept of a session: an agent asks for a title, or of a subagent, between two turns."""
TURNS = 2
"""How many prompts in a row that differ from the last one at one place are no chance."""
MOST_TOLD = 64
"""Sessions of which people are told, the last that lost something."""


class LostHits(NamedTuple):
    """Where the prompts of a session begin to differ, and what that has cost."""

    session: int
    """The number of the client's name for the session: see tandem/prefix_blocks.py."""
    model: str
    tenant: str
    """The name of the client's key; empty: no key was asked."""
    trace_id: str
    """The trace id of the last prompt."""
    token: int
    """All tokens before this one are alike, and some of the 64 from there on differ."""
    turns: int
    """How many prompts in a row have differed there from the one before."""
    tokens: int
    """Tokens of the last prompt that a cache would have had without the difference; of prompts of
    more than MOST_COMPARED blocks, at least.
    """
    total_tokens: int
    """`tokens` of all prompts of the session since the difference was noticed."""


class _Turn(NamedTuple):
    """One prompt of a session."""

    blocks: Blocks
    """The first MOST_COMPARED."""
    place: int
    """How many blocks were those of the prompt before, where it differed early; else -1."""
    turns: int
    """Prompts in a row that differed there."""


class LostHitsOfSessions:
    """Notices such sessions, in bounded memory: 12 KiB a session, 24 MiB in all."""

    def __init__(self) -> None:
        self._turns: OrderedDict[int, deque[_Turn]] = OrderedDict()
        self._told: OrderedDict[int, LostHits] = OrderedDict()

    def __len__(self) -> int:
        """How many sessions' last prompts are kept."""
        return len(self._turns)

    def told(self) -> tuple[LostHits, ...]:
        """Lost hits of the last sessions that had any, the latest first."""
        return tuple(reversed(self._told.values()))

    def forget(self, session: int) -> None:
        """Let go of a session's prompts: it is over. What was noticed of it is told on."""
        self._turns.pop(session, None)

    def note(self, submit: router_pb2.Submit, blocks: Blocks, held: int) -> LostHits | None:
        """Take in a prompt of a session, of which caches hold the first `held` blocks. Returns what
        it has lost; None: nothing that is told.
        """
        blocks = blocks[:MOST_COMPARED]
        if not (submit.session and blocks):
            return None
        turns = self._turns.pop(submit.session, None)
        if turns is None:
            turns = deque(maxlen=MOST_PROMPTS)
        self._turns[submit.session] = turns
        if len(self._turns) > MOST_SESSIONS:
            self._turns.popitem(last=False)
        turn, lost = _compare(blocks, turns, held)
        turns.append(turn)
        return self._tell(submit, turn, lost) if turn.turns >= TURNS else None

    def _tell(self, submit: router_pb2.Submit, turn: _Turn, lost: int) -> LostHits:
        tokens = lost * BLOCK_TOKENS
        before = self._told.pop(submit.session, None)
        found = self._told[submit.session] = LostHits(
            submit.session,
            submit.model,
            submit.tenant,
            submit.trace_id,
            turn.place * BLOCK_TOKENS,
            turn.turns,
            tokens,
            tokens + (before.total_tokens if before else 0),
        )
        if len(self._told) > MOST_TOLD:
            self._told.popitem(last=False)
        return found


def _compare(blocks: Blocks, turns: deque[_Turn], held: int) -> tuple[_Turn, int]:
    """A prompt beside the most similar one of its session, the latest of equals: where caches hold
    no more than both have in common, and that is less than half of either, the prompt has lost the
    rest of the shorter one. Returns how many blocks that is.
    """
    place, last = -1, None
    for each in reversed(turns):
        alike = _alike(blocks, each.blocks)
        if alike > place:
            place, last = alike, each
        if 2 * place >= len(blocks):
            break  # a turn that goes on from the last one: others need no look
    shorter = 0 if last is None else min(len(blocks), len(last.blocks))
    if last is None or held > place or 2 * place >= shorter:
        return _Turn(blocks, -1, 0), 0
    return _Turn(blocks, place, last.turns + 1 if last.place == place else 1), shorter - place


def _alike(one: Blocks, other: Blocks) -> int:
    """How many blocks two prompts begin with alike: a search by halves, as none is alike behind the
    first that is not.
    """
    low, high = 0, min(len(one), len(other))
    if one[high - 1] == other[high - 1]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
