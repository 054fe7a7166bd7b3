"""The shell around the core: it tells what happens and carries out what the core asks for, and
decides nothing.

This is the one boundary of every leg: whatever fails while an effect is carried out is told to the
core as a failure of the leg that it was for, and ends neither another leg nor a stream.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

from tandem.engine.base import Engine, EngineRequest, KvTransfer, Step
from tandem.engine.prefix_log import PrefixLog, PrefixReader
from tandem.errors import EngineError, HookError, InternalError, TandemError
from tandem.hooks.classifiers.classifier_set import Judgement
from tandem.hooks.classifiers.sequence_guard import Question
from tandem.hooks.deferred import DeferredHooks, Ruling, SequenceInfo, Work
from tandem.ids import counter
from tandem.prefix_blocks import unpacked
from tandem.v1 import common_pb2, worker_pb2
from tandem.wire.prompt_chunks import ChunkRoom, ReadChunks
from tandem.worker import slices
from tandem.worker.classifying import Classifying
from tandem.worker.core.effects import Effects
from tandem.worker.core.ledger import Taken
from tandem.worker.core.leg import Leg
from tandem.worker.core.machine import WorkerCore
from tandem.worker.hanging import Hanging
from tandem.worker.intake import Intake
from tandem.worker.kept_tasks import KeptTasks
from tandem.worker.link import RouterLink
from tandem.worker.records import Records
from tandem.worker.reports import Reports

log = logging.getLogger(__name__)


class Shell:
    """Carries between the core and its engine, hooks, classifiers and routers: the core's Effects.
    Lives on the event loop.
    """

    def __init__(
        self,
        make_core: Callable[[Effects], WorkerCore],
        *,
        intake: Intake,
        engine: Engine,
        hooks: DeferredHooks | None,
        classifiers: Classifying | None,
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
        self.core = core = make_core(self)
        core.taken(clock())  # the worker's time begins
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
        self._told: list[Callable[[], None]] = []
        self._carrying = False
        self._moved_kv = False
        self.idle = asyncio.Event()
        """No leg is open."""
        self.idle.set()

    def __len__(self) -> int:
        """How many legs are open."""
        return len(self.core)

    def taken(self) -> Taken:
        """What each tenant has taken of the worker."""
        return self.core.taken(self._clock())

    def look_for_hanging(self, hanging: Hanging) -> None:
        """Say which hand-overs hang, if it is time to."""
        hanging.look(self._clock(), self.core.legs)

    # --- what happens ----------------------------------------------------------------------------

    def connect(self, peer: str) -> RouterLink:
        """A router's stream is open. Give it back with `disconnect`."""
        number = self._new_link()
        reader = None if self._prefixes is None else self._prefixes.reader()
        self.tell(partial(self.core.link_up, number))
        link = RouterLink(
            number=number,
            peer=peer,
            outgoing=self.core.outgoing(number),
            load=partial(self._load_for, reader),
            chunks=ReadChunks(self._chunk_room),
            unsendable=lambda to, sequence: self.tell(
                partial(self.core.unsendable, number, to, sequence)
            ),
        )
        self._links[number] = link
        self._tasks[number] = KeptTasks(self._intake, self.core.budget)
        return link

    def disconnect(self, link: RouterLink) -> int:
        """The stream is gone. Returns how many legs that ends."""
        del self._links[link.number]
        self._tasks.pop(link.number).close()
        link.chunks.close()
        count = sum(leg.link == link.number for leg in self.core.legs)
        self.tell(partial(self.core.link_down, link.number))
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
            *(partial(self.core.release, link, leg) for leg in command.release),
            *(partial(self.core.cancel, link, each.leg, each.reason) for each in command.cancel),
        )
        tasks.forget(command.forget)

    def _read(
        self, link: int, tasks: KeptTasks, command: worker_pb2.StartLeg
    ) -> Callable[[], None]:
        try:
            return partial(self.core.start, self._intake.accept(link, command, tasks.of(command)))
        except Exception as error:  # noqa: BLE001 - of the request's own data
            refusal = _as_ours(error, InternalError("this task cannot be read"))
            return partial(self.core.unreadable, link, command, refusal)

    def on_step(self, step: Step) -> None:
        """Act on what a step of the engine brought."""
        began, before = self._clock(), self.core.tokens
        self._told.append(partial(self.core.stepped, step))
        if not self._carrying:
            self._go_on(began)
        self._records.counters.step(self.core.tokens - before, self._clock() - began)

    def on_rulings(self, rulings: Sequence[Ruling]) -> None:
        """What hooks made of earlier steps."""
        self.tell(partial(self.core.ruled, rulings))

    def on_judgement(self, request_id: int, judgement: Judgement) -> None:
        """What classifiers made of an output."""
        assert self._classifiers is not None
        try:
            scores = self._classifiers.record(request_id, judgement)
        except Exception as error:  # noqa: BLE001 - the leg fails closed, and no other
            self._judge_failed(error, request_id)
        else:
            self.tell(partial(self.core.judged, request_id, judgement, scores))

    def tell(self, *happened: Callable[[], None]) -> None:
        """Have calls of the core made, and carry out what follows. What happens while an effect is
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
                for effect in self.core.handle(now, batch):
                    try:
                        effect()
                    except Exception:
                        log.exception("the worker could not %s", effect.func.__name__)
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
        load.open_legs = len(self.core)
        load.prompt_tokens = sum(leg.to_compute for leg in self.core.legs)
        load.draining = self.core.draining
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

    def begin(
        self,
        request: EngineRequest,
        task: common_pb2.Task,
        command: worker_pb2.StartLeg,
        info: SequenceInfo,
        to_compute: int,
        judged: bool,
    ) -> None:
        self.idle.clear()
        began = time.thread_time()
        try:
            self._engine.submit(request)
            self._records.submitted(request.request_id, command, time.thread_time() - began)
            self._reports.began(request.request_id, to_compute, unpacked(command.new_blocks))
        except Exception as error:  # noqa: BLE001 - of a request's own data
            refusal = _as_ours(error, EngineError("the engine cannot take this request"))
            self.tell(partial(self.core.not_begun, request.request_id, command, refusal))
            return
        if not judged:
            return
        try:
            if self._hooks is not None:
                self._hooks.open(info)
            if self._classifiers is not None:
                self._classifiers.open(request, task, output_index=info.output_index)
        except Exception as error:  # noqa: BLE001 - the engine has it: the leg fails closed
            self._judge_failed(error, request.request_id)

    def cancel_engine(self, request_id: int) -> None:
        try:
            self._engine.cancel(request_id)
        except Exception:
            log.exception("the engine could not cancel a request")
            self.tell(partial(self.core.not_cancelled, request_id))

    def judge_by_hooks(self, works: Sequence[Work]) -> None:
        assert self._hooks is not None
        try:
            self._hooks.submit(works)
        except Exception as error:  # noqa: BLE001 - of user code
            self._judge_failed(error, *(work.request_id for work in works))

    def wait_turn(self, request_id: int) -> None:
        asyncio.get_running_loop().call_soon(self.tell, partial(self.core.play_on, request_id))

    def ask_classifiers(self, request_id: int, question: Question, finish_reason: str) -> None:
        assert self._classifiers is not None
        try:
            self._classifiers.ask(request_id, question, finish_reason=finish_reason)
        except Exception as error:  # noqa: BLE001 - of user code
            self._judge_failed(error, request_id)

    def stop_judging(self, request_id: int) -> None:
        try:
            if self._classifiers is not None:
                self._classifiers.over(request_id)
        finally:
            if self._hooks is not None:
                self._hooks.abort(request_id)

    def send(self, link: int) -> None:
        if found := self._links.get(link):
            found.outbox.notify()

    def give_up(self, link: int, reason: str) -> None:
        if found := self._links.get(link):
            found.give_up(reason)

    def count_transfer(self, kv: KvTransfer, trace_id: str) -> None:
        self._records.counters.kv(kv, trace_id=trace_id)

    def leg_closed(self, leg: Leg, at: float) -> None:
        self._over()
        self._reports.ended(leg.request_id, leg.to_compute)
        self._records.closed(leg, at)

    def leg_refused(
        self, link: int, command: worker_pb2.StartLeg, error: TandemError, at: float
    ) -> None:
        self._over()
        stream, tasks = self._links.get(link), self._tasks.get(link)
        self._records.refused(
            command,
            error,
            at,
            peer="" if stream is None else stream.peer,
            trace_id=None if tasks is None else tasks.trace_id(command),
        )

    def _over(self) -> None:
        """A leg is, or never was."""
        if not len(self.core):
            self.idle.set()

    def _judge_failed(self, error: Exception, *request_ids: int) -> None:
        """Each leg fails closed, and no other."""
        failure = _as_ours(error, HookError("the output could not be judged"))
        self.tell(*(partial(self.core.judge_failed, each, failure) for each in request_ids))


def _as_ours(error: Exception, otherwise: TandemError) -> TandemError:
    """A TandemError says all that is to be said; of another error only the log says where."""
    if isinstance(error, TandemError):
        return error
    otherwise.__cause__ = error
    return otherwise
