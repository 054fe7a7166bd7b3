"""Which workers run a sequence, of those that are free: the policies choose, and where a pair and
an aggregated worker could both take it, ways.py says which of them does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from tandem.prefix_blocks import BLOCK_TOKENS
from tandem_router.core.edition import EditionFleet
from tandem_router.core.free import FreeWorkers
from tandem_router.core.group import Group, preferred
from tandem_router.core.pace import Pace
from tandem_router.core.prefixes import HeldPrefixes
from tandem_router.core.story import MAX_NAME_CHARACTERS, Alternative, ChosenWorker, LongerHolder
from tandem_router.core.values import Disaggregate, Way
from tandem_router.core.ways import ONLY, Chosen, Option, choose
from tandem_router.core.worker import Worker
from tandem_router.policies import Prompt

MOST_CANDIDATES = 4
"""Told of each choice; more would cost each request."""
_PAIR, _AGGREGATED = Way.PAIR, Way.AGGREGATED


class Pair(NamedTuple):
    prefill: Worker
    decode: Worker


class Pick(NamedTuple):
    """A worker that is to run a leg."""

    worker: Worker
    choice: ChosenWorker


class Picks(NamedTuple):
    """Workers that could run both legs of a sequence, of one group, and what they were chosen from:
    that is told of those alone that run it.
    """

    prefill: Worker
    prefills: FreeWorkers
    decode: Worker
    decodes: FreeWorkers | None
    """None: prefill's twin was no choice."""
    group: Group
    tokens: int
    """Tokens of the prompt that the prefill worker has to compute."""
    known: Prompt
    """With the blocks alone that some worker holds."""


class Picked(NamedTuple):
    """The workers that are to run both legs of a sequence."""

    prefill: Pick
    decode: Pick
    chosen: Chosen
    ahead: int
    """Tokens that prefill has to compute until the first one of the sequence."""
    pace: Pace
    """Is told how long that takes."""


def pick(
    mine: EditionFleet,
    groups: Iterable[Group],
    prefixes: HeldPrefixes,
    prompt: Prompt,
    *,
    other_than: Pair | None,
    disaggregate: Disaggregate,
    now: float,
) -> Picked | None:
    """As Fleet.pick, of the edition's groups that can run the sequence."""
    pairs: list[Group] = []
    wholes: list[Group] = []
    for group in groups:
        if group.prefill.free and group.decode.free:
            (wholes if group.aggregated else pairs).append(group)
    pair = whole = None
    if pairs:
        pair = _pick_pair(mine, pairs, prefixes.cut(prompt, aggregated=False), other_than)
    if wholes:
        whole = _pick_whole(mine, wholes, prefixes.cut(prompt, aggregated=True), other_than)
    found = pair or whole
    if found is None:
        return None
    if pair is not None and whole is not None:
        by_pair, by_whole = _option(pair, other_than), _option(whole, other_than)
        chosen = choose(by_pair, by_whole, disaggregate, now)
        found = pair if chosen.way is _PAIR else whole
    else:
        chosen = ONLY[_AGGREGATED if pair is None else _PAIR]
    ahead = found.prefill.waiting_tokens + found.tokens
    cached = prompt.tokens - found.tokens
    elsewhere = _elsewhere(found, prefixes, cached)
    prefill = picked_from(found.prefill, found.prefills, cached, elsewhere)
    decode = picked_from(found.decode, found.decodes)
    return Picked(prefill, decode, chosen, ahead, found.group.pace)


def picked_from(
    worker: Worker,
    candidates: FreeWorkers | None,
    cached: int = 0,
    elsewhere: LongerHolder | None = None,
) -> Pick:
    """The story's record of a choice. `candidates`: None where the worker was the only one."""
    name, others, count = worker.profile.name[:MAX_NAME_CHARACTERS], [], 1
    if candidates is not None:
        first = islice(candidates.entries_by_load(), MOST_CANDIDATES)
        others = [Alternative(each.key, each.cost) for each in first if each.worker is not worker]
        count = len(candidates)
    told = ChosenWorker(worker.key, name, worker.cost, count, tuple(others), cached, elsewhere)
    return Pick(worker, told)


def _elsewhere(picks: Picks, prefixes: HeldPrefixes, cached: int) -> LongerHolder | None:
    """A worker that had more of the prompt than the prefill worker that was chosen."""
    blocks, aggregated = picks.known.blocks, picks.group.aggregated
    if len(blocks) * BLOCK_TOKENS <= cached:
        return None
    longest = next(prefixes.holders(blocks, 1, aggregated=aggregated), ())
    mine = picks.prefill.profile.fingerprint.edition  # another model may have the same blocks
    holder = next((each for each in longest if each.profile.fingerprint.edition == mine), None)
    tokens = picks.tokens if holder is None else holder.to_compute(picks.known)
    if holder is None or tokens >= picks.tokens:
        return None
    pace, ahead = picks.group.pace, holder.waiting_tokens + tokens
    reason = holder.withheld() or (
        f"no slot was free: {holder.open_legs} of {holder.capacity} taken"
        if not holder.free
        else f"{holder.waiting_tokens} tokens were to be computed there before"
    )
    return LongerHolder(
        holder.key,
        holder.profile.name[:MAX_NAME_CHARACTERS],
        picks.known.tokens - tokens,
        reason,
        round(pace.seconds(ahead), 6) if pace.tells_of(ahead) else 0.0,
    )


def _pick_pair(
    mine: EditionFleet, groups: Sequence[Group], prompt: Prompt, last: Pair | None
) -> Picks | None:
    """A prefill worker, and a decode worker of its group. Each of `groups` has both free."""
    free = [each for group in groups for each in group.prefill.indexes()]
    if last is None:
        prefills = preferred(free)
    else:
        side = last.decode.side
        alone = side is not None and not side.has_free(but=last.decode)
        prefills = preferred(free, (last.prefill,), barred=alone, again=True)
    if prefills is None:
        return None
    prefill = mine.policy.choose(prefills, prompt)
    group = next(each for each in groups if each.prefill is prefill.side)
    if last is None:
        decodes = preferred(group.decode.indexes())
    else:
        barred, free = prefill is last.prefill, group.decode.indexes()
        decodes = preferred(free, (last.decode,), barred=barred, again=True)
    assert decodes is not None
    decode = group.policy.choose(decodes, prompt)
    return Picks(prefill, prefills, decode, decodes, group, prefill.to_compute(prompt), prompt)


def _pick_whole(
    mine: EditionFleet, groups: Sequence[Group], prompt: Prompt, last: Pair | None
) -> Picks | None:
    """Picks with both phases of an aggregated worker."""
    free = [each for group in groups for each in group.prefill.indexes()]
    if last is None:
        prefills = preferred(free)
    else:
        prefills = preferred(free, (last.prefill,), barred=True, again=True)
    if prefills is None:
        return None
    prefill = mine.whole_policy.choose(prefills, prompt)
    group = next(each for each in groups if each.prefill is prefill.side)
    twin = prefill.twin
    assert twin is not None, "only whole ones are free"
    return Picks(prefill, prefills, twin, None, group, prefill.to_compute(prompt), prompt)


def _option(picks: Picks, last: Pair | None) -> Option:
    """What is known of a way that a sequence could go."""
    prefill, decode, group = picks.prefill, picks.decode, picks.group
    if last is None:
        flaws: tuple[int, ...] = (prefill.has_overdue, decode.has_overdue)
    else:
        flaws = (*_flaws(prefill, last), *_flaws(decode, last))
    way, running = (_AGGREGATED, decode.open_legs) if group.aggregated else (_PAIR, 0)
    return Option(way, group.pace, prefill.waiting_tokens, picks.tokens, running, flaws)


def _flaws(worker: Worker, last: Pair) -> tuple[int, ...]:
    """What speaks against a worker for a sequence that has failed on others."""
    return worker.has_overdue, worker in last, worker.trust.retry_rank
