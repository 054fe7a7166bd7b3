"""One worker's legs over a scripted engine, with a router's stream whose frames the test takes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

from scripted_engine import LIMITS, ScriptedEngine

from tandem.byte_budget import DEFAULT_BYTES, ByteBudget
from tandem.engine.base import Delta, Ending, KvTransfer, Logprobs, Role
from tandem.engine.prefix_log import PrefixLog
from tandem.hooks.chain import Chain, SequenceChain
from tandem.hooks.contract import Chunk, Hook, Phase, Verdict, emit, terminate
from tandem.hooks.deferred import Deliver, Ruling, SequenceInfo, Work
from tandem.hooks.loader import LoadedHook
from tandem.hooks.runner import in_this_process, inline
from tandem.hooks.runner.rulings import judged
from tandem.hooks.settings import HookEntry
from tandem.logits.spec import LogitsProcessorEntry
from tandem.text.tokenizer import Tokenizer
from tandem.tracing.spans import Span
from tandem.v1 import common_pb2, worker_pb2
from tandem.wire.frames import parse
from tandem.worker.core.leg import Leg
from tandem.worker.core.machine import WorkerCore
from tandem.worker.counters import WorkerCounters
from tandem.worker.intake import Intake
from tandem.worker.link import RouterLink
from tandem.worker.phase import PhaseParts
from tandem.worker.records import Records
from tandem.worker.shell import Shell
from tandem.worker.spans import LegSpans
from tandem_decode_worker.rules import DecodeRules
from tandem_prefill_worker.rules import PrefillRules

MODEL = "tandem-tiny"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PROMPT_TOKENS = 3
KV = KvTransfer(4096, 0.002, "nixl/ucx")
SAMPLING: dict[str, Any] = {"max_tokens": 64, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0}
Judge = Callable[[Chunk], Any]


class RecordingHook:
    """Answers as `judge` says, and keeps every call."""

    def __init__(self, judge: Judge | None = None) -> None:
        self.judge = judge or (lambda chunk: emit(chunk.text_diff))
        self.calls: list[Chunk] = []

    def __call__(self, chunk: Chunk) -> Verdict:
        self.calls.append(chunk)
        verdict: Verdict = self.judge(chunk)
        return verdict

    def of(self, request_id: int) -> list[Chunk]:
        return [call for call in self.calls if call.request_id == request_id]

    def finals(self, request_id: int) -> list[Chunk]:
        return [call for call in self.of(request_id) if call.is_final]


def taken(link: RouterLink) -> worker_pb2.WorkerFrame | None:
    """The next frame, as the router reads it."""
    written = link.take()
    return None if written is None else worker_pb2.WorkerFrame.FromString(written)


@dataclass
class Said:
    """All that a router was told, and what a frontend makes of it."""

    events: list[worker_pb2.LegEvent] = field(default_factory=list)
    columns: list[common_pb2.TokenColumns] = field(default_factory=list)
    loads: list[worker_pb2.Load] = field(default_factory=list)
    with_ids: set[int] = field(default_factory=set)
    order: list[str] = field(default_factory=list)
    """What came, in order: "rows", "finish", "report", "started", "verdict", "closed"."""

    def add(self, frame: worker_pb2.WorkerFrame | None) -> None:
        if frame is None:
            return
        for envelope in frame.envelopes:
            columns = parse(envelope.payload)
            self.columns.append(columns)
            for kind in ("prompt_logprobs", "sequence", "finish", "report"):
                self.order += [kind] * bool(getattr(columns, kind))
        self.events += frame.events
        self.order += [event.WhichOneof("event") or "" for event in frame.events]
        if frame.HasField("load"):
            self.loads.append(frame.load)

    def rows(self, sequence: int) -> list[tuple[str, list[int]]]:
        rows = []
        for columns in self.columns:
            ids = list(columns.token_id)
            for number, count, text in zip(
                columns.sequence, columns.token_count, columns.text, strict=True
            ):
                mine: list[int] = []
                if number in self.with_ids:
                    mine, ids = ids[:count], ids[count:]
                    assert len(mine) == count
                if number == sequence:
                    rows.append((text, mine))
            assert not ids
        return rows

    def text(self, sequence: int) -> str:
        return "".join(text for text, _ in self.rows(sequence))

    def token_ids(self, sequence: int) -> list[int]:
        return [token_id for _, ids in self.rows(sequence) for token_id in ids]

    def logprobs(self, sequence: int) -> list[common_pb2.TokenLogprobs]:
        return [entry for c in self.columns for entry in c.logprobs if entry.sequence == sequence]

    def prompt_logprobs(self, sequence: int) -> list[common_pb2.TokenLogprobs]:
        parts = [part for columns in self.columns for part in columns.prompt_logprobs]
        return [part for part in parts if part.sequence == sequence]

    def finishes(self, sequence: int) -> list[common_pb2.Finish]:
        return [entry for c in self.columns for entry in c.finish if entry.sequence == sequence]

    def reports(self, sequence: int) -> list[common_pb2.PhaseReport]:
        return [entry for c in self.columns for entry in c.report if entry.sequence == sequence]

    def of(self, leg: int, kind: str) -> list[Any]:
        return [getattr(e, kind) for e in self.events if e.leg == leg and e.HasField(kind)]  # type: ignore[arg-type]

    def closed(self, leg: int) -> worker_pb2.LegClosed:
        """The leg's one terminal event."""
        closed = self.of(leg, "closed")
        assert len(closed) == 1, f"leg {leg} was closed {len(closed)} times"
        last: worker_pb2.LegClosed = closed[0]
        return last


class LaterHooks:
    """Judges when it is told to, as hooks in other processes do."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._open: dict[int, SequenceChain] = {}
        self._waiting: list[Work | int] = []

    async def start(self, deliver: Deliver) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    def open(self, info: SequenceInfo) -> None:
        self._open[info.request_id] = self._chain.sequence(info)

    def submit(self, work: Sequence[Work]) -> None:
        self._waiting += work

    def abort(self, request_id: int) -> None:
        self._waiting.append(request_id)

    def rulings(self) -> list[Ruling]:
        """On all that waits, in order."""
        waiting, self._waiting = self._waiting, []
        return [ruling for item in waiting if (ruling := self._judge(item)) is not None]

    def _judge(self, item: Work | int) -> Ruling | None:
        if isinstance(item, int):
            if chain := self._open.pop(item, None):
                inline.run(chain, chain.end())
            return None
        chain = self._open.get(item.request_id)
        if chain is None:
            return None
        inline.run(chain, chain.begin(item.piece, item.final))
        ruling = judged(item, chain)
        if chain.over:
            del self._open[item.request_id]
        return ruling


class Bench:
    """A worker without gRPC. What an engine would do by itself, the test does by `step`."""

    hooks_run: ClassVar[Literal["inline", "later"]] = "inline"

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        phase: Phase = "decode",
        judge: Judge | None = None,
        hook: bool | Hook = True,
        forced: LogitsProcessorEntry | None = None,
        spans: LegSpans | None = None,
        parts: PhaseParts | None = None,
        max_held_bytes: int = DEFAULT_BYTES,
        park_seconds: float = 0.0,
        prefixes: PrefixLog | None = None,
        early_reports: float = 0.0,
        **intake: Any,
    ) -> None:
        self.engine = ScriptedEngine()
        self.hook = RecordingHook(judge)
        entry = HookEntry(path="tests.Hook", name="tests.Hook", timeout_ms=60_000)
        runs = self.hook if isinstance(hook, bool) else hook
        self.runner = LoadedHook(runs, entry=entry, phase=phase, model=MODEL)
        chain = Chain([self.runner])
        self.later = LaterHooks(chain) if self.hooks_run == "later" else None
        self.counters = WorkerCounters()
        self.now = 100.0
        self.phase = phase
        parts = parts or PhaseParts(DecodeRules() if phase == "decode" else PrefillRules())
        inline = in_this_process(chain)
        hooks = (self.later or inline) if hook else None
        make_core = partial(
            WorkerCore,
            rules=parts.rules,
            worker="w",
            max_legs=LIMITS.max_sequences,
            hooked=bool(hook),
            budget=ByteBudget(max_held_bytes),
        )
        self.shell = Shell(
            make_core,
            intake=Intake(
                role=Role(phase),
                model=MODEL,
                limits=LIMITS,
                tokenizer=tokenizer,
                reads_text=lambda: bool(hook) or parts.classifiers is not None,
                spent=self.counters.took_in,
                forced=() if forced is None else (forced,),
                park_seconds=park_seconds,
                **intake,
            ),
            engine=self.engine,
            hooks=hooks,
            classifiers=parts.classifiers,
            records=Records(self.counters, spans),
            prefixes=prefixes,
            early_reports=early_reports,
            clock=lambda: self.now,
        )
        self.core = self.shell.core
        _at_once(inline.start(self.shell.on_rulings))
        self.link = self.connect()
        self.said = Said()

    def connect(self) -> RouterLink:
        return self.shell.connect("router")

    def cancel(self, leg: int, reason: str) -> None:
        cancel = worker_pb2.CancelLeg(leg=leg, reason=reason)
        self.shell.command(self.link, worker_pb2.WorkerCommand(cancel=[cancel]))

    def release(self, leg: int) -> None:
        self.shell.command(self.link, worker_pb2.WorkerCommand(release=[leg]))

    def leg(self, request_id: int) -> Leg | None:
        """An open leg."""
        return next((leg for leg in self.core.legs if leg.request_id == request_id), None)

    def start(self, leg: int = 1, *, link: RouterLink | None = None, **fields: Any) -> int:
        """Starts sequence number 100 + leg. Returns its request_id, or 0 where it was refused."""
        before = len(self.engine.submitted)
        command = worker_pb2.WorkerCommand(start=[self.command(leg, **fields)])
        self.shell.command(link or self.link, command)
        accepted = len(self.engine.submitted) > before
        return self.engine.submitted[-1].request_id if accepted else 0

    def command(
        self,
        leg: int,
        *,
        output_index: int = 0,
        hold: bool = False,
        timeout_ms: int = 60_000,
        parent_span: int = 0,
        context_only: bool = False,
        task_digest: bytes = b"",
        to_compute: int | None = None,
        new_blocks: bytes = b"",
        say_made: bool = False,
        say_logprobs: bool = False,
        task: dict[str, Any] | None = None,
        **sampling: Any,
    ) -> worker_pb2.StartLeg:
        fields = {
            "trace_id": TRACE,
            "model": MODEL,
            "prompt_token_ids": range(10, 10 + PROMPT_TOKENS),
            "streaming": True,
            "want_text": True,
            **(task or {}),
        }
        message = common_pb2.Task(
            **fields, sampling=common_pb2.SamplingParams(**SAMPLING | sampling)
        )
        if message.want_token_ids:
            self.said.with_ids.add(100 + leg)
        return worker_pb2.StartLeg(
            leg=leg,
            destination=7,
            sequence=100 + leg,
            output_index=output_index,
            room=1000 + leg,
            kv_peer="127.0.0.1:1",
            timeout_ms=timeout_ms,
            task=message.SerializeToString(),
            hold_output=hold,
            parent_span=parent_span,
            context_only=context_only,
            task_digest=task_digest,
            to_compute=to_compute,
            new_blocks=new_blocks,
            say_made=say_made,
            say_logprobs=say_logprobs,
        )

    def step(self, *deltas: Delta) -> Said:
        self.shell.on_step(self.engine.note(deltas))
        if self.later is not None:
            self.shell.on_rulings(self.later.rulings())
            self.later.rulings()  # what a ruling aborted
        return self.take()

    def settle(self) -> Said:
        """The engine ends what was cancelled."""
        return self.step(*self.engine.settle())

    def take(self) -> Said:
        if self.later is not None:
            self.later.rulings()  # aborts
        self.said.add(taken(self.link))
        return self.said


def recorded_spans(phase: Phase) -> tuple[LegSpans, list[Span]]:
    """What makes a leg's spans, and where they go."""
    spans: list[Span] = []
    tracer = SimpleNamespace(record=spans.append, exported=0, dropped=0)
    return LegSpans(tracer, phase=phase, worker="w"), spans


def _at_once(starting: Coroutine[Any, Any, None]) -> None:
    """Hooks without a `startup` wait for nothing."""
    with suppress(StopIteration):
        starting.send(None)


def delta(request_id: int, token_ids: Sequence[int], end: Ending | None = None) -> Delta:
    return Delta(request_id, token_ids, end)


def with_logprobs(request_id: int, token_ids: Sequence[int], end: Ending | None = None) -> Delta:
    chosen = [-0.5 * token_id for token_id in token_ids]
    top = [[(token_id, -0.5), (0, -9.0)] for token_id in token_ids]
    return Delta(request_id, token_ids, end, Logprobs(chosen, top))


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, special_tokens=False)


def terminate_at(number: int, *, request_id: int = 1) -> Any:
    """Terminates at the given call of one sequence."""
    seen: list[Chunk] = []

    def judge(chunk: Chunk) -> Verdict:
        if chunk.request_id == request_id and not chunk.aborted:
            seen.append(chunk)
            if len(seen) == number:
                return terminate("guard")
        return emit(chunk.text_diff)

    return judge
