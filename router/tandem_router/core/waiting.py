"""The sequences that wait for a pair, and whose turn it is: of an edition's the highest
priority, of that the key that was given least, of a key's flows the one that waits for its turn
the longest, of a flow's the first whose first token is due.

What a key was given is counted in seconds of slots, divided by its weight. Nobody knows how long a
sequence will run: while it does it counts one second, and then what it took. A key that begins to
wait is lifted to the account of whoever was served last, so that nothing is saved up while nothing
is wanted; what it was given beyond that it keeps owing. This is start-time fair queueing (Goyal,
Vin and Cheng, 1996) with costs that are known only afterwards.

A flow is what the requests of a key with one fairness id are, or those with none. Flows of a key
take turns: each start is one. So an id divides what its key is given, and brings the key nothing.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Callable, Iterator
from math import inf
from operator import attrgetter

from tandem.v1 import router_pb2
from tandem_router.core.sequences import Request, Sequence
from tandem_router.core.values import Edition

RUNNING_SECONDS = 1.0
"""What a sequence counts as long as it is not known how long it holds its slots."""
MAX_DEBTS = 1_000
"""Keys of a queue that want nothing now and are still remembered to have been given more."""
_RANK = attrgetter("rank")


def rank(submit: router_pb2.Submit, now: float, arrival: int) -> tuple[int, float, int]:
    """The place of a sequence that comes `now` among those of its flow, lowest first."""
    due = now + submit.first_token_ms / 1000 if submit.first_token_ms else inf
    return -submit.priority, due, arrival


class Flows:
    """What one key waits for, in the order of its turns. To add, to remove and to find the first
    costs the same however many flows there are.
    """

    __slots__ = ("_count", "_of_priority")

    def __init__(self) -> None:
        self._of_priority: dict[int, OrderedDict[int, list[Sequence]]] = {}
        """By a rank's first number what waits of each flow, in rising order of rank; the flow that
        is next comes first. A flow of which nothing waits leaves nothing here.
        """
        self._count = 0

    def __len__(self) -> int:
        """How many sequences wait."""
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        for priority in sorted(self._of_priority):
            for line in self._of_priority[priority].values():
                yield from line

    def count_of(self, fairness: int) -> int:
        """How many sequences of a flow wait."""
        return sum(len(flows.get(fairness, ())) for flows in self._of_priority.values())

    def add(self, sequence: Sequence) -> None:
        """A flow of which nothing waited comes last."""
        flows = self._of_priority.setdefault(sequence.rank[0], OrderedDict())
        line = flows.setdefault(sequence.request.submit.fairness, [])
        bisect.insort(line, sequence, key=_RANK)
        self._count += 1

    def remove(self, sequence: Sequence, *, begins: bool = False) -> None:
        """`begins`: the sequence starts, and its flow has had its turn."""
        priority, fairness = sequence.rank[0], sequence.request.submit.fairness
        flows = self._of_priority[priority]
        line = flows[fairness]
        del line[bisect.bisect_left(line, sequence.rank, key=_RANK)]
        self._count -= 1
        if not line:
            del flows[fairness]
        elif begins:
            flows.move_to_end(fairness)
        if not flows:
            del self._of_priority[priority]


class Account:
    """What one key waits for, and was given, of one queue."""

    __slots__ = ("flows", "given", "running", "weight")

    def __init__(self) -> None:
        self.flows = Flows()
        self.running = 0
        """Sequences that hold slots."""
        self.given = 0.0
        """Seconds by weight that sequences held slots which hold none now; what counts is how
        accounts differ.
        """
        self.weight = 1

    @property
    def share(self) -> float:
        """What is compared: the least is next."""
        return self.given + self.running * RUNNING_SECONDS / self.weight


class Queue:
    """All that waits for slots of one edition: on both sides, or of decode alone."""

    def __init__(self, edition: Edition) -> None:
        self.edition = edition
        self.accounts: dict[str, Account] = {}
        """One for every key that waits or runs, and for those in debt."""
        self.waiting: dict[str, Account] = {}
        self._debts: dict[str, None] = {}
        """Keys that neither wait nor run; the oldest first."""
        self._level = 0.0
        """The account of the key that was served last, at that moment."""

    def add(self, sequence: Sequence) -> None:
        key = sequence.request.prompt.tenant
        account = self.accounts.get(key)
        if account is None:
            account = self.accounts[key] = Account()
        account.weight = sequence.request.submit.weight
        if not account.flows:
            self._debts.pop(key, None)
            least = min((each.given for each in self.waiting.values()), default=self._level)
            account.given = max(account.given, min(least, self._level))
            self.waiting[key] = account
        account.flows.add(sequence)

    def remove(self, sequence: Sequence, *, begins: bool = False) -> None:
        key = sequence.request.prompt.tenant
        account = self.accounts[key]
        account.flows.remove(sequence, begins=begins)
        if not account.flows:
            del self.waiting[key]
            self._rest(key, account)

    def begin(self, sequence: Sequence) -> None:
        """The sequence leaves the queue, and is to hold its slots until `settle`."""
        account = self.accounts[sequence.request.prompt.tenant]
        self._level = account.given
        account.running += 1
        self.remove(sequence, begins=True)

    def settle(self, sequence: Sequence, seconds: float) -> None:
        """Charge the key of a sequence for the seconds that the sequence held its slots."""
        request = sequence.request
        key = request.prompt.tenant
        account = self.accounts[key]
        account.given += seconds / request.submit.weight
        account.running -= 1
        self._rest(key, account)

    def head(self, passed: Callable[[Sequence], bool] | None = None) -> Sequence | None:
        """Who is next, but for sequences that are passed."""
        best, turn = None, (0, 0.0, 0)
        for account in self.waiting.values():
            for each in account.flows:
                if passed is None or not passed(each):
                    priority, _, arrival = each.rank
                    mine = priority, account.share, arrival
                    if best is None or mine < turn:
                        best, turn = each, mine
                    break
        return best

    def all(self) -> list[Sequence]:
        """What waits, each key's in order."""
        return [each for account in self.waiting.values() for each in account.flows]

    def _rest(self, key: str, account: Account) -> None:
        """Forget a key that wants nothing and owes nothing, and of too many the oldest debt."""
        if account.flows or account.running:
            return
        if account.given <= self._level:
            del self.accounts[key]
            return
        self._debts[key] = None
        if len(self._debts) > MAX_DEBTS:
            oldest = next(iter(self._debts))
            del self._debts[oldest], self.accounts[oldest]


class Waiting:
    """Holds at most what its owner lets in: `len` is the number of sequences over all queues."""

    def __init__(self) -> None:
        self._of_both: dict[Edition, Queue] = {}
        """One for each edition that something has waited for; only served ones let requests in."""
        self._of_decode: dict[Edition, Queue] = {}
        """Likewise, of those that go on from parked KV."""
        self._count = 0
        self.told: dict[Sequence, None] = {}
        """Sequences whose clients are told what they wait for: see waits.py."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        for queue in (*self._of_decode.values(), *self._of_both.values()):
            for account in queue.waiting.values():
                yield from account.flows

    def of_both(self) -> list[Queue]:
        """Where something waits for a pair, or for prefill alone."""
        return [queue for queue in self._of_both.values() if queue.waiting]

    def of_decode(self) -> list[Queue]:
        """Where something waits for decode alone. It goes first: it has had its turn for prefill,
        and its KV takes room until decode fetches it.
        """
        queues = self._of_decode
        return [queue for queue in queues.values() if queue.waiting] if queues else []

    def queue(self, request: Request) -> Queue:
        """Where the sequences of a request wait."""
        queues = self._of_both if request.voucher is None else self._of_decode
        queue = queues.get(request.edition)
        if queue is None:
            queue = queues[request.edition] = Queue(request.edition)
        return queue

    def count_of(self, tenant: str) -> int:
        """How many sequences of a key wait."""
        return sum(map(len, self._flows_of(tenant)))

    def count_of_flow(self, tenant: str, fairness: int) -> int:
        """How many sequences of a key's flow wait."""
        return sum(flows.count_of(fairness) for flows in self._flows_of(tenant))

    def count_in(self, edition: Edition) -> int:
        """How many sequences of an edition wait."""
        queues = (self._of_decode.get(edition), self._of_both.get(edition))
        mine = [queue.waiting for queue in queues if queue is not None]
        return sum(len(each.flows) for waiting in mine for each in waiting.values())

    def add(self, sequence: Sequence) -> None:
        """A sequence that waits again takes the place that its arrival gave it."""
        self.queue(sequence.request).add(sequence)
        self._count += 1

    def remove(self, sequence: Sequence) -> None:
        """The sequence is not to run any more."""
        self.queue(sequence.request).remove(sequence)
        self._leave(sequence)

    def begin(self, sequence: Sequence) -> None:
        """Start a sequence and charge its key."""
        self.queue(sequence.request).begin(sequence)
        self._leave(sequence)

    def settle(self, sequence: Sequence, seconds: float) -> None:
        """A sequence that was started has no open legs any more, `seconds` after."""
        self.queue(sequence.request).settle(sequence, seconds)

    def _flows_of(self, tenant: str) -> Iterator[Flows]:
        for queue in (*self._of_decode.values(), *self._of_both.values()):
            if (account := queue.waiting.get(tenant)) is not None:
                yield account.flows

    def _leave(self, sequence: Sequence) -> None:
        self._count -= 1
        self.told.pop(sequence, None)
