"""The shell around the core: it gives events and carries out actions, and decides nothing.

This is the one boundary of every leg: whatever fails while an action is carried out becomes an
event of the leg that it was for, and ends neither another leg nor a stream.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

from tandem.engine.base import Engine, Step
from tandem.engine.prefix_log import PrefixLog, PrefixReader
from tandem.errors import EngineError, HookError, InternalError, TandemError
from tandem.hooks.classifiers.classifier_set import Judgement
from tandem.hooks.deferred import DeferredHooks, Ruling
from tandem.ids import counter
from tandem.prefix_blocks import unpacked
from tandem.v1 import worker_pb2
from tandem.wire.prompt_chunks import ChunkRoom, ReadChunks
from tandem.worker import slices
from tandem.worker.core import actions, events
from tandem.worker.core.actions import Action
from tandem.worker.core.events import Event
from tandem.worker.core.machine import Core
from tandem.worker.hanging import Hanging
from tandem.worker.intake import Intake
from tandem.worker.kept_tasks import KeptTasks
from tandem.worker.link import RouterLink
from tandem.worker.phase import Classifiers
from tandem.worker.records import Records
from tandem.worker.reports import Reports

log = logging.getLogger(__name__)


class Shell:
    """Carries between the core and its engine, hooks, classifiers and routers. Lives on the event
    loop.
    """

    def __init__(
        self,
        core: Core,
        *,
        intake: Intake,
        engine: Engine,
        hooks: DeferredHooks | None,
        classifiers: Classifiers | None,
        records: Records,
        prefixes: PrefixLog | None = None,
        early_reports: float = 0.0,
        chunk_room: ChunkRoom | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`prefixes`: what the engine's prefix cache holds; None: routers are not told of it.
        `early_reports`: the most a second beside the regular ones. `chunk_room`: for what prompts
        of the routers' streams begin with; None: prompts travel whole.
        """
        self._core = core
        self._intake = intake
        self._engine = engine
        self._hooks = hooks
        self._classifiers = classifiers
        self._records = records
        self._prefixes = prefixes
        self._chunk_room = chunk_room or ChunkRoom(0)
        self._clock = clock
        self._reports = Reports(
            self._send_load,
            slots=core.max_legs,
            early_a_second=early_reports,
            prefixes=prefixes,
            clock=clock,
            later=lambda seconds, call: asyncio.get_running_loop().call_later(seconds, call),
        )
        self._links: dict[int, RouterLink] = {}
        self._tasks: dict[int, KeptTasks] = {}
        self._new_link = counter()
        self._told: list[Event] = []
        self._carrying = False
        self._moved_kv = False
        self.idle = asyncio.Event()
        """No leg is open."""
        self.idle.set()
        self._carriers: dict[type[Any], Callable[[Any], None]] = {
            actions.Begin: self._begin,
            actions.CancelEngine: self._cancel_engine,
            actions.JudgeByHooks: self._judge,
            actions.WaitTurn: self._play_on,
            actions.AskClassifiers: self._ask,
            actions.StopJudging: self._stop_judging,
            actions.Send: self._send,
            actions.GiveUp: self._give_up,
            actions.CountTransfer: self._count_transfer,
            actions.LegClosed: self._closed,
            actions.LegRefused: self._refused,
        }

    def __len__(self) -> int:
        """How many legs are open."""
        return len(self._core)

    def look_for_hanging(self, hanging: Hanging) -> None:
        """Say which hand-overs hang, if it is time to."""
        hanging.look(self._clock(), self._core.legs)

    # --- what happens ----------------------------------------------------------------------------

    def connect(self, peer: str) -> RouterLink:
        """A router's stream is open. Give it back with `disconnect`."""
        number = self._new_link()
        reader = None if self._prefixes is None else self._prefixes.reader()
        self.tell(events.LinkUp(number))
        link = RouterLink(
            number=number,
            peer=peer,
            outgoing=self._core.outgoing(number),
            load=partial(self._load_for, reader),
            chunks=ReadChunks(self._chunk_room),
            unsendable=lambda to, sequence: self.tell(events.Unsendable(number, to, sequence)),
        )
        self._links[number] = link
        self._tasks[number] = KeptTasks(self._intake, self._core.budget)
        return link

    def disconnect(self, link: RouterLink) -> int:
        """The stream is gone. Returns how many legs that ends."""
        del self._links[link.number]
        self._tasks.pop(link.number).close()
        link.chunks.close()
        count = sum(leg.link == link.number for leg in self._core.legs)
        self.tell(events.LinkDown(link.number))
        return count

    async def take(self, link: RouterLink, command: worker_pb2.WorkerCommand) -> None:
        """Act on what a router says, in parts where it is much. What is large is read first, beside
        the event loop. What the router says next waits for that. Raises DecodeError where a prompt
        is not known by the name that it has.
        """
        if slices.is_too_long(command):
            link.give_up(f"more than {slices.MOST_NUMBERS} of a kind in one command")
            return
        link.chunks.complete(chain(command.keep, command.start))
        tasks = self._tasks[link.number]
        for keep in slices.kept(command):
            tasks.keep(keep)
            await asyncio.sleep(0)
        sizes = [tasks.size(start.kept_task) for start in command.start]
        for part in slices.slices(command, sizes):
            for start in part.start:
                await tasks.read_ahead(start)
            self._act(link.number, tasks, part)
            if part is not command:
                await asyncio.sleep(0)

    def command(self, link: RouterLink, command: worker_pb2.WorkerCommand) -> None:
        """Act on what a router says, in one go. Raises DecodeError, as `take` does."""
        link.chunks.complete(chain(command.keep, command.start))
        tasks = self._tasks[link.number]
        tasks.keep(command.keep)
        self._act(link.number, tasks, command)

    def _act(self, link: int, tasks: KeptTasks, command: worker_pb2.WorkerCommand) -> None:
        self.tell(
            *(self._read(link, tasks, start) for start in command.start),
            *(events.Release(link, leg) for leg in command.release),
            *(events.Cancel(link, cancel.leg, cancel.reason) for cancel in command.cancel),
        )
        tasks.forget(command.forget)

    def _read(self, link: int, tasks: KeptTasks, command: worker_pb2.StartLeg) -> Event:
        try:
            return self._intake.accept(link, command, tasks.of(command))
        except Exception as error:  # noqa: BLE001 - of the request's own data
            refusal = _as_ours(error, InternalError("this task cannot be read"))
            return events.Unreadable(link, command, refusal)

    def on_step(self, step: Step) -> None:
        """Act on what a step of the engine brought."""
        began, before = self._clock(), self._core.tokens
        self._told.append(events.Stepped(step))
        if not self._carrying:
            self._go_on(began)
        self._records.counters.step(self._core.tokens - before, self._clock() - began)

    def on_rulings(self, rulings: Sequence[Ruling]) -> None:
        """What hooks made of earlier steps."""
        self.tell(events.Ruled(rulings))

    def on_judgement(self, request_id: int, judgement: Judgement) -> None:
        """What classifiers made of an output."""
        assert self._classifiers is not None
        try:
            scores = self._classifiers.record(request_id, judgement)
        except Exception as error:  # noqa: BLE001 - the leg fails closed, and no other
            self.tell(events.JudgeFailed(request_id, _hook_error(error)))
        else:
            self.tell(events.Judged(request_id, judgement, scores))

    def tell(self, *happened: Event) -> None:
        """Give events to the core and carry out what follows. What happens while an action is
        carried out follows after it.
        """
        self._told += happened
        if not self._carrying:
            self._go_on(self._clock())

    def _go_on(self, now: float) -> None:
        self._carrying = True
        try:
            while self._told:
                batch, self._told = self._told, []
                for action in self._core.handle(now, batch):
                    self._carry_out(action)
                if self._told:
                    now = self._clock()
        finally:
            self._carrying = False

    def proved(self) -> None:
        """A router says that KV has moved to or from this worker. All of them are to know."""
        if not self._moved_kv:
            self._moved_kv = True
            self.report_load()

    def report_load(self) -> None:
        """Tell every router what this worker carries."""
        self._reports.tell()

    def flush(self) -> None:
        """End every stream once what waits on it was sent."""
        for link in self._links.values():
            link.outbox.close()

    def load(self) -> worker_pb2.Load:
        """What this worker carries now."""
        load = self._engine.load()
        load.open_legs = len(self._core)
        load.prompt_tokens = sum(leg.to_compute for leg in self._core.legs)
        load.draining = self._core.draining
        load.moved_kv = self._moved_kv
        return load

    def _load_for(self, reader: PrefixReader | None) -> worker_pb2.Load:
        """With what a router does not know yet of the engine's prefix cache."""
        load = self.load()
        if reader is not None:
            load.cache.CopyFrom(reader.take())
        return load

    def _send_load(self) -> None:
        for link in self._links.values():
            link.report_load()

    # --- what is to be done ----------------------------------------------------------------------

    def _carry_out(self, action: Action) -> None:
        try:
            self._carriers[type(action)](action)
        except Exception as error:  # noqa: BLE001 - of user code, or of a request's own data
            self._failed(action, error)

    def _failed(self, action: Action, error: Exception) -> None:
        match action:
            case actions.Begin(request, _, command):
                refusal = _as_ours(error, EngineError("the engine cannot take this request"))
                self._told.append(events.NotBegun(request.request_id, command, refusal))
            case actions.JudgeByHooks(works):
                self._told += [
                    events.JudgeFailed(work.request_id, _hook_error(error)) for work in works
                ]
            case actions.AskClassifiers(request_id):
                self._told.append(events.JudgeFailed(request_id, _hook_error(error)))
            case actions.CancelEngine(request_id):
                log.error("the engine could not cancel a request", exc_info=error)
                self._told.append(events.NotCancelled(request_id))
            case _:
                log.error(
                    "the worker could not carry out %s", type(action).__name__, exc_info=error
                )

    def _begin(self, action: actions.Begin) -> None:
        request, info = action.request, action.info
        self.idle.clear()
        began = time.thread_time()
        self._engine.submit(request)
        self._records.submitted(action, time.thread_time() - began)
        blocks = unpacked(action.command.new_blocks)
        self._reports.began(request.request_id, action.to_compute, blocks)
        if not action.judged:
            return
        try:
            if self._hooks is not None:
                self._hooks.open(info)
            if self._classifiers is not None:
                self._classifiers.open(request, action.task, output_index=info.output_index)
        except Exception as error:  # noqa: BLE001 - the engine has it: the leg fails closed
            self._told.append(events.JudgeFailed(request.request_id, _hook_error(error)))

    def _closed(self, action: actions.LegClosed) -> None:
        self._over()
        self._reports.ended(action.leg.request_id, action.leg.to_compute)
        self._records.closed(action)

    def _cancel_engine(self, action: actions.CancelEngine) -> None:
        self._engine.cancel(action.request_id)

    def _judge(self, action: actions.JudgeByHooks) -> None:
        assert self._hooks is not None
        self._hooks.submit(action.works)

    def _play_on(self, action: actions.WaitTurn) -> None:
        happened = events.PlayOn(action.request_id)
        asyncio.get_running_loop().call_soon(self.tell, happened)

    def _ask(self, action: actions.AskClassifiers) -> None:
        assert self._classifiers is not None
        self._classifiers.ask(
            action.request_id, action.question, finish_reason=action.finish_reason
        )

    def _stop_judging(self, action: actions.StopJudging) -> None:
        try:
            if self._classifiers is not None:
                self._classifiers.over(action.request_id)
        finally:
            if self._hooks is not None:
                self._hooks.abort(action.request_id)

    def _send(self, action: actions.Send) -> None:
        if link := self._links.get(action.link):
            link.outbox.notify()

    def _give_up(self, action: actions.GiveUp) -> None:
        if link := self._links.get(action.link):
            link.give_up(action.reason)

    def _count_transfer(self, action: actions.CountTransfer) -> None:
        self._records.counters.kv(action.kv, trace_id=action.trace_id)

    def _over(self) -> None:
        """A leg is, or never was."""
        if not len(self._core):
            self.idle.set()

    def _refused(self, action: actions.LegRefused) -> None:
        self._over()
        link = self._links.get(action.link)
        tasks = self._tasks.get(action.link)
        self._records.refused(
            action,
            peer="" if link is None else link.peer,
            trace_id=None if tasks is None else tasks.trace_id(action.command),
        )


def _as_ours(error: Exception, otherwise: TandemError) -> TandemError:
    """A TandemError says all that is to be said; of another error only the log says where."""
    if isinstance(error, TandemError):
        return error
    otherwise.__cause__ = error
    return otherwise


def _hook_error(error: Exception) -> TandemError:
    return _as_ours(error, HookError("the output could not be judged"))
