"""A core of the router with its checks: the rules of the simulation look on at every event."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from router_loads import worker_load
from simulated import submits
from simulated.router_invariants import InvariantError, check
from simulated.router_rules import RouterRules

from tandem.byte_budget import DEFAULT_BYTES, ByteBudget
from tandem.endings import Outcome
from tandem.errors import TandemError
from tandem_router.core import actions, events
from tandem_router.core.actions import Action
from tandem_router.core.machine import RouterCore
from tandem_router.core.values import Bounds, Disaggregate, Fingerprint, Phase, Profile
from tandem_router.policies import LeastLoaded, PolicyFactory

FINGERPRINT = Fingerprint("tiny", "1", "sim", "1", "f32", 16, "f32", "nhd", 1, "sha", 1)
Legs = tuple[actions.StartLeg, actions.StartLeg]
A = TypeVar("A")


def least_loaded() -> LeastLoaded:
    """One whose draws are the first two by load."""
    return LeastLoaded(lambda _: 0)


class Bench:
    """A core, and shorthands for what goes in and comes out."""

    def __init__(
        self,
        prefill: int = 1,
        decode: int = 1,
        *,
        memory: int = DEFAULT_BYTES,
        prefill_policy: PolicyFactory = least_loaded,
        disaggregate: Disaggregate = "auto",
        rooms: Iterable[int] = range(1000, 1_000_000),
        **bounds: Any,
    ) -> None:
        self.now = 0.0
        self.core = RouterCore(
            budget=ByteBudget(memory),
            bounds=Bounds(**bounds),
            prefill_policy=prefill_policy,
            decode_policy=least_loaded,
            new_room=iter(rooms).__next__,
            disaggregate=disaggregate,
        )
        self.rules = RouterRules(self.core.state.bounds, self._fault, memory=memory)
        self.done: list[Action] = []
        self.feed(events.FrontendUp(1))
        for index in range(prefill):
            self.worker(Phase.PREFILL, index)
        for index in range(decode):
            self.worker(Phase.DECODE, index)

    @staticmethod
    def _fault(text: str, _: str) -> None:
        raise InvariantError(text)

    def feed(self, *batch: events.Event, after: float = 0.0) -> list[Action]:
        """Returns only what this called for."""
        self.now += after
        self.done = []
        wakes_at = self.core.wakes_at
        for each in ((), *((event,) for event in batch)):
            done = self.core.handle(self.now, each)
            by_time_alone = not each or isinstance(batch[0], events.Tick)
            assert not (by_time_alone and done and self.now < wakes_at), "it was not foreseen"
            self.rules.observe(self.now, *each or (None,), done)
            check(self.core.state)
            self.rules.compare_loads(self.core.state.fleet.workers)
            self.done += done
        return self.done

    def worker(self, phase: Phase, index: int = 0, *, other_legs: int = 0, **profile: Any) -> str:
        return self.connect(f"{phase.value}-{index}", phase, other_legs=other_legs, **profile)

    def connect(
        self,
        key: str,
        phase: Phase,
        *,
        listed_as: Phase | None = None,
        other_legs: int = 0,
        step_age: float | None = None,
        **profile: Any,
    ) -> str:
        """A worker's stream opens: one with two slots, but for what `profile` says."""
        fields: dict[str, Any] = {
            "name": key,
            "phase": phase,
            "fingerprint": FINGERPRINT,
            "max_sequences": 2,
            "context_length": 100,
            "kv_endpoint": f"kv-of-{key}",
            **profile,
        }
        self.feed(
            events.WorkerUp(
                worker=key,
                listed_as=listed_as or phase,
                profile=Profile(**fields),
                other_legs=other_legs,
                step_age=step_age,
            )
        )
        return key

    def submit(self, first: int = 1, **fields: Any) -> list[Action]:
        given = {"n": 1, "model": "tiny", "timeout_seconds": 60.0, "task": b"t", **fields}
        return self.feed(submits.submit(first, **given))

    def of(self, kind: type[A]) -> list[A]:
        return [action for action in self.done if isinstance(action, kind)]

    def legs(self) -> Legs:
        """The two legs that the last event started."""
        prefill, decode = self.of(actions.StartLeg)
        return prefill, decode

    def close(
        self, leg: actions.StartLeg, outcome: Outcome = Outcome.FINISHED, **how: Any
    ) -> list[Action]:
        return self.feed(events.LegClosed(leg.worker, leg.leg, outcome, **how))

    def finish(self, prefill: actions.StartLeg, decode: actions.StartLeg) -> list[Action]:
        """Both legs run to their end."""
        done = self.close(prefill)
        done += self.feed(events.LegStarted(decode.worker, decode.leg))
        self.done = done + self.close(decode)
        return self.done

    def fail(
        self, leg: actions.StartLeg, other: actions.StartLeg, error: TandemError, **how: Any
    ) -> list[Action]:
        """A leg fails; the other one closes as it is asked to."""
        done = self.close(leg, Outcome.FAILED, error=error, **how)
        self.done = done + self.close(other, Outcome.CANCELLED)
        return self.done

    def start_on(self, first: int, *on: str, **fields: Any) -> Legs:
        """Both legs of a request that runs there: all others of those phases seem full."""
        workers = self.core.state.fleet.workers
        phases = {workers[key].phase for key in on}
        others = [each for each in workers.values() if each.phase in phases]
        for each in others:
            taken = 0 if each.key in on else each.capacity
            self.feed(worker_load(each.key, len(each.legs) + taken))
        self.submit(first, **fields)
        done, legs = self.done, self.legs()
        for each in others:
            done += self.feed(worker_load(each.key, len(each.legs)))
        self.done = done
        assert {*on} <= {each.worker for each in legs}
        return legs

    def ends(self) -> list[tuple[int, str]]:
        """What the frontend was told: (sequence, error's code or stop_reason)."""
        return [
            (each.sequence, each.stop_reason if each.error is None else each.error.code)
            for each in self.of(actions.EndSequence)
        ]

    def cancelled(self) -> list[int]:
        return [each.leg for each in self.of(actions.CancelLeg)]

    def at_rest(self) -> bool:
        state = self.core.state
        return self.core.idle and not (state.rooms or len(state.waiting) or list(state.deadlines))


class Memory(Bench):
    """One that keeps all that was done; each leg that ends takes a second."""

    def __init__(self, *workers: int, **bounds: Any) -> None:
        self.all: list[Action] = []
        super().__init__(*workers, **bounds)

    def feed(self, *batch: events.Event, after: float = 0.0) -> list[Action]:
        done = super().feed(*batch, after=after)
        self.all += done
        return done

    def of_all(self, kind: type[A]) -> list[A]:
        return [action for action in self.all if isinstance(action, kind)]

    def started(self) -> list[actions.StartLeg]:
        return self.of_all(actions.StartLeg)

    def end(self, *legs: actions.StartLeg, outcome: Outcome = Outcome.FINISHED, **how: Any) -> None:
        for leg in legs:
            self.feed(events.LegClosed(leg.worker, leg.leg, outcome, **how), after=1.0)
