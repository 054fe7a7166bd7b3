"""Which workers run a sequence, of those that are free: the policies choose, and where a pair and
an aggregated worker could both take it, ways.py says which of them does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from router.core.edition import EditionFleet
from router.core.free import FreeWorkers
from router.core.group import Group, preferred
from router.core.pace import Pace
from router.core.story import MAX_NAME_CHARACTERS, Alternative, Choice
from router.core.values import Disaggregate, Way
from router.core.ways import ONLY, Chosen, Option, choose
from router.core.worker import Worker
from router.policies import Policy, Prompt

MOST_CANDIDATES = 4
"""Told of each choice; more would cost each request."""


class Pair(NamedTuple):
    prefill: Worker
    decode: Worker


class Pick(NamedTuple):
    """A worker that is to run a leg."""

    worker: Worker
    choice: Choice


class Picks(NamedTuple):
    """Workers that could run both legs of a sequence, of one group."""

    prefill: Pick
    decode: Pick
    group: Group


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
    pair = _pick_pair(mine, pairs, prompt, other_than) if pairs else None
    whole = _pick_whole(mine, wholes, prompt, other_than) if wholes else None
    found = pair or whole
    if found is None:
        return None
    if pair is not None and whole is not None:
        by_pair, by_whole = _option(pair, prompt, other_than), _option(whole, prompt, other_than)
        chosen = choose(by_pair, by_whole, disaggregate, now)
        found, option = (pair, by_pair) if chosen.way is Way.PAIR else (whole, by_whole)
        ahead = option.waiting + option.tokens
    else:
        chosen = ONLY[Way.AGGREGATED if pair is None else Way.PAIR]
        prefill = found.prefill.worker
        ahead = prefill.waiting_tokens + prefill.to_compute(prompt)
    return Picked(found.prefill, found.decode, chosen, ahead, found.group.pace)


def choose_one(policy: Policy, candidates: FreeWorkers, prompt: Prompt) -> Pick:
    """One of these, by a policy."""
    worker = policy.choose(candidates, prompt)
    first = islice(candidates.entries_by_load(), MOST_CANDIDATES)
    others = [Alternative(each.key, each.cost) for each in first if each.worker is not worker]
    return Pick(worker, _choice(worker, len(candidates), tuple(others)))


def _pick_pair(
    mine: EditionFleet, groups: Sequence[Group], prompt: Prompt, last: Pair | None
) -> Picks | None:
    """A prefill worker, and a decode worker of its group. Each of `groups` has both free."""
    free = [each for group in groups for each in group.prefill.indexes()]
    if last is None:
        prefills = preferred(free)
    else:
        decodes = last.decode.side
        alone = decodes is not None and not decodes.has_free(but=last.decode)
        prefills = preferred(free, (last.prefill,), barred=alone, again=True)
    if prefills is None:
        return None
    prefill = choose_one(mine.policy, prefills, prompt)
    group = next(each for each in groups if each.prefill is prefill.worker.side)
    if last is None:
        candidates = preferred(group.decode.indexes())
    else:
        barred, free = prefill.worker is last.prefill, group.decode.indexes()
        candidates = preferred(free, (last.decode,), barred=barred, again=True)
    assert candidates is not None
    return Picks(prefill, choose_one(group.policy, candidates, prompt), group)


def _pick_whole(
    mine: EditionFleet, groups: Sequence[Group], prompt: Prompt, last: Pair | None
) -> Picks | None:
    """Both phases of an aggregated worker."""
    free = [each for group in groups for each in group.prefill.indexes()]
    if last is None:
        found = preferred(free)
    else:
        found = preferred(free, (last.prefill,), barred=True, again=True)
    if found is None:
        return None
    prefill = choose_one(mine.whole_policy, found, prompt)
    group = next(each for each in groups if each.prefill is prefill.worker.side)
    twin = prefill.worker.twin
    assert twin is not None, "only whole ones are free"
    return Picks(prefill, Pick(twin, _choice(twin, 1, ())), group)


def _option(picks: Picks, prompt: Prompt, last: Pair | None) -> Option:
    """What is known of a way that a sequence could go."""
    prefill, decode = picks.prefill.worker, picks.decode.worker
    aggregated = picks.group.aggregated
    if last is None:
        flaws: tuple[int, ...] = (prefill.has_overdue, decode.has_overdue)
    else:
        flaws = (*_flaws(prefill, last), *_flaws(decode, last))
    return Option(
        way=Way.AGGREGATED if aggregated else Way.PAIR,
        pace=picks.group.pace,
        waiting=prefill.waiting_tokens,
        tokens=prefill.to_compute(prompt),
        running=decode.open_legs if aggregated else 0,
        flaws=flaws,
    )


def _flaws(worker: Worker, last: Pair) -> tuple[int, ...]:
    """What speaks against a worker for a sequence that has failed on others."""
    return worker.has_overdue, worker in last, worker.record.doubt


def _choice(worker: Worker, candidates: int, others: tuple[Alternative, ...]) -> Choice:
    name = worker.profile.name[:MAX_NAME_CHARACTERS]
    return Choice(worker.key, name, worker.cost, candidates, others)
