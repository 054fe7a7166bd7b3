"""Has forms compiled by processes that may be killed, each form once, and keeps what came of them.

It knows no engine: `FormPlan` says what compiles, and whether what came out is used in this
process.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, Generic, Protocol, TypeVar

from tandem.errors import EngineError, InvalidRequestError, QueueFullError, TandemError
from tandem.histogram import Histogram
from tandem.logits.forms.compiler import Kind
from tandem.logits.forms.wire import (
    MAX_MESSAGE_BYTES,
    PROGRAM,
    Answer,
    Compiled,
    CompileOrder,
    CompilerBoot,
    TooDear,
    Wrong,
    answers,
    encoder,
)
from tandem.logits.model import Model
from tandem.logits.processor import LogitsProcessor
from tandem.metrics import REQUEST_SECONDS
from tandem.pool.pool import Pool, PooledProcess, PoolLimits
from tandem.pool.process import LostError
from tandem.pool.turns import PlaceInLine
from tandem.tasks import Tasks

log = logging.getLogger(__name__)
MAX_WAITING: Final = 64
"""Forms that wait to be compiled, of all keys."""
MARGIN_SECONDS: Final = 5.0
"""Beyond a form's own time, until the process itself counts as hung."""
_FULL: Final = f"{MAX_WAITING} forms wait to be compiled already"
_REMEMBERED: Final = 1024
"""Refused forms that the workshop remembers."""
_STACK_BYTES: Final = 16 * 1024 * 1024
"""For the thread that makes matchers: four times what a form may need."""
OUTCOMES: Final = ("compiled", "wrong", "too_dear", "lost")


class Uncompiled(Protocol):
    """A form that was not compiled yet: tandem.logits.ready.form.Form."""

    shortest: int | None

    @property
    def kind(self) -> Kind: ...
    @property
    def source(self) -> str: ...
    def use(self, compiled: bytes, model: Model) -> None: ...
    def keep(self, compiled: bytes) -> None: ...
    def fresh(self) -> LogitsProcessor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FormPlan:
    """How an engine's forms are compiled."""

    compiler: str
    """The class, "module:Class"."""
    arguments: Mapping[str, Any]
    """The compiler's arguments: plain values."""
    used_here: frozenset[Kind]
    """Kinds that this process itself runs; the others go to the engine."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the compiler's libraries read."""
    eager: bool = False
    """Start the processes with the worker: they take long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkshopLimits:
    """What compiling forms may take."""

    processes: int = 1
    cpu_seconds: int = 2
    seconds: float = 30.0
    memory_bytes: int = 256 * 2**20
    cache_bytes: int = 512 * 2**20
    start_seconds: float = 300.0


class _Job:
    """A form that is being compiled, or waits for it."""

    __slots__ = ("done", "form", "key", "turn", "waiters")

    def __init__(self, key: str, form: Uncompiled, turn: PlaceInLine) -> None:
        self.key = key
        self.form = form
        self.turn = turn
        self.waiters = 0
        self.done: asyncio.Future[Uncompiled] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(lambda done: done.cancelled() or done.exception())


class Workshop:
    """Lives on the event loop, where nothing of it takes long."""

    def __init__(self, plan: FormPlan, model: Model, limits: WorkshopLimits) -> None:
        self._plan = plan
        self._model = model
        self._processes = limits.processes
        self._boot = CompilerBoot(
            compiler=plan.compiler,
            arguments=dict(plan.arguments),
            import_path=sys.path,
            cpu_seconds=limits.cpu_seconds,
            memory_bytes=limits.memory_bytes,
            seconds=limits.seconds,
        )
        self._pool: Pool[Answer] = Pool(
            PROGRAM,
            encoder.encode,
            answers,
            PoolLimits(
                seconds=limits.seconds + MARGIN_SECONDS,
                start_seconds=limits.start_seconds,
                message_bytes=MAX_MESSAGE_BYTES,
                most_waiting=MAX_WAITING,
                full=_FULL,
            ),
            processes=limits.processes,
            environment=plan.environment,
        )
        self._jobs: dict[str, _Job] = {}
        self._tasks = Tasks()
        self._starting: list[asyncio.Task[None]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="forms")
        self._refused: OrderedDict[str, str] = OrderedDict()
        self.cache: FormCache[Uncompiled] = FormCache(limits.cache_bytes)
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.hits = 0
        """Sequences that found their form compiled or refused."""
        self.misses = 0
        self.seconds = Histogram(REQUEST_SECONDS)
        """From the order to the end of each compilation."""

    @property
    def waiting(self) -> int:
        """Forms that wait for a process."""
        return self._pool.turns.waiting

    def is_compiling(self, key: str) -> bool:
        """Whether a process has this form now."""
        job = self._jobs.get(key)
        return job is not None and not self._pool.turns.is_waiting(job.turn)

    def start(self) -> None:
        """Start the processes now, where the plan says so; else with the first form."""
        if self._plan.eager:
            turns = [self._pool.turns.line_up("") for _ in range(self._processes)]
            self._starting = [self._tasks.start(self._start(turn), name="forms") for turn in turns]

    async def started(self) -> None:
        """Until the processes that `start` began stand, or could not be had."""
        await asyncio.gather(*self._starting)

    def known(self, key: str) -> Uncompiled | None:
        """What came of a form, if that is known. Raises InvalidRequestError where it was
        refused.
        """
        hit = key in self._refused or self.cache.get(key) is not None
        self.hits += hit
        self.misses += not hit
        return self._known(key)

    async def compiled(
        self, key: str, make: Callable[[], Uncompiled], tenant: str = ""
    ) -> Uncompiled:
        """`make` is called where nobody asked for the form yet. `tenant`: the client's key.

        Raises InvalidRequestError for a form that has an error or is too dear; QueueFullError where
        too much waits or is in use; EngineError where no process can compile it.
        """
        if (known := self._known(key)) is not None:
            return known
        job = self._jobs.get(key) or self._ordered(key, make, tenant)
        turns = self._pool.turns
        turns.favour(job.turn, tenant)
        job.waiters += 1
        try:
            return await asyncio.shield(job.done)
        finally:
            job.waiters -= 1
            if not job.waiters and turns.is_waiting(job.turn):
                turns.leave(job.turn)
                self._jobs.pop(job.key, None)

    def _known(self, key: str) -> Uncompiled | None:
        if (message := self._refused.get(key)) is not None:
            raise InvalidRequestError(message)
        return self.cache.get(key)

    def _ordered(self, key: str, make: Callable[[], Uncompiled], tenant: str) -> _Job:
        self._pool.turns.check_room(tenant)
        try:
            form = make()
        except InvalidRequestError as error:
            self.outcomes["wrong"] += 1
            self._refuse(key, error.message)
            raise
        job = self._jobs[key] = _Job(key, form, self._pool.turns.line_up(tenant))
        self._tasks.start(self._compile(job), name="forms")
        return job

    async def close(self) -> None:
        """Kill the processes. What waits is failed."""
        await self._tasks.close()
        await self._pool.close()
        for job in list(self._jobs.values()):
            self._finish(job, "lost", EngineError("the worker is shutting down"))
        self._thread.shutdown(wait=False, cancel_futures=True)

    # --- the processes ---------------------------------------------------------------------------

    async def _start(self, turn: PlaceInLine) -> None:
        """Start a process before it is asked for."""
        async with self._pool.process(turn) as process:
            try:
                await process.ready(self._boot)
            except LostError as error:
                log.error("forms cannot be compiled yet", extra={"reason": str(error)})

    async def _compile(self, job: _Job) -> None:
        try:
            async with self._pool.process(job.turn) as process:
                await self._compile_by(process, job)
        except QueueFullError as error:  # another key's form has its place
            self._end(job, error)

    async def _compile_by(self, process: PooledProcess[Answer], job: _Job) -> None:
        began = monotonic()
        try:
            answer = await process.ask(CompileOrder(job.form.kind, job.form.source), self._boot)
            outcome, result = await self._judged(job, answer)
        except asyncio.CancelledError:
            self._finish(job, "lost", EngineError("the worker is shutting down"))
            raise
        except Exception as error:
            # Whatever it is, the next form is compiled.
            unexpected = None if isinstance(error, LostError) else error
            log.error(
                "a form could not be compiled", extra={"reason": str(error)}, exc_info=unexpected
            )
            outcome, result = "lost", EngineError("this form could not be compiled here")
        self.seconds.observe(monotonic() - began)
        self._finish(job, outcome, result)

    async def _judged(self, job: _Job, answer: Answer) -> tuple[str, Uncompiled | TandemError]:
        match answer:
            case Compiled(compiled, size, shortest):
                job.form.shortest = shortest
                return await self._kept(job, compiled, size)
            case Wrong(message):
                return "wrong", self._refuse(job.key, message)
            case TooDear(message, lasting):
                sizes = f"{job.form.kind}: {len(job.form.source)} characters"
                log.warning("a form is too dear", extra={"reason": message, "sizes": sizes})
                told = f"this form is too dear: {message}"
                refused = self._refuse(job.key, told) if lasting else InvalidRequestError(told)
                return "too_dear", refused

    async def _kept(
        self, job: _Job, compiled: bytes, size: int
    ) -> tuple[str, Uncompiled | TandemError]:
        if not self.cache.make_room(size):
            return "too_dear", QueueFullError("the forms in use fill the memory for them")
        form = job.form
        if form.kind in self._plan.used_here:
            try:
                await self._in_thread(lambda: form.use(compiled, self._model))
            except ValueError as error:
                return "wrong", self._refuse(job.key, str(error))
        else:
            form.keep(compiled)
        self.cache.put(job.key, form, size)
        return "compiled", form

    async def _in_thread(self, function: Callable[[], None]) -> None:
        usual = threading.stack_size(_STACK_BYTES)
        try:
            done = asyncio.get_running_loop().run_in_executor(self._thread, function)
        finally:
            threading.stack_size(usual)
        await done

    def _refuse(self, key: str, message: str) -> InvalidRequestError:
        """Remember the refusal, so that the same form costs nothing again."""
        self._refused[key] = message
        while len(self._refused) > _REMEMBERED:
            self._refused.popitem(last=False)
        return InvalidRequestError(message)

    def _finish(self, job: _Job, outcome: str, result: Uncompiled | TandemError) -> None:
        self.outcomes[outcome] += 1
        self._end(job, result)

    def _end(self, job: _Job, result: Uncompiled | TandemError) -> None:
        self._jobs.pop(job.key, None)
        if job.done.done():
            return
        if isinstance(result, TandemError):
            job.done.set_exception(result)
        else:
            job.done.set_result(result)


T = TypeVar("T")


class FormCache(Generic[T]):
    """The least recently used goes first. What sequences still use counts until they let go of it,
    also when it is not kept here any more.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self.used_bytes = 0
        """What all that is kept here, or in use, takes."""

    def get(self, key: str) -> T | None:
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def make_room(self, size: int) -> bool:
        """Whether so many bytes fit, now that as many were let go as can be."""
        while self._kept and self.used_bytes + size > self._max_bytes:
            self._kept.popitem(last=False)
        return self.used_bytes + size <= self._max_bytes

    def put(self, key: str, value: T, size: int) -> None:
        """Keep a compiled form. The cache must have room."""
        self.used_bytes += size
        weakref.finalize(value, self._let_go, size)
        self._kept[key] = (value, size)

    def __len__(self) -> int:
        return len(self._kept)

    def _let_go(self, size: int) -> None:
        self.used_bytes -= size
