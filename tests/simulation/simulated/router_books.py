"""What an outsider knows of a router from the events that went into its core and the actions that
came out: the books that router_rules.py judges by.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from simulated.health_books import HealthBooks, Past
from simulated.prefixes import CacheBook
from tandem.errors import TandemError
from tandem.v1 import common_pb2, router_pb2
from tandem_router.core.events import LegParked, Submit
from tandem_router.core.values import Bounds, Phase, Profile

Key = tuple[int, int]
"""A frontend and its number of a sequence."""
Make = tuple[str, str]
"""A model, and the tokenizer that its prompts' token ids are of."""
OfferBook = tuple[int, frozenset[str], frozenset[str], frozenset[str]]
"""What a group can do, or a request wants: a context's length, logits processors and LoRA adapters;
and the sampling parameters that the group refuses, or the request uses."""
NOTHING: OfferBook = (0, frozenset(), frozenset(), frozenset())
Line = tuple[Make, bool]
"""Who waits for the same slots: what it is of, and whether it needs decode alone."""


def make_of(profile: Profile) -> Make:
    return profile.fingerprint.model, profile.fingerprint.tokenizer_sha256


@dataclass(slots=True, eq=False, repr=False)
class WorkerBook:
    """A worker's one stream; a worker that connects anew is another."""

    key: str
    profile: Profile
    listed_as: Phase
    draining: bool
    others: int = 0
    """Legs of other routers, by its last report."""
    others_tokens: int = 0
    """What it had then beyond the prompts of this router's."""
    kv_tokens: int = 0
    """What its KV cache can hold, if it says so."""
    legs: dict[int, LegBook] = field(default_factory=dict)
    paired: bool = False
    died: bool = False
    past: Past = field(default_factory=Past)
    stalled: bool = False
    given_up: bool = False
    """Its stream is to be closed."""
    cache: CacheBook = field(default_factory=CacheBook)
    proved: bool = True
    """KV has moved to or from it, or it needs not be tried."""
    fleet: dict[str, WorkerBook] = field(default_factory=dict)
    """All workers that are connected."""

    def __repr__(self) -> str:
        return self.key

    @property
    def aggregated(self) -> bool:
        return self.profile.fingerprint.aggregated

    @property
    def twin(self) -> WorkerBook | None:
        """The other phase of its process."""
        mine = self.profile
        for each in self.fleet.values() if self.aggregated else ():
            theirs = each.profile
            same = (theirs.instance, theirs.fingerprint) == (mine.instance, mine.fingerprint)
            if same and theirs.phase is not mine.phase:
                return each
        return None

    @property
    def fit(self) -> bool:
        profile = self.profile
        fits = profile.phase is self.listed_as and profile.max_sequences > 0
        return fits and not (self.draining or self.stalled or self.given_up)

    @property
    def usable(self) -> bool:
        return self.fit and self.proved

    @property
    def takes(self) -> bool:
        """It gets new work."""
        return self.usable and self.past.out != "ejected"

    @property
    def free(self) -> int:
        free = max(0, self.profile.max_sequences - len(self.legs) - self.others)
        return min(free, not self.past.probe) if self.past.out else free

    @property
    def tokens(self) -> int:
        return sum(leg.tokens for leg in self.legs.values())

    @property
    def load(self) -> float:
        """What policies are to be told, by docs/router.md."""
        if (twin := self.twin) is None:
            return self.own_load
        by_phase = {each.profile.phase: each.own_load for each in (self, twin)}
        return by_phase[Phase.PREFILL] + 128 * by_phase[Phase.DECODE]

    @property
    def own_load(self) -> float:
        tokens, slots = self.tokens + self.others_tokens, self.profile.max_sequences
        if self.profile.phase is Phase.PREFILL:
            return tokens / slots
        filled = tokens / self.kv_tokens if self.kv_tokens else 0.0
        return max((len(self.legs) + self.others) / slots, filled)

    @property
    def overdue(self) -> bool:
        twin = self.twin
        legs = [*self.legs.values(), *(twin.legs.values() if twin else ())]
        return any(leg.overdue for leg in legs)


PairBook = tuple[WorkerBook, WorkerBook]


@dataclass(slots=True, eq=False)
class LegBook:
    number: int
    worker: WorkerBook
    phase: Phase
    sequence: SequenceBook
    room: int
    held: bool
    tokens: int
    """Of its prompt, or as many as there can be in a text."""
    cancelled_at: float | None = None
    overdue: bool = False


@dataclass(slots=True, eq=False)
class MadeBook:
    """What the worker of a sequence's decode leg has said that its engine made."""

    steps: bytes = b""
    tokens: int = 0
    over: bool = False
    refused: bool = False
    """Nobody is to go on from it, as the worker says or for want of memory."""
    used: bool = False
    """Another pair goes on from it."""

    @property
    def serves(self) -> bool:
        return not (self.over or self.refused or self.used)

    def forget(self) -> None:
        self.steps, self.tokens = b"", 0


@dataclass(slots=True, eq=False)
class RequestBook:
    asked: Submit
    make: Make
    arrived: float
    deadline: float
    sequences: list[SequenceBook] = field(default_factory=list)
    deaths: int = 0
    """Of workers that it may have ended; 2 where it was alone there."""
    canary: bool = False
    let_go: bool = False
    """All of it runs, and none of it may be started again: its task is no longer held."""

    @property
    def submit(self) -> router_pb2.Submit:
        return self.asked.message

    @property
    def frontend(self) -> int:
        return self.asked.frontend

    @property
    def task(self) -> bytes:
        return self.asked.task

    @property
    def voucher(self) -> common_pb2.Voucher | None:
        return self.asked.voucher

    @property
    def half(self) -> bool:
        """One phase of it runs alone."""
        return self.submit.context_only or self.voucher is not None

    @property
    def client(self) -> tuple[int, str | int]:
        """The same for all prompts of one client's request."""
        submit = self.submit
        return self.frontend, submit.trace_id or submit.first_sequence

    @property
    def wanted(self) -> OfferBook:
        """What its workers must be able to do. Where nobody knows its prompt, of any length."""
        submit, named = self.submit, self.asked.needs
        tokens = submit.prompt_tokens + submit.max_tokens if submit.prompt_tokens else 0
        adapters = {named.lora_adapter} if named.lora_adapter else ()
        return tokens, named.logits_processors, frozenset(adapters), named.sampling

    @property
    def tokens(self) -> int:
        return self.submit.prompt_tokens or len(self.task)

    @property
    def line(self) -> Line:
        return self.make, self.voucher is not None

    @property
    def open(self) -> list[SequenceBook]:
        return [each for each in self.sequences if each.stage != "ended"]

    @property
    def begun(self) -> bool:
        return any(each.begun for each in self.sequences)

    @property
    def kept(self) -> int:
        """Bytes that its task takes, and what is kept to go on from."""
        made = sum(len(each.made.steps) for each in self.sequences if each.made is not None)
        return made + (0 if self.let_go else len(self.task))


@dataclass(slots=True, eq=False)
class SequenceBook:
    request: RequestBook
    key: Key
    index: int
    arrival: int
    waits_since: float
    stage: str = "waiting"
    """waiting, running, retrying or ended."""
    prefill: LegBook | None = None
    decode: LegBook | None = None
    pair: PairBook | None = None
    avoided: PairBook | None = None
    full: set[str] = field(default_factory=set)
    """Prefill workers that may not park its KV."""
    failure: TandemError | None = None
    parked: LegParked | None = None
    """What its prefill leg has parked."""
    made: MadeBook | None = None
    """Where it is to be resumed."""
    retries: int = 0
    regenerations: int = 0
    overlay: bytes = b""
    judged: bool = False
    shown: bool = False
    """Decode has said that it started."""
    unsent: bool = False
    """Its prefill leg was never sent, and its worker is gone."""
    begun: bool = False
    begun_at: float = 0.0

    @property
    def legs(self) -> list[LegBook]:
        return [leg for leg in (self.prefill, self.decode) if leg is not None]

    @property
    def gone_on(self) -> int:
        """Tokens that it goes on behind, where it was resumed."""
        return self.made.tokens if self.made is not None and self.made.used else 0

    @property
    def may_run(self) -> bool:
        """A leg of it may still be started."""
        if self.stage == "running" and self.shown and self.decode is not None:
            if self.made is not None and self.made.serves:
                return True
            again = self.decode.worker.profile.has_classifiers
            return again and self.request.voucher is None
        return self.stage != "ended"


def offer_of(group: tuple[list[WorkerBook], list[WorkerBook]]) -> OfferBook:
    """What each of its workers can do."""
    profiles = [each.profile for each in (*group[0], *group[1])]
    names = frozenset.intersection(*(each.logits_processors for each in profiles))
    adapters = frozenset.intersection(*(each.lora_adapters for each in profiles))
    cannot = frozenset.union(*(each.cannot_sample for each in profiles))
    return min(each.context_length for each in profiles), names, adapters, cannot


def meets(offer: OfferBook, wanted: OfferBook) -> bool:
    able = wanted[0] <= offer[0] and wanted[1] <= offer[1] and wanted[2] <= offer[2]
    return able and wanted[3].isdisjoint(offer[3])


class Books:
    """The fleet, the queue and the legs."""

    def __init__(self, bounds: Bounds) -> None:
        self.workers: dict[str, WorkerBook] = {}
        self.health = HealthBooks(bounds, self.workers)
        self.expected = bounds.expected_models
        self.makes: set[Make] = set()
        """Seen since the start."""
        self.pairless: dict[Make, float] = {}
        """Those without a pair, and since when."""
        self.offers: dict[Make, frozenset[OfferBook]] = {}
        """Of the groups that have a pair, or had the last a while ago."""
        self.offered: dict[Make, frozenset[OfferBook]] = {}
        """Likewise, however long ago."""
        self.offered_since: dict[Make, float] = {}
        """When they became others than before."""
        self.requests: dict[Key, RequestBook] = {}
        self.sequences: dict[Key, SequenceBook] = {}
        self.legs: dict[int, LegBook] = {}
        self.frontends: set[int] = set()
        self.draining = False
        self.arrivals = 0

    def make(self, asked: Submit) -> Make:
        """What a request is of: what it says, else what its parked KV is of, else what most pairs
        of its model are of.
        """
        submit, voucher = asked.message, asked.voucher
        if not submit.tokenizer_sha256:
            keeper = voucher and self.keeper(voucher.kv_peer)
            if keeper and keeper.profile.fingerprint.model == submit.model:
                return make_of(keeper.profile)
            mine = [each for each in self.makes if each[0] == submit.model]
            if mine:
                order = sorted(mine)
                return max(order, key=lambda each: (self.pairs(each), each in self.offers))
        return submit.model, submit.tokenizer_sha256

    def groups(
        self, make: Make, wanted: OfferBook = NOTHING
    ) -> Iterator[tuple[list[WorkerBook], list[WorkerBook]]]:
        """The prefill and the decode workers of each fingerprint that take work, where all of them
        can do what is wanted. An aggregated worker is paired with nobody, so it is a group.
        """
        found: dict[object, tuple[list[WorkerBook], list[WorkerBook]]] = {}
        for worker in self.workers.values():
            if make_of(worker.profile) == make and worker.takes:
                fingerprint = worker.profile.fingerprint
                alone = worker.profile.instance if fingerprint.aggregated else ""
                group = found.setdefault((fingerprint, alone), ([], []))
                group[worker.profile.phase is Phase.DECODE].append(worker)
        for group in found.values():
            if wanted is NOTHING or meets(offer_of(group), wanted):
                yield group

    def pairs(self, make: Make) -> int:
        return sum(len(prefill) * len(decode) for prefill, decode in self.groups(make))

    def free_pairs(self, request: RequestBook) -> int:
        return sum(
            min(sum(each.free for each in prefill), sum(each.free for each in decode))
            for prefill, decode in self.groups(request.make, request.wanted)
        )

    def has_pair(self, request: RequestBook, other_than: PairBook | None) -> bool:
        return any(
            (first, second) != other_than
            for prefill, decode in self.groups(request.make, request.wanted)
            for first in prefill
            for second in decode
        )

    def expects_pair(self, request: RequestBook, other_than: PairBook | None) -> bool:
        """Likewise, of a group some of which takes work, once its others are proved."""
        for prefill, decode in self.groups(request.make, request.wanted):
            like = (*prefill, *decode)[0].profile.fingerprint
            coming = [
                each
                for each in self.workers.values()
                if each.fit and not each.proved and each.profile.fingerprint == like
            ]
            firsts = prefill + [each for each in coming if each.profile.phase is Phase.PREFILL]
            seconds = decode + [each for each in coming if each.profile.phase is Phase.DECODE]
            if any((first, second) != other_than for first in firsts for second in seconds):
                return True
        return False

    def startable(self, make: Make, wanted: OfferBook, avoided: PairBook | None) -> PairBook | None:
        """A pair with a free slot on both sides that a sequence may have."""
        for prefill, decode in self.groups(make, wanted):
            for first in prefill:
                if first.free:
                    for second in decode:
                        if second.free and (first, second) != avoided:
                            return first, second
        return None

    def parkers(self, request: RequestBook) -> list[WorkerBook]:
        """Prefill workers that may run a context-only request, if they have room to park it."""
        return [
            worker
            for prefill, decode in self.groups(request.make, request.wanted)
            for worker in prefill
            if worker.profile.parks
            and decode
            and (worker.profile.has_hook or not any(each.profile.has_hook for each in decode))
            and not any(each.profile.has_classifiers for each in decode)
        ]

    def keeper(self, kv_peer: str) -> WorkerBook | None:
        found = (each for each in self.workers.values() if each.profile.kv_endpoint == kv_peer)
        return next((each for each in found if each.profile.phase is Phase.PREFILL), None)

    def decoders(self, kv_peer: str) -> list[WorkerBook]:
        """Decode workers that can read the KV of a prefill worker."""
        keeper = self.keeper(kv_peer)
        return [
            each
            for each in self.workers.values()
            if keeper is not None
            and each.takes
            and each.profile.phase is Phase.DECODE
            and each.profile.fingerprint == keeper.profile.fingerprint
        ]

    def elsewhere(self, worker: str, frontend: int, number: int) -> bool:
        """Whether a sequence is open, and decode's leg of it is not on that worker."""
        sequence = self.sequences.get((frontend, number))
        if sequence is None:
            return False
        return sequence.decode is None or sequence.decode.worker.key != worker

    def uses(self, worker: WorkerBook) -> bool:
        return any(
            prefill and decode and (worker in prefill or worker in decode)
            for prefill, decode in self.groups(make_of(worker.profile))
        )

    def waiting(self, line: Line | None = None) -> list[SequenceBook]:
        return [
            each
            for each in self.sequences.values()
            if each.stage == "waiting" and line in (None, each.request.line)
        ]

    def note_fleet(self, now: float, memory: float) -> None:
        self.health.forgive()
        for worker in self.workers.values():
            self.makes.add(make_of(worker.profile))
        for make in self.makes:
            if paired := [each for each in self.groups(make) if all(each)]:
                self.pairless.pop(make, None)
                offers = frozenset(map(offer_of, paired))
                if self.offered.get(make, offers) != offers:
                    self.offered_since[make] = now
                self.offers[make] = self.offered[make] = offers
            else:
                self.pairless.setdefault(make, now)
        self.forget(now, memory)

    def unmet_since(self, request: RequestBook) -> float | None:
        """Since when no pair that takes work can run it, at the earliest; None: one can."""
        make = request.make
        if make in self.pairless or any(all(each) for each in self.groups(make, request.wanted)):
            return self.pairless.get(make)
        return self.offered_since.get(make)

    def forget(self, now: float, memory: float) -> None:
        """Nobody waits for what had no pair for so long, nor for what others have taken over."""
        for make, since in self.pairless.items():
            others = any(self.pairs(each) for each in self.makes if each[0] == make[0])
            expected = make[0] in self.expected
            if others or (now - since >= memory and not expected):
                self.offers.pop(make, None)
