"""What each wait of a request was for, as sentences, and what would have been possible."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import msgspec

from tandem.prefix_blocks import BLOCK_TOKENS
from tandem.timeline import PARTS, LegTimes, Part
from tandem_tools.why import queueing
from tandem_tools.why.evidence import Evidence, Run

Level = Literal["ideal", "capacity", "routing", "index", "engine", "outside"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""What was missing for the time to be saved.

ideal     nothing: the work itself
capacity  more workers, or room in them
routing   another choice of workers
index     a router that knows the caches
engine    an engine that keeps its usual pace, or that does not fail
outside   the client, the network, hooks, limits of a key
"""
LEAST_SECONDS = 0.02
"""Shorter waits have no cause that is told."""
_WORTH_FIRST = 0.2
"""Such a share of the delay is told before the work itself."""
_BLOCKING = 0.5
"""From such a share of decode's time on hooks held the engine up; below it they ran beside it."""
_SLOW = 1.5
"""So many times the usual time is slow."""


class Cause(msgspec.Struct, frozen=True):
    """Why a part of the time passed."""

    kind: str
    part: Part
    level: Level
    seconds: float
    sentence: str


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What `tandem why --json` prints of a request."""

    trace_id: str
    outcome: str
    """finished, or an error's code; empty: it is open."""
    model: str
    seconds: float
    delay: float
    first_seconds: float
    """Until the first output; 0: none came, or no frontend was asked."""
    parts: dict[Part, float]
    causes: list[Cause]
    """The one that explains the delay best comes first."""
    possible: dict[Level, float]
    """Seconds that the request would have taken with all later levels set right."""


def diagnose(evidence: Evidence) -> Diagnosis:
    """The causes of a request's time. What could have been saved comes first, the longest before
    others, and what ended the request counts all of its time; then the work itself.
    """
    parts = evidence.parts()
    causes = [*_ends(evidence)]
    for find in (_read, _queue, _prefill, _kv, _decode, _hooks, _client, _other):
        causes += (each for each in find(evidence, parts) if each.seconds >= LEAST_SECONDS)
    first = evidence.call.first if evidence.call is not None else 0.0
    told = evidence.story or evidence.call
    assert told is not None
    return Diagnosis(
        trace_id=evidence.trace_id,
        outcome=evidence.outcome,
        model=told.model,
        seconds=round(evidence.seconds, 6),
        delay=round(evidence.delay, 6),
        first_seconds=first,
        parts={part: round(parts[part], 6) for part in PARTS},
        causes=sorted(causes, key=lambda each: _weight(each, evidence.delay), reverse=True),
        possible=_possible(evidence.seconds, causes),
    )


def _weight(cause: Cause, delay: float) -> tuple[bool, float]:
    """The last in this order is the first that is told."""
    avoidable = cause.level != "ideal" and cause.seconds >= _WORTH_FIRST * delay
    return avoidable, cause.seconds


def _possible(seconds: float, causes: list[Cause]) -> dict[Level, float]:
    lost = dict.fromkeys(LEVELS, 0.0)
    for each in causes:
        if each.kind not in _FINAL:
            lost[each.level] += each.seconds
    left = max(0.0, seconds - sum(lost[level] for level in LEVELS[1:]))
    found: dict[Level, float] = {"ideal": round(left, 6)}
    for level in LEVELS[1:]:
        left += lost[level]
        found[level] = round(min(left, seconds), 6)
    return found


# --- how it ended --------------------------------------------------------------------------------

_ENDS = {
    "rate_limit_exceeded": "limit",
    "deadline_exceeded": "deadline",
    "slow_client": "client",
    "queue_full": "queue_full",
    "no_pair": "no_pair",
}
_FAILED = "failed"
_FINAL = {*_ENDS.values(), _FAILED} - {"client"}
"""Kinds that end a request, whatever it had waited for."""


def _ends(evidence: Evidence) -> Iterator[Cause]:
    if evidence.outcome in ("", "finished", "terminated"):
        return
    kind = _ENDS.get(evidence.outcome, _FAILED)
    call, story, sequence = evidence.call, evidence.story, evidence.sequence
    tenant = (call.tenant if call else "") or (story.tenant if story else "")
    key = f"the key {tenant}" if tenant else "its key"
    timeout = story.timeout_seconds if story else 0.0
    reached = {each.name for each in sequence.moments} if sequence else set()
    where = "while it waited in the queue"
    if "started" in reached:
        where = "while it was generated"
    elif "pair_chosen" in reached:
        where = "while its prompt was computed"
    sentences = {
        "limit": f"It was refused: a limit of {key} was reached.",
        "deadline": f"Its own deadline of {timeout:g} s ended it {where}.",
        "client": "Its client left the answer unread for so long that it was given up.",
        "queue_full": "It was refused: the queue, or what one key may have of it, was full.",
        "no_pair": "It was refused, or ended, as no pair of workers took work.",
    }
    levels: dict[str, Level] = {"queue_full": "capacity", "no_pair": "capacity"}
    said = sentences.get(kind, f"It ended with {evidence.outcome}.")
    yield Cause(
        kind,
        "queue" if kind in levels else "client" if kind == "client" else "other",
        levels.get(kind, "outside"),
        evidence.seconds,
        said,
    )


# --- the parts -----------------------------------------------------------------------------------

Parts = dict[Part, float]


def _read(evidence: Evidence, parts: Parts) -> Iterator[Cause]:
    call = evidence.call
    if call is None:
        return
    work = sum(call.steps.values())
    came = call.came or call.reading
    said = (
        f"Its body of {call.body_bytes:,} bytes came within {came:.3f} s, and was read"
        f" within {max(0.0, call.reading - came):.3f} s, of which {work:.3f} s were work."
    )
    yield Cause("body", "read", "outside", parts["read"], said)


def _queue(evidence: Evidence, parts: Parts) -> Iterator[Cause]:
    call = evidence.call
    if call is not None and call.queue:
        said = "Its frontend had no router that had workers for it, or room."
        if call.lost_routers:
            said += f" It lost {call.lost_routers} routers."
            yield Cause("router_lost", "queue", "engine", call.queue, said)
        else:
            yield Cause("no_workers", "queue", "capacity", call.queue, said)
    for wait in evidence.waits():
        kind, said = queueing.explain(wait.queued)
        level: Level = "outside" if kind == "turn" else "capacity"
        yield Cause(kind, "queue", level, wait.seconds, said)


def _last(evidence: Evidence) -> Run | None:
    runs = evidence.runs()
    return runs[-1] if runs else None


def _prefill(evidence: Evidence, parts: Parts) -> Iterator[Cause]:
    run = _last(evidence)
    times = None if run is None else run.times("prefill")
    if run is None or times is None:
        return
    name = run.chosen.prefill.name if run.chosen.prefill else "prefill"
    decode = run.times("decode")
    form = max(times.form, min(decode.form if decode else 0.0, parts["kv"]))
    said = "The form that its answer was to have was compiled: nobody had asked for it lately."
    yield Cause("form", "prefill" if times.form >= form else "kv", "outside", form, said)
    queue, computing = times.queue, times.computing
    ahead = run.chosen.ahead
    own = times.prompt_tokens - times.cached_tokens
    if ahead is not None and not times.compute:
        queue = computing * ahead.tokens / (ahead.tokens + own) if own else 0.0
        computing -= queue
    if ahead is not None:
        largest = f"; the largest has {ahead.largest:,} tokens, of {ahead.trace_id}"
        said = (
            f"{name} had {ahead.tokens:,} tokens of other prompts to compute"
            f" before{largest if ahead.prompts else ''}."
        )
        yield Cause("prompts_ahead", "prefill", "capacity", queue, said)
    yield from _computing(run, times, computing, name)


def _computing(run: Run, times: LegTimes, computing: float, name: str) -> Iterator[Cause]:
    """The computing of the prompt: slow, needless, or what it takes."""
    usual = run.usual("prefill")
    if usual and computing > _SLOW * usual:
        said = (
            f"{name} computed the prompt in {computing:.3f} s; of late so many tokens"
            f" took {usual:.3f} s."
        )
        yield Cause("slow_engine", "prefill", "engine", computing - usual, said)
        computing = usual
    choice = run.chosen.prefill
    own, prompt = times.prompt_tokens - times.cached_tokens, times.prompt_tokens
    expected = 0 if choice is None else choice.cached
    a_token = computing / own if own else 0.0
    if expected - times.cached_tokens >= BLOCK_TOKENS:
        missed = min(own, expected - times.cached_tokens)
        computing -= a_token * missed
        own -= missed
        said = (
            f"The router expected {expected:,} tokens of the prompt in the cache of"
            f" {name}, which had {times.cached_tokens:,}."
        )
        yield Cause("index", "prefill", "index", a_token * missed, said)
    elsewhere = None if choice is None else choice.elsewhere
    known = max(expected, times.cached_tokens)
    if elsewhere is not None and elsewhere.tokens - known >= BLOCK_TOKENS:
        missed = min(own, elsewhere.tokens - known)
        computing -= a_token * missed
        own -= missed
        there = f": {elsewhere.seconds:.3f} s there" if elsewhere.seconds else ""
        said = (
            f"{elsewhere.tokens:,} of {prompt:,} prompt tokens were cached on"
            f" {elsewhere.name}, which was not taken: {elsewhere.reason}{there}."
        )
        yield Cause("prefix_elsewhere", "prefill", "routing", a_token * missed, said)
    said = f"{own:,} of {prompt:,} prompt tokens were computed, as no worker's cache had them."
    yield Cause("cold_prefix", "prefill", "ideal", computing, said)


def _kv(evidence: Evidence, parts: Parts) -> Iterator[Cause]:
    run = _last(evidence)
    if run is None:
        return
    prefill, decode = run.times("prefill"), run.times("decode")
    name = run.chosen.decode.name if run.chosen.decode else "decode"
    room = min(decode.room if decode else 0.0, parts["kv"])
    said = f"The KV cache of {name} had no room for it for {room:.3f} s."
    yield Cause("kv_room", "kv", "capacity", room, said)
    form = decode.form if decode else 0.0
    moved = prefill if prefill is not None and prefill.kv_bytes else decode
    if moved is not None:
        said = (
            f"The hand-over of {moved.kv_bytes:,} bytes of KV cache to {name} came late;"
            f" to move them took {moved.kv:.3f} s."
        )
        yield Cause(
            "kv_transfer", "kv", "engine", parts["kv"] - room - min(form, parts["kv"]), said
        )


def _decode(evidence: Evidence, parts: Parts) -> Iterator[Cause]:
    run = _last(evidence)
    times = None if run is None else run.times("decode")
    if run is None or times is None:
        return
    name = run.chosen.decode.name if run.chosen.decode else "decode"
    usual, took = run.usual("decode"), parts["decode"]
    judging = min(times.hooks, max(0.0, took - usual))
    if judging < _BLOCKING * took:
        judging = 0.0
    said = (
        f"Hooks of {name} took {times.hooks:.3f} s: those that run in the worker itself"
        " hold up all that it runs."
    )
    yield Cause("hooks", "decode", "outside", judging, said)
    took -= judging
    if usual and took > _SLOW * usual:
        said = (
            f"{name} generated {times.tokens:,} tokens in {took:.3f} s; of late so many"
            f" took {usual:.3f} s."
        )
        yield Cause("slow_engine", "decode", "engine", took - usual, said)
        took = usual
    said = (
        f"{name} generated {times.tokens:,} tokens"
        f" ({1e3 * took / max(1, times.tokens - 1):.1f} ms each)."
    )
    yield Cause("output", "decode", "ideal", took, said)


def _hooks(evidence: Evidence, parts: Parts) -> Iterator[Cause]:
    run = _last(evidence)
    times = [] if run is None else [each.times for each in run.closed if each.times is not None]
    if not times:
        return
    hooks, classifiers = sum(each.hooks for each in times), sum(each.classifiers for each in times)
    by = "classifiers" if classifiers > hooks else "hooks"
    said = (
        f"Its output waited for {by}, which took {max(hooks, classifiers):.3f} s in all"
        " and were behind the engine when that had made the last token."
    )
    yield Cause(by, "hooks", "outside", parts["hooks"], said)


def _client(evidence: Evidence, parts: Parts) -> Iterator[Cause]:
    call = evidence.call
    blocked = 0.0 if call is None else call.blocked
    said = f"Its client read slowly: its socket was full for {blocked:.3f} s."
    yield Cause("client", "client", "outside", parts["client"], said)


_GIVEN_UP = {
    "retry": "Its run on {workers} was given up after {seconds:.3f} s ({code}), and tried again"
    " elsewhere.",
    "resume": "Its run on {workers} was lost after {seconds:.3f} s ({code}), and others went on"
    " from there.",
    "regenerate": "Its run on {workers} of {seconds:.3f} s was blocked by a classifier, and run"
    " again.",
}


def _other(evidence: Evidence, parts: Parts) -> Iterator[Cause]:
    lost = 0.0
    for run in evidence.runs():
        if run.given_up is None:
            continue
        chosen = [each for each in (run.chosen.prefill, run.chosen.decode) if each is not None]
        workers = " and ".join(each.name for each in chosen)
        name, lost = run.given_up.name, lost + run.seconds
        said = _GIVEN_UP[name].format(workers=workers, seconds=run.seconds, code=run.given_up.code)
        level: Level = "outside" if name == "regenerate" else "engine"
        yield Cause(name, "other", level, run.seconds, said)
    if evidence.outcome == "finished":
        said = (
            "The rest passed between frontend, router and workers: a slow network, or"
            " event loops that had too much to do."
        )
        yield Cause("network", "other", "outside", parts["other"] - lost, said)
