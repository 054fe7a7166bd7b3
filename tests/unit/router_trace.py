"""Commands to the router's core, in cases of tests/unit/router_traces: trace_files.py.

A case begins with one worker of each phase, or with what its file's `setup: fleet 2 2` says;
`fleet` begins anew. router_said.py says how legs are named.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from router_bench import FINGERPRINT, Bench
from router_loads import worker_load
from router_said import Names, other
from trace_files import Said, joined, parsed

from tandem import errors
from tandem.endings import Outcome
from tandem.v1 import common_pb2, router_pb2
from tandem_router.core import actions, events
from tandem_router.core.story import Moment, Story
from tandem_router.core.values import Edition, Fingerprint, Phase

TEXTS = {"trace_id", "tenant", "reason", "obstacle", "name", "instance", "tokenizer_sha256"}
BYTES = {"task", "steps", "overlay", "unknown_fields"}
SETS = {"logits_processors", "lora_adapters", "expected_models", "cannot_sample", "sampling"}
FLAGS = {
    *("retryable", "worker_died", "terminate", "over", "context_only", "resume"),
    *("want_report", "want_cost"),
    *("prompt_logprobs", "has_hook", "has_classifiers", "judges_logprobs", "propagate_terminate"),
    "parks",
}
FLEET = (
    *("name", "ready_pairs", "context_length", "longest_context", "max_sequences"),
    *("logits_processors", "any_logits_processors", "lora_adapters", "waits", "simulated"),
)
OF_REQUESTS = (actions.CancelLeg, actions.EndSequence, actions.RequestEnded, actions.ReleaseLeg)
BARE = {"at", "name", "phase", "code", "worker", "workers", "reason"}
"""Fields of a story that are told without their names."""
DIGEST = b"d" * 32
LOOK = 0.1
"""Seconds between the looks of `until`."""
Answers = Iterator[Sequence[actions.Action | Said]]


def _value(name: str, text: str | bool) -> Any:
    if isinstance(text, bool):
        return text
    if name in BYTES:
        part, _, times = text.partition("*")
        return (part * int(times or 1)).encode()
    if name in SETS:
        return frozenset(text.split(","))
    if text in ("true", "false"):
        return text == "true"
    if name not in TEXTS and re.fullmatch(r"-?\d+", text):
        return int(text)
    if name not in TEXTS and re.fullmatch(r"-?\d*[.]\d+", text):
        return float(text)
    return text


def _numbers(words: Iterable[str]) -> list[int]:
    """`1..3 7` is 1 2 3 7."""
    ends = [word.partition("..") for word in words]
    return [each for first, _, last in ends for each in range(int(first), int(last or first) + 1)]


def _error(code: str) -> errors.TandemError:
    return errors.from_proto(common_pb2.Error(code=code, message="it failed"))


class Trace:
    """A core that is told commands. A method `do_x` is the command x, `ask_x` the question `ask x`:
    each is given bare words, and words of the form `name=value`; a word of FLAGS is `word=true`.
    """

    def __init__(self) -> None:
        self.bench = Bench()
        self.names = Names()
        self.runs = 1000

    def told(self, words: list[str]) -> str:
        """What the core answers. `+4 close 1p`: that happens four seconds later. `quietly worker
        decode-7`: what the core answers is not shown.
        """
        if words[0] == "quietly":
            self.told(words[1:])
            return ""
        if words[0].startswith("+"):
            self.bench.now += float(words.pop(0))
        ask = words[0] == "ask"
        method = getattr(self, "_".join(words[:2]) if ask else f"do_{words[0]}")
        bare, named = parsed(words[1 + ask :], FLAGS)
        named = {name: _value(name, text) for name, text in named.items()}
        if ask:
            return str(method(*bare, **named))
        return joined(said for done in method(*bare, **named) for said in self.names.words(done))

    def leg(self, label: str) -> tuple[str, int]:
        start = self.names.started[label]
        return start.worker, start.leg

    def feed(self, *batch: events.Event, after: float = 0.0) -> Answers:
        """Each event by itself, since the next may name what this one started."""
        for each in batch:
            yield self.bench.feed(each, after=after)

    # --- commands: workers ---

    def do_fleet(self, prefill: str, decode: str, **bounds: Any) -> Answers:
        """Begin anew, with so many workers."""
        self.bench, self.names = Bench(int(prefill), int(decode), **bounds), Names()
        yield []

    def do_worker(self, *keys: str, **profile: Any) -> Answers:
        """`whole-0`: both phases of an aggregated worker."""
        fields = {name: profile.pop(name) for name in Fingerprint._fields if name in profile}
        for key in keys:
            whole = key.startswith("whole")
            given = {"instance": key.partition("#")[0], "context_length": 10_000} if whole else {}
            mark = FINGERPRINT._replace(**{"aggregated": whole, **fields})
            for each in (
                [f"{key}#{phase}" for phase in Phase] if whole and "#" not in key else [key]
            ):
                phase = Phase.PREFILL if "prefill" in each else Phase.DECODE
                self.bench.connect(each, phase, **{"fingerprint": mark, **given, **profile})
                yield self.bench.done

    def do_down(self, *keys: str, reason: str = "gone", unsent: str = "", **how: Any) -> Answers:
        legs = frozenset(self.leg(label)[1] for label in unsent.split(",") if label)
        return self.feed(*(events.WorkerDown(key, reason, unsent=legs, **how) for key in keys))

    def do_drain(self, *keys: str) -> Answers:
        return self.feed(*(events.WorkerDraining(key, True) for key in keys))

    def do_undrain(self, *keys: str) -> Answers:
        return self.feed(*(events.WorkerDraining(key, False) for key in keys))

    def do_load(self, key: str, open_legs: str, **report: Any) -> Answers:
        return self.feed(worker_load(key, int(open_legs), **report))

    def do_fault(self, *keys: str) -> Answers:
        return self.feed(*map(events.WorkerFault, keys))

    # --- commands: frontends, time ---

    def do_submit(self, *firsts: str, on: str = "", voucher: Any = None, **fields: Any) -> Answers:
        """`on`: that worker, whatever the policy would choose."""
        if voucher is not None:
            changed = {name: fields.pop(name) for name in ("kv_peer", "model") if name in fields}
            fields["voucher"] = given = common_pb2.Voucher()
            given.CopyFrom(self.names.vouchers[voucher])
            given.MergeFrom(common_pb2.Voucher(**changed))
        for first in _numbers(firsts):
            given = {"trace_id": str(first), **fields}
            if on:
                self.bench.start_on(first, *on.split(","), **given)
            else:
                self.bench.submit(first, **given)
            yield self.bench.done

    def do_cancel(self, *firsts: str) -> Answers:
        return self.feed(*(events.Cancel(1, first) for first in _numbers(firsts)))

    def do_leave(self) -> Answers:
        """The frontend goes away."""
        return self.feed(events.FrontendDown(1))

    def do_wait(self, seconds: str) -> Answers:
        return self.feed(events.Tick(), after=float(seconds))

    def do_until(self, verb: str, most: str = "100") -> Answers:
        """Time passes until the core answers with this verb, or for so many seconds."""
        found: list[Said] = []
        for look in range(1, round(float(most) / LOOK) + 1):
            found += self.names.words(self.bench.feed(events.Tick(), after=LOOK))
            if any(each.verb == verb for each in found):
                yield [Said("after", f"{look * LOOK:g} s", ""), *found]
                return
        yield [*found, Said("nothing else in", f"{most} s", "")]

    def do_stop(self) -> Answers:
        return self.feed(events.Drain())

    def do_abandon(self) -> Answers:
        return self.feed(events.Abandon())

    # --- commands: legs ---

    def do_started(self, *labels: str) -> Answers:
        return self.feed(*(events.LegStarted(*self.leg(label)) for label in labels))

    def do_verdict(self, label: str, *, terminate: bool = False, **said: Any) -> Answers:
        return self.feed(events.LegVerdict(*self.leg(label), terminate, **said))

    def do_made(self, label: str, *, steps: bytes = b"s", **said: Any) -> Answers:
        return self.feed(events.LegMade(*self.leg(label), steps, **{"tokens": 1, **said}))

    def do_parked(self, label: str) -> Answers:
        worker, leg = self.leg(label)
        said = {"token_ids": (7,), "task_digest": DIGEST, "lease_seconds": 60.0}
        return self.feed(events.LegParked(worker=worker, leg=leg, **said))

    def do_close(self, *words: str, **how: Any) -> Answers:
        """Legs, an outcome if it is not `finished`, and an error's code."""
        labels = [word for word in words if re.fullmatch(r"c?\d+[pd][.\d]*", word)]
        outcome, code, *_ = *[word for word in words if word not in labels], "finished", ""
        if code not in ("", "finished"):
            how["error"] = _error(code)
        closed = Outcome[outcome.upper()]
        return self.feed(*(events.LegClosed(*self.leg(each), closed, **how) for each in labels))

    def do_finish(self, *names: str) -> Answers:
        """Both legs of sequences run to their end: `1`, `1.2`, `c1`."""
        for prefill, decode in map(self._legs, names):
            yield from self.do_close(prefill)
            yield from self.do_started(decode)
            yield from self.do_close(decode)

    def do_fail(self, label: str, code: str, **how: Any) -> Answers:
        """A leg fails, and the other one of its sequence closes as it is asked to."""
        yield from self.do_close(label, "failed", code, **how)
        yield from self.do_close(other(label), "cancelled")

    def _legs(self, name: str) -> tuple[str, str]:
        sequence, dot, attempt = name.partition(".")
        return f"{sequence}p{dot}{attempt}", f"{sequence}d{dot}{attempt}"

    def do_run(self, on: str, code: str = "", times: str = "x1", **how: Any) -> Answers:
        """Requests on a worker, each to its end; only what else happens is shown."""
        for _ in range(int(times.removeprefix("x"))):
            self.runs += 1
            prefill, decode = self.bench.start_on(self.runs, *on.split(","))
            mine, twin = (decode, prefill) if decode.worker in on else (prefill, decode)
            if code and code != "ok":
                done = self.bench.fail(mine, twin, _error(code), **how)
            else:
                done = self.bench.finish(prefill, decode)
            yield [each for each in done if not isinstance(each, OF_REQUESTS)]

    # --- questions ---

    def ask_counts(self, *names: str) -> str:
        counts = self.bench.core.snapshot().counts
        return "; ".join(f"{name} {_counted(getattr(counts, name))}" for name in names)

    def ask_standing(self, *keys: str) -> str:
        """How workers' addresses have done."""
        trusts = self.bench.core.snapshot().trusts
        return "; ".join(
            f"{key} {each.reputation.value} {each.failed}/{each.ended} failed"
            + "".join(
                f", {count} {name}"
                for name, count in zip(each._fields[3:], each[3:], strict=True)
                if count
            )
            for key, each in trusts.items()
            if not keys or key in keys
        )

    def ask_workers(self, *keys: str) -> str:
        """Slots of connected workers, and who holds them."""
        return "; ".join(
            f"{each.address} {each.open_legs} + {each.other_legs} of {each.slots}"
            + f", {each.overdue_legs} overdue" * bool(each.overdue_legs)
            + ", stalled" * each.stalled
            for each in self.bench.core.snapshot().workers
            if not keys or each.address in keys
        )

    def ask_refusals(self) -> str:
        return "; ".join(f"{key}: {why}" for key, why in sorted(self.bench.core.refusals().items()))

    def ask_refusal(self, key: str) -> str:
        return self.bench.core.refusal(key) or "none"

    def ask_fleet(self) -> str:
        """All that frontends were told of each model."""
        told = self.names.fleet.models if self.names.fleet else ()
        return "; ".join(
            ", ".join(f"{name} {value}" for name in FLEET if (value := _told(model, name)))
            for model in told
        )

    def ask_slots(self) -> str:
        slots = self.bench.core.free_slots().items()
        return "; ".join(f"{each.model} {each.tokenizer_sha256} {count}" for each, count in slots)

    def ask_kv(self, model: str) -> str:
        """What the decode workers of an edition hold."""
        found = self.bench.core.kv_cache(Edition(model, FINGERPRINT.tokenizer_sha256))
        if found is None:
            return "not known"
        size = f", of {found.page_size} tokens" if found.page_size else ""
        return f"{found.used_pages} of {found.pages} pages{size}"

    def ask_messages(self) -> str:
        """Those of the errors that the frontend was told since this was last asked."""
        said, self.names.messages = self.names.messages, []
        return "; ".join(said)

    def story(self, trace_id: str) -> Story:
        """Of a request that is open, or else of one that has ended."""
        found = self.bench.core.stories(trace_id, self.bench.now)
        return found[0] if found else self.names.stories[trace_id]

    def ask_story(self, trace_id: str) -> str:
        """How a request has gone, with each of its sequences, and who would not do."""
        story = self.story(trace_id)
        sequences = [
            f"sequence {each.output_index} {each.outcome or each.stage}: {told(each.moments)}"
            for each in story.sequences
        ]
        rejected = f"rejected {told(story.rejected)}" if story.rejected else ""
        head = f"{story.outcome or 'open'} after {story.seconds:g} s"
        return "; ".join(each for each in (head, *sequences, rejected) if each)

    def ask_causes(self, *trace_ids: str) -> str:
        """Why the sequences of requests waited, or wait, each as it was queued last."""
        return "; ".join(
            [each.cause for each in sequence.moments if each.name == "queued"][-1] or "none"
            for trace_id in trace_ids
            for sequence in self.story(trace_id).sequences
        )

    def ask_way(self, trace_id: str) -> str:
        """Which way an open request's first sequence went last, and why."""
        story = self.bench.core.stories(trace_id, self.bench.now)[0]
        way = [each.way for each in story.sequences[0].moments if each.way][-1]
        seconds = f": {way.pair_seconds:.2f} s, {way.aggregated_seconds:.2f} s"
        return f"{way.name}, {way.reason}" + seconds * bool(way.pair_seconds)

    def ask_closed(self, key: str) -> str:
        """For how long no stream to an address is opened, and why."""
        until, why = self.bench.core.closed_until(key)
        return f"for {until - self.bench.now:g} s ({why})" if until else "no"

    def ask_wake(self) -> str:
        return f"in {self.bench.core.wakes_at - self.bench.now:g} s"

    def ask_held(self) -> str:
        return f"{self.bench.core.budget.held} bytes"

    def ask_rest(self) -> str:
        return "all is over" if self.bench.at_rest() else "something is open"


def _counted(value: Any) -> str:
    if not isinstance(value, Counter):
        return str(getattr(value, "total", value))
    named = {
        "/".join(map(str, key)) if isinstance(key, tuple) else key: n for key, n in value.items()
    }
    return ", ".join(f"{name}={count}" for name, count in sorted(named.items())) or "none"


def told(value: Any) -> str:
    """A part of a story in words; what is empty is left out, and the way, which `ask way` tells."""
    if isinstance(value, tuple):
        return ", ".join(map(told, value))
    if not isinstance(value, msgspec.Struct):
        return f"{value:g}" if isinstance(value, float) else str(value)
    said = [
        words if name in BARE else f"{name} {words}"
        for name in value.__struct_fields__
        if (words := told(getattr(value, name))) not in ("", "None", "0") or name == "at"
        if name != "way"
    ]
    words = " ".join(dict.fromkeys(said))  # a worker's name is its address here
    return words if isinstance(value, Moment) else f"({words})"


def _told(model: router_pb2.ServedModel, name: str) -> object:
    """What frontends are told of a model, its limits among it."""
    value = getattr(model, name) if hasattr(model, name) else getattr(model.limits, name)
    return value if isinstance(value, str | int) else tuple(value)
