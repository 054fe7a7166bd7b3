"""Commands to the legs of a worker, in cases of tests/unit/worker/worker_traces: trace_files.py.

A case begins with a decode worker and a hook that passes everything; `worker` begins anew. Two
workers are told each command, and answer the same: one whose hook judges at once, one whose hook
judges elsewhere. `worker later` begins with the second alone, whose hook then waits for `rule`. An
answer says what hooks were called with, then what the engine was asked, then classifiers, then what
each router was told. Legs have numbers; those of the second router are `b1`, `b2`. `_` is a space.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from classifier_parts import BLOCK, FAILED, PASS, bench_of
from google.protobuf.message import Message
from trace_files import Said, joined, parsed, said
from worker_harness import KV, MODEL, SAMPLING, TRACE, Bench, recorded_spans, taken

from tandem import canary, errors
from tandem.engine.base import Delta, Ending, EngineRequest, Logprobs
from tandem.hooks.classifiers.settings import RegenerateSettings
from tandem.hooks.contract import Chunk, emit, suppress, terminate
from tandem.text.tokenizer import Tokenizer
from tandem.tracing.spans import Span
from tandem.v1 import common_pb2, worker_pb2
from tandem.wire.frames import parse

FLAGS = {
    *("hold", "say_made", "say_logprobs", "context_only", "want_token_ids", "want_report"),
    *("kv", "retryable", "logprobs", "canary", "half", "prefill", "nohook", "later"),
}
TEXTS = {"kv_hints", "extra_fields"}
OF_TASK = set(common_pb2.Task.DESCRIPTOR.fields_by_name)
OF_SAMPLING = set(common_pb2.SamplingParams.DESCRIPTOR.fields_by_name)
PLAIN = common_pb2.SamplingParams(**SAMPLING)
OF_EVERY_REQUEST = {"request_id", "token_ids", "sampling", "room", "kv_peer", "trace_id"} | {
    *("timeout_seconds", "output_index"),
}
UNSAID = {"leg", "sequence", "request_id", "report", "rows", "worker", "steps", "message"}
"""Fields that repeat what else is said, and those that measure time."""
VERDICTS: dict[str, Callable[[Chunk], Any]] = {
    "pass": lambda chunk: emit(chunk.text_diff),
    "terminate": lambda chunk: terminate("guard"),
    "suppress": lambda chunk: suppress(),
    "raise": lambda chunk: 1 / 0,
    "upper": lambda chunk: emit(chunk.text_diff.upper()),
    "none": lambda chunk: None,
    "text": lambda chunk: "text",
    "number": lambda chunk: emit(3),  # type: ignore[arg-type]
}
JUDGEMENTS = {"pass": PASS, "block": BLOCK, "error": FAILED}


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.load(Path(__file__).resolve().parents[3] / "model" / "tandem-tiny")


class LaterBench(Bench):
    hooks_run = "later"


class Worker:
    """One worker, and how far what it said was looked at."""

    def __init__(self, kind: type[Bench], named: dict[str, Any], *, rules_wait: bool) -> None:
        hold_back = named.pop("hold_back", None)
        self.asked: Any = None
        self.spans: list[Span] = []
        if hold_back is None:
            spans, self.spans = recorded_spans(named["phase"])
            self.bench = kind(_tokenizer(), spans=spans, **named)
        else:
            if "regenerate" in named:
                named["regenerate"] = RegenerateSettings(**named["regenerate"])
            self.bench, self.asked = bench_of(_tokenizer(), kind=kind, hold_back=hold_back, **named)
        self.links = {"": self.bench.link}
        self.rules_wait = rules_wait
        self.requests: dict[str, int] = {}
        self.digest = b""
        self.seen = [0, 0, 0, 0, 0]
        for _ in self.news():
            """A first report of its load."""

    def label(self, request_id: int) -> str:
        return next(name for name, number in self.requests.items() if number == request_id)

    def command(self, label: str, **command: Any) -> None:
        name, _ = place(label)
        self.bench.shell.command(self.links[name], worker_pb2.WorkerCommand(**command))

    def rule(self) -> None:
        later = self.bench.later
        if later is not None:
            self.bench.shell.on_rulings(later.rulings())
            later.rulings()  # what a ruling aborted

    def step(self, deltas: Iterable[Delta]) -> None:
        self.bench.shell.on_step(self.bench.engine.note(list(deltas)))
        if not self.rules_wait:
            self.rule()

    def _new(self, kind: int, items: list[Any]) -> list[Any]:
        begin, self.seen[kind] = self.seen[kind], len(items)
        return items[begin:]

    def news(self) -> Iterator[Said]:
        """What was said since this was called last."""
        bench = self.bench
        if bench.later is not None and not self.rules_wait:
            bench.later.rulings()  # aborts
        for chunk in self._new(0, bench.hook.calls):
            kinds = [kind for kind in ("aborted", "replay") if getattr(chunk, kind)]
            last = chunk.is_final and not chunk.aborted and "last"
            kinds += [f"by {chunk.lora_adapter}"] * bool(chunk.lora_adapter)
            thing = f"{self.label(chunk.request_id)} {json.dumps(chunk.text_diff)}"
            yield from said("hook", thing, last, *kinds)
        for request in self._new(1, bench.engine.submitted):
            yield from said("run", self.label(request.request_id), *_unusual(request))
        for number in self._new(2, bench.engine.cancelled):
            yield from said("stop", self.label(number))
        for number, question, reason in self._new(3, self.asked.questions if self.asked else []):
            notes = [f"last, {reason}"] * question.is_final
            notes += [f"logprobs {question.logprobs}"] * bool(question.logprobs)
            thing = f"{self.label(number)} {json.dumps(question.text)}"
            yield from said("ask", thing, *notes)
        for name, link in self.links.items():
            while (frame := taken(link)) is not None:
                for event in frame.events:
                    self.digest = event.parked.task_digest or self.digest
                yield from heard(name, frame, bench.said.with_ids)
            if link.broken.is_set() and link.fault:
                yield from said("give up", name or "the router", link.fault)
                link.fault = ""
        for span in self._new(4, self.spans):
            yield from said("span", span.name, *_of_span(span))


def _of_span(span: Span) -> Iterator[str]:
    """Its times, and its attributes but for those that measure time or say whose it is."""
    yield f"{span.began:g} to {span.ended:g} s"
    yield f"below {span.parent_id}" if not span.inside else "inside"
    yield from (f"{event.name} at {event.at:g} s" for event in span.events)
    if span.error is not None:
        yield span.error.code
    for name, value in span.attributes.items():
        if value and not name.endswith(("seconds", "worker", "request_id", "input_tokens")):
            yield f"{name.partition('.')[2]} {value}"


def place(label: str) -> tuple[str, int]:
    """The name of a leg's router, and its number there."""
    return label.rstrip("0123456789"), int(label.lstrip("ab"))


def _unusual(request: EngineRequest) -> Iterator[str]:
    """What a request asks of the engine beyond the plainest one."""
    for name in EngineRequest.__struct_fields__:
        value = getattr(request, name)
        if value and name not in OF_EVERY_REQUEST:
            yield f"{name} {list(value) if name == 'made' else value}"
    for field, value in request.sampling.ListFields():
        if (field, value) not in PLAIN.ListFields():
            yield f"{field.name} {[*value] if field.is_repeated else value}"


def _fields(message: Message) -> Iterator[str]:
    """Those that are set, as `withheld`, `prompt 3`."""
    for field, value in message.ListFields():
        if field.name in UNSAID or field.name.endswith("seconds"):
            continue
        if field.name == "error":
            yield " ".join(filter(None, [value.code, value.param]))
        elif field.name in ("overlay", "external_scores"):
            yield f"{field.name} {_inside(field.name, value)}"
        elif field.enum_type is not None:
            yield field.enum_type.values_by_number[value].name.rpartition("_")[2].lower()
        elif value is True:
            yield field.name
        elif isinstance(value, bytes):
            yield f"{field.name} of {len(value)} bytes"
        elif field.is_repeated:
            yield f"{field.name} {[*value]}"
        else:
            name = field.name.removesuffix("_tokens")
            yield f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"


def _inside(name: str, value: Any) -> str:
    if name == "external_scores":
        return json.dumps(json.loads(value))
    return ", ".join(_fields(common_pb2.Task.FromString(value).regeneration))


def heard(router: str, frame: worker_pb2.WorkerFrame, with_ids: set[int]) -> Iterator[Said]:
    """All that a router was told in one frame, but for loads."""
    for envelope in frame.envelopes:
        columns = parse(envelope.payload)
        ids = list(columns.token_id)
        rows = zip(columns.sequence, columns.token_count, columns.text, strict=True)
        for sequence, count, text in rows:
            mine: list[int] = []
            if sequence in with_ids:
                mine, ids = ids[:count], ids[count:]
            thing = f"{router}{sequence - 100} {json.dumps(text)}"
            yield from said("row", thing, mine and f"tokens {mine}")
        for kind in ("prompt_logprobs", "logprobs", "finish", "report"):
            for each in getattr(columns, kind):
                yield from said(kind, f"{router}{each.sequence - 100}", *_fields(each))
    for event in frame.events:
        kind = event.WhichOneof("event") or ""
        yield from said(kind, f"{router}{event.leg}", *_fields(getattr(event, kind)))


def _value(name: str, text: str | bool) -> Any:
    """JSON where it is some, `x*3` is xxx, and else the text."""
    if isinstance(text, bool):
        return text
    if many := re.fullmatch(r"(.+)\*(\d+)", text):
        return _value(name, many[1]) * int(many[2])
    if name in TEXTS:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text.replace("_", " ")


class Trace:
    """Workers that are told commands: a method `do_x` is the command x, `ask_x` the question."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.digests: dict[str, bytes] = {}
        """What prefill said of the last KV that it parked, for the second half of its request."""
        self.told(["worker"])

    def told(self, words: list[str]) -> str:
        """What both workers answer. `+4 settle`: that happens four seconds later."""
        if words[0].startswith("+"):
            seconds = float(words.pop(0))
            for worker in self.workers:
                worker.bench.now += seconds
        ask = words[0] == "ask"
        name = "_".join(words[:2]) if ask else f"do_{words[0]}"
        bare, named = parsed(words[1 + ask :], FLAGS)
        given = {key: _value(key, text) for key, text in named.items()}
        if words[0] == "worker":
            self.do_worker(**given)
            return ""
        answers = []
        for worker in self.workers:
            answer = getattr(self, name)(worker, *bare, **given)
            answers.append(str(answer) if ask else joined(worker.news()))
        if len(set(answers)) > 1:
            return f"AT ONCE {answers[0]} LATER {answers[1]}"
        return answers[0]

    def do_worker(self, **given: Any) -> None:
        """Begin anew. The rest is of the bench, or of classifiers where there is `hold_back`."""
        self.digests |= {each.bench.hooks_run: each.digest for each in self.workers if each.digest}
        later = given.pop("later", False)
        given["phase"] = "prefill" if given.pop("prefill", False) else "decode"
        given["hook"] = not given.pop("nohook", False)
        kinds = [LaterBench] if later else [Bench, LaterBench]
        self.workers = [Worker(kind, dict(given), rules_wait=later) for kind in kinds]

    # --- routers ---

    def do_start(self, worker: Worker, *labels: str, **fields: Any) -> None:
        for label in labels:
            before = len(worker.bench.engine.submitted)
            task = {name: fields[name] for name in fields if name in OF_TASK}
            rest = {name: fields[name] for name in fields if name not in OF_TASK}
            if rest.pop("half", False):
                rest["task_digest"] = self.digests[worker.bench.hooks_run]
            is_canary, destination = rest.pop("canary", False), rest.pop("destination", 0)
            start = worker.bench.command(place(label)[1], task=task, **rest)
            if is_canary:
                more = common_pb2.Task(**task)
                if sampling := {name: rest[name] for name in rest if name in OF_SAMPLING}:
                    more.sampling.MergeFrom(common_pb2.SamplingParams(**sampling))
                plain = canary.task(TRACE, MODEL, 2048)
                plain.MergeFrom(more)
                start.task, start.canary = plain.SerializeToString(), True
                start.destination = destination
            worker.command(label, start=[start])
            if len(submitted := worker.bench.engine.submitted) > before:
                worker.requests[label] = submitted[-1].request_id

    def do_cancel(self, worker: Worker, label: str, reason: str = "client") -> None:
        cancel = worker_pb2.CancelLeg(leg=place(label)[1], reason=reason)
        worker.command(label, cancel=[cancel])

    def do_release(self, worker: Worker, label: str) -> None:
        worker.command(label, release=[place(label)[1]])

    def do_connect(self, worker: Worker, name: str) -> None:
        worker.links[name] = worker.bench.shell.connect(name)

    def do_leave(self, worker: Worker, name: str = "") -> None:
        """The router's stream ends."""
        worker.bench.shell.disconnect(worker.links.pop(name))

    # --- engine, hooks and classifiers ---

    def do_step(self, worker: Worker, *words: str, **how: Any) -> None:
        """Each word is `leg:text` or `leg:#ids`, with `!length` where it is the last, `!code` where
        the engine fails.
        """
        worker.step([self._delta(worker, word, **how) for word in words])

    def _delta(
        self,
        worker: Worker,
        word: str,
        *,
        kv: bool = False,
        logprobs: bool = False,
        cached: int = 0,
        retryable: bool = False,
    ) -> Delta:
        label, _, rest = word.partition(":")
        text, _, end = rest.partition("!")
        ids = (
            [int(each) for each in text[1:].split(",")]
            if text.startswith("#")
            else _tokenizer().encode(text.replace("_", " "), special_tokens=False)
        )
        given = Delta(worker.requests[label], ids, kv=KV if kv else None, cached_tokens=cached)
        if logprobs:
            top = [[(each, -0.5), (0, -9.0)] for each in ids]
            given.logprobs = Logprobs([-0.5 * each for each in ids], top)
        if end.upper() in Ending.__members__:
            given.end = Ending[end.upper()]
        elif end:
            given.end, given.error, given.retryable = Ending.FAILED, _error(end), retryable
        return given

    def do_settle(self, worker: Worker) -> None:
        """The engine ends what it was asked to stop."""
        worker.step(worker.bench.engine.settle())

    def do_refuse(self, worker: Worker, code: str = "") -> None:
        """The engine refuses from now on."""
        worker.bench.engine.refuse = _error(code) if code else None

    def do_die(self, worker: Worker) -> None:
        worker.bench.shell.tell(partial(worker.bench.core.engine_gone, _error("engine_error")))

    def do_rule(self, worker: Worker) -> None:
        worker.rule()

    def do_judge(self, worker: Worker, verdict: str, of: str = "", at: int = 1) -> None:
        """The hook's verdict from now on: on its calls of one leg, from a number of them on."""
        calls = 0

        def judge(chunk: Chunk) -> Any:
            nonlocal calls
            if chunk.aborted or (of and chunk.request_id != worker.requests.get(str(of))):
                return emit(chunk.text_diff)
            calls += 1
            return VERDICTS[verdict if calls >= at else "pass"](chunk)

        worker.bench.hook.judge = judge

    def do_judged(self, worker: Worker, label: str, judgement: str) -> None:
        """By classifiers."""
        worker.bench.shell.on_judgement(worker.requests[label], JUDGEMENTS[judgement])

    # --- time, and the end of everything ---

    def do_wait(self, worker: Worker, seconds: str) -> None:
        worker.bench.now += float(seconds)
        worker.bench.shell.tell(worker.bench.core.tick)

    def do_drain(self, worker: Worker) -> None:
        worker.bench.shell.tell(worker.bench.core.drain)

    def do_abandon(self, worker: Worker) -> None:
        worker.bench.shell.tell(partial(worker.bench.core.abandon, _error("worker_error")))

    # --- questions ---

    def ask_open(self, worker: Worker) -> str:
        assert worker.bench.shell.idle.is_set() == (len(worker.bench.shell) == 0)
        return f"{len(worker.bench.shell)} open"

    def ask_held(self, worker: Worker) -> str:
        return f"{worker.bench.core.budget.held} bytes"

    def ask_prompts(self, worker: Worker) -> str:
        return f"{worker.bench.shell.load().prompt_tokens} tokens"

    def ask_counts(self, worker: Worker) -> str:
        counters = worker.bench.counters
        legs = [f"{count} {outcome}" for outcome, count in counters.legs.items() if count]
        moved = [
            f"{each.bytes} bytes by {name}"
            for name, each in counters.transfers.items()
            if each.bytes
        ]
        return ", ".join([*legs, f"{counters.tokens} tokens", *moved])


def _error(code: str) -> errors.TandemError:
    return errors.from_proto(common_pb2.Error(code=code, message="it failed"))
