"""What readings of a fleet, one after the other, come to: the figures that `tandem top` shows, and
that `--json` writes.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import TypeVar

import msgspec

from tandem.cli.client import ApiError
from tandem_tools.top.readings import FleetReading, RouterReading, WorkerSeen
from tandem_tools.top.scrapes import Buckets, EngineReading, FrontendReading

WINDOW_SECONDS = 60.0
"""Latencies, goodput and errors are those of so many seconds: an interval has too few requests."""
THIN_SECONDS = 1.0
"""Readings of frontends nearer to each other are not kept for the window."""
SLOW_SHARE = 0.5
"""A decode worker is slow whose sequences get less than this share of what is usual."""
MOST_CHARACTERS = 100
"""Shown of what a component says in words."""
PERCENTILES = (50, 90, 99)
FINE = ("ok", "?")
"""States of a worker with which nothing is wrong: "?" is a worker that no router knows."""
K = TypeVar("K")
_GOOD_ENDS = ("finished", "terminated", "cancelled")
_LATELY = ("failed_legs", "ended_legs")


class RouterFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A router. `problem`: why it did not answer; then the rest is 0."""

    address: str
    problem: str = ""
    draining: bool = False
    queue_length: int = 0
    queue_limit: int = 0
    open_sequences: int = 0
    ready_pairs: int = 0
    frontends: int = 0
    ends_per_second: float = 0.0
    errors_per_second: float = 0.0
    retries: int = 0
    """Since the router's start."""


class WorkerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A worker in one phase. None: nobody says it."""

    name: str
    address: str
    """Where routers dial the worker; the metrics port of a worker that no router knows."""
    phase: str = ""
    state: str = "?"
    reason: str = ""
    legs: int = 0
    slots: int | None = None
    waiting: float | None = None
    tokens_per_second: float | None = None
    """Prefill: prompt tokens, those that a cache had among them. Decode: output."""
    hit_rate: float | None = None
    """The share of prompts' tokens that a cache had, in the interval; where no prompt came, since
    the worker's start."""
    kv_used_ratio: float | None = None


class TrafficFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What clients of all frontends that answer see, in the window. Times in seconds."""

    ttft: Mapping[str, float]
    """By percentile, "p50"; empty where no request had a first token."""
    itl: Mapping[str, float]
    slo: Mapping[str, float]
    requests_per_second: float
    errors_per_second: float
    errors: Mapping[str, float]
    """Failures that are not their client's, by code, most of them first."""
    goodput_per_second: float
    goodput_share: float | None
    """Share of requests compared with the objectives; None: no request was compared."""
    tokens_per_second: float


class FleetFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The whole fleet in one interval."""

    interval_seconds: float
    window_seconds: float
    versions: Sequence[str]
    models: Sequence[str]
    traffic: TrafficFigures | None
    """None: no frontend answers, or none is asked."""
    silent_frontends: Mapping[str, str]
    """Why each of them did not answer, by address."""
    routers: Sequence[RouterFigures]
    workers: Sequence[WorkerFigures]

    @property
    def tokens_per_second(self) -> float:
        """Output of the whole fleet: what decode workers made, else what frontends sent lately."""
        speeds = [each.tokens_per_second for each in self.workers if each.phase == "decode"]
        known = [each for each in speeds if each is not None]
        if known or self.traffic is None:
            return sum(known)
        return self.traffic.tokens_per_second

    @property
    def queue_length(self) -> int:
        return sum(each.queue_length for each in self.routers)


class FleetHistory:
    """Makes figures of each reading and of those before it."""

    def __init__(self, first: FleetReading, names: Mapping[str, str] | None = None) -> None:
        """`names`: of workers whose metrics port is known by more than its address."""
        self._before = first
        self._names = names or {}
        self._window: deque[FleetReading] = deque([first])

    def take(self, now: FleetReading) -> FleetFigures:
        """The figures of the time since the reading before, and of the window up to now."""
        before, self._before = self._before, now
        while len(self._window) > 1 and now.at - self._window[1].at >= WINDOW_SECONDS:
            self._window.popleft()
        seconds = _seconds(before, now)
        answering = [each for each in now.frontends.values() if isinstance(each, FrontendReading)]
        workers = _engines_joined(list(_workers(now)), _engines(before, now, seconds), self._names)
        figures = FleetFigures(
            interval_seconds=seconds,
            window_seconds=_seconds(self._window[0], now),
            versions=sorted({plain(each.version) for each in answering if each.version}),
            models=sorted({plain(name) for each in answering for name in each.models}),
            traffic=_traffic([*self._window], now) if answering else None,
            silent_frontends=_silent(now.frontends),
            routers=[_router(each, before, now, seconds) for each in now.routers],
            workers=workers,
        )
        if now.at - self._window[-1].at >= THIN_SECONDS:
            self._window.append(now)
        return figures


def plain(text: str) -> str:
    """What somebody else says, without what a terminal would obey."""
    return "".join(each if each.isprintable() else "?" for each in text[:MOST_CHARACTERS])


def quantile(buckets: Buckets, share: float) -> float | None:
    """Where a histogram reaches a share of all, between bounds in proportion, as Prometheus does;
    the last finite bound where that is beyond. None of an empty one.
    """
    total = max(buckets.values(), default=0.0)
    if total <= 0:
        return None
    below, reached = 0.0, 0.0
    for bound, count in sorted(buckets.items()):
        if count >= share * total and count > reached:
            if bound == float("inf"):
                return below
            return below + (bound - below) * (share * total - reached) / (count - reached)
        below, reached = bound, count
    return below


def _seconds(then: FleetReading, now: FleetReading) -> float:
    return max(now.at - then.at, 1e-9)


def _silent(told: Mapping[str, object]) -> dict[str, str]:
    return {
        address: plain(str(each)) for address, each in told.items() if isinstance(each, ApiError)
    }


# --- traffic --------------------------------------------------------------------------------------


def _traffic(window: Sequence[FleetReading], now: FleetReading) -> TrafficFigures:
    """What frontends counted since each one's first answer of the window."""
    grown: list[tuple[float, FrontendReading]] = []
    slo: dict[str, float] = {}
    for address, told in now.frontends.items():
        if not isinstance(told, FrontendReading):
            continue
        slo |= told.slo
        for earlier in window:
            then = earlier.frontends.get(address)
            if isinstance(then, FrontendReading):
                grown.append((_seconds(earlier, now), _growth(then, told)))
                break
    errors = _sums(each.errors for _, each in grown)
    met = sum(each.met for _, each in grown)
    compared = sum(each.compared for _, each in grown)
    return TrafficFigures(
        ttft=_percentiles(_sums(each.ttft for _, each in grown)),
        itl=_percentiles(_sums(each.itl for _, each in grown)),
        slo=slo,
        requests_per_second=sum(each.requests / seconds for seconds, each in grown),
        errors_per_second=sum(sum(each.errors.values()) / seconds for seconds, each in grown),
        errors={plain(code): count for code, count in errors.most_common() if count},
        goodput_per_second=sum(each.met / seconds for seconds, each in grown),
        goodput_share=met / compared if compared else None,
        tokens_per_second=sum(each.tokens / seconds for seconds, each in grown),
    )


def _percentiles(buckets: Buckets) -> dict[str, float]:
    points = {f"p{each}": quantile(buckets, each / 100) for each in PERCENTILES}
    return {name: value for name, value in points.items() if value is not None}


def _growth(then: FrontendReading, told: FrontendReading) -> FrontendReading:
    """What a frontend counted between two answers; one that started again counted from zero."""
    if told.requests < then.requests or told.tokens < then.tokens:
        then = FrontendReading()
    return FrontendReading(
        requests=told.requests - then.requests,
        errors=_differences(then.errors, told.errors),
        tokens=told.tokens - then.tokens,
        met=max(0.0, told.met - then.met),
        compared=max(0.0, told.compared - then.compared),
        ttft=_differences(then.ttft, told.ttft),
        itl=_differences(then.itl, told.itl),
    )


def _differences(then: Mapping[K, float], told: Mapping[K, float]) -> dict[K, float]:
    return {key: max(0.0, count - then.get(key, 0.0)) for key, count in told.items()}


def _sums(counts: Iterable[Mapping[K, float]]) -> Counter[K]:
    found: Counter[K] = Counter()
    for each in counts:
        found.update(each)
    return found


# --- routers --------------------------------------------------------------------------------------


def _router(address: str, before: FleetReading, now: FleetReading, seconds: float) -> RouterFigures:
    told, earlier = now.routers[address], before.routers.get(address)
    if isinstance(told, ApiError):
        return RouterFigures(address=address, problem=plain(str(told)))
    then = earlier if isinstance(earlier, RouterReading) else told
    return RouterFigures(
        address=address,
        draining=told.draining,
        queue_length=told.queue_length,
        queue_limit=told.queue_limit,
        open_sequences=told.open_sequences,
        ready_pairs=told.ready_pairs,
        frontends=told.frontends,
        ends_per_second=max(0, _ends(told) - _ends(then)) / seconds,
        errors_per_second=max(0, _errors(told) - _errors(then)) / seconds,
        retries=told.retries,
    )


def _ends(told: RouterReading) -> int:
    return sum(told.requests.values())


def _errors(told: RouterReading) -> int:
    return sum(number for end, number in told.requests.items() if end not in _GOOD_ENDS)


# --- workers --------------------------------------------------------------------------------------


def _workers(now: FleetReading) -> Iterator[WorkerFigures]:
    """Each worker that some router knows."""
    views: dict[str, list[WorkerSeen]] = {}
    for told in now.routers.values():
        if isinstance(told, RouterReading):
            for each in told.workers:
                views.setdefault(each.address, []).append(each)
    for address, seen in views.items():
        wrong = dict(_wrong(seen))
        yield WorkerFigures(
            name=plain(seen[0].name or address),
            address=plain(address),
            phase=plain(seen[0].phase),
            state=next(iter(wrong), "ok"),
            reason=plain("; ".join(wrong.values())),
            legs=max(each.open_legs + each.other_legs for each in seen),
            slots=max(each.slots for each in seen),
        )


def _wrong(seen: Sequence[WorkerSeen]) -> Iterator[tuple[str, str]]:
    """What is wrong with a worker, by any router: a word, and why; the worst first."""
    for each in seen:
        if not each.connected:
            yield "away", f"not connected: {each.refused}" if each.refused else "not connected"
            break
        if each.refused:
            yield "ejected" if each.standing == "ejected" else "refused", each.refused
            break
    if silent := max(each.silent_seconds for each in seen):
        yield "silent", f"silent for {silent:.1f} s"
    if overdue := sum(each.overdue_legs for each in seen):
        yield "overdue", f"{overdue} legs overdue"
    if faults := sum(each.faults for each in seen):
        yield "faulty", f"{faults} faults"
    if proving := [each for each in seen if each.standing == "probation"]:
        failed, ended = (sum(getattr(each, name) for each in proving) for name in _LATELY)
        yield "probation", f"on probation: {failed} of the last {ended} legs failed"


def _engines(
    before: FleetReading, now: FleetReading, seconds: float
) -> dict[tuple[str, str], WorkerFigures]:
    """What each metrics port says of each phase; of a port that does not answer, why."""
    found = {}
    speeds = {}
    for address, told in now.engines.items():
        if isinstance(told, ApiError):
            found[address, ""] = WorkerFigures(
                name=address, address=address, reason=f"metrics: {plain(str(told))}"
            )
            continue
        earlier = before.engines.get(address, {})
        for phase, reading in told.items():
            then = earlier.get(phase) if isinstance(earlier, Mapping) else None
            found[address, phase] = _engine(address, phase, then or reading, reading, seconds)
            if then is not None and phase == "decode" and (legs := _legs(then, reading)):
                speeds[address, phase] = max(0.0, reading.tokens - then.tokens) / seconds / legs
    usual = median(speeds.values()) if len(speeds) > 1 else 0.0
    for key, speed in speeds.items():
        if speed < SLOW_SHARE * usual:
            reason = f"{speed:.3g} tokens/s for a sequence, where {usual:.3g} is usual"
            found[key] = msgspec.structs.replace(found[key], state="slow", reason=reason)
    return found


def _legs(then: EngineReading, told: EngineReading) -> float:
    """Sequences that ran all the while."""
    return min(then.open_legs, told.open_legs)


def _engine(
    address: str, phase: str, then: EngineReading, told: EngineReading, seconds: float
) -> WorkerFigures:
    counter = "prompt_tokens" if phase == "prefill" else "tokens"
    made = getattr(told, counter) - getattr(then, counter)
    return WorkerFigures(
        name=address,
        address=address,
        phase=plain(phase),
        state="draining" if told.draining else "?",
        legs=int(told.open_legs),
        waiting=told.waiting_legs,
        tokens_per_second=max(0.0, made) / seconds,
        hit_rate=_hit_rate(then, told),
        kv_used_ratio=told.kv_used_ratio,
    )


def _hit_rate(then: EngineReading, told: EngineReading) -> float | None:
    prompt = told.prompt_tokens - then.prompt_tokens
    cached = told.cached_tokens - then.cached_tokens
    if prompt <= 0:
        prompt, cached = told.prompt_tokens, told.cached_tokens
    return max(0.0, cached) / prompt if prompt > 0 else None


def _engines_joined(
    workers: Sequence[WorkerFigures],
    engines: Mapping[tuple[str, str], WorkerFigures],
    names: Mapping[str, str],
) -> list[WorkerFigures]:
    """Each worker with what its own metrics port says: the port of its name, else the one of its
    phase on its host, where both are the only ones. Ports that are no such stand for themselves.
    """
    ports = {name: address for address, name in names.items()}
    places = Counter(_place(each) for each in workers)
    by_place: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for address, phase in engines:
        by_place[_host(address), phase].append(address)
    found, used = [], set()
    for worker in workers:
        place = _place(worker)
        port = ports.get(worker.name, "")
        if not port and places[place] == len(by_place[place]) == 1:
            (port,) = by_place[place]
        key = next((each for each in ((port, worker.phase), (port, "")) if each in engines), None)
        if key is not None:
            used.add(key)
            worker = _with_engine(worker, engines[key])
        found.append(worker)
    return found + [
        msgspec.structs.replace(each, name=plain(names.get(key[0], key[0])))
        for key, each in engines.items()
        if key not in used
    ]


def _with_engine(worker: WorkerFigures, engine: WorkerFigures) -> WorkerFigures:
    fine = worker.state in FINE and engine.state not in FINE
    return msgspec.structs.replace(
        worker,
        state=engine.state if fine else worker.state,
        reason="; ".join(filter(None, (worker.reason, engine.reason))),
        waiting=engine.waiting,
        tokens_per_second=engine.tokens_per_second,
        hit_rate=engine.hit_rate,
        kv_used_ratio=engine.kv_used_ratio,
    )


def _place(worker: WorkerFigures) -> tuple[str, str]:
    return _host(worker.address), worker.phase


def _host(address: str) -> str:
    return address.rpartition(":")[0]
