"""The sim engine: one phase of a simulated model behind the seam of tandem.engine.base."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tandem import ids
from tandem.engine import kv_tag, lora, model_files, request_checks
from tandem.engine.base import (
    EngineDescription,
    EngineFigures,
    EngineRequest,
    EngineSettings,
    Role,
    Step,
    load_of,
)
from tandem.engine.kv_tag import KvCheck
from tandem.engine.mailbox import Mailbox
from tandem.engine.parking import Parking
from tandem.errors import EngineError
from tandem.logits import state
from tandem.logits.model import Model
from tandem.tasks import Tasks
from tandem.v1 import common_pb2, worker_pb2
from tandem_sim import validation
from tandem_sim.faults import Fault, Faults
from tandem_sim.handover import Handover
from tandem_sim.kv_pool import KvPool
from tandem_sim.language import Language
from tandem_sim.model import SimModel
from tandem_sim.options import SimOptions, parse
from tandem_sim.prefix_cache import PrefixCache
from tandem_sim.runners import Troubles
from tandem_sim.scheduler import Scheduler

PROTOCOL_VERSION = 2
ENGINE_VERSION = "1"
_FAULT_PREFIX = "fault_"
_MOST_TOKENS = 4 * 1024 * 1024  # of a pool whose size is not set


class SimEngine:
    """See docs/sim-engine.md. Its options are those of SimOptions, and of Faults after "fault_"."""

    def __init__(self, role: Role, settings: EngineSettings) -> None:
        """Raises ConfigError for an option that is unknown or does not fit."""
        given = settings.options
        fault_options = {n: v for n, v in given.items() if n.startswith(_FAULT_PREFIX)}
        own = {n: v for n, v in given.items() if n not in fault_options}
        self._options = parse(SimOptions, own)
        self._troubles = Troubles(parse(Faults, fault_options, prefix=_FAULT_PREFIX))
        self._role = role
        self._settings = settings
        self._mailbox = Mailbox()
        self._tasks = Tasks(self._crashed)
        self._next_index = ids.counter()
        self._started: _Started | None = None
        self._closed = False

    async def start(self) -> EngineDescription:
        """Raises StartError, which says what to do."""
        started = self._started = self._build()
        endpoint = await started.handover.start(self._settings.host)
        started.scheduler.start(self._tasks)
        return EngineDescription(
            fingerprint=self._fingerprint(),
            limits=started.limits,
            kv_endpoint=endpoint,
            parks=self._role is Role.PREFILL,
            eos_token_ids=started.eos,
            prefixes=None if self._role is Role.DECODE else started.model.cache.log,
        )

    def submit(self, request: EngineRequest) -> None:
        """Raises RequestError, ParkingFullError, and EngineError once closed."""
        if self._closed:
            raise EngineError("the engine is closed", phase=self._role.phase)
        started = self._running
        if started.scheduler.is_open(request.request_id, request.room):
            request_checks.refuse_open(request, self._role)
        sequence = validation.checked(
            request,
            role=self._role,
            language=started.language,
            pool=started.pool,
            limits=started.limits,
            eos=started.eos,
            registry=self._settings.registry,
            model=started.steered,
            tap=self._settings.tap,
        )
        sequence.faults = self._troubles.chosen(self._next_index())
        if Fault.FAIL in sequence.faults:
            raise EngineError("the request is one that fails", phase=self._role.phase)
        started.scheduler.add(sequence)

    def cancel(self, request_id: int) -> None:
        if self._started is not None:
            self._started.scheduler.cancel(request_id)

    async def hand_on(self, take: Callable[[Step], object]) -> None:
        await self._mailbox.hand_on(take)

    def load(self) -> worker_pb2.Load:
        started = self._started
        if started is None:
            return worker_pb2.Load()
        scheduler = started.scheduler
        return load_of(
            self._role, scheduler.load(), open_legs=len(scheduler), step_age=scheduler.step_age
        )

    def figures(self) -> EngineFigures:
        started = self._started
        return EngineFigures(
            cpu_seconds=0.0 if started is None else started.model.cpu_seconds,
            logits_states=state.alive(),
            open_handovers=self.open_rooms,
            parked=0 if started is None else len(started.parking),
            parked_bytes=0 if started is None else started.parking.bytes,
            retractions=0,
            ranks=() if started is None else (started.scheduler.load(),),
        )

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._tasks.close()
        if self._started is not None:
            await self._started.handover.close()
            self._started.scheduler.close()
        self._mailbox.close()

    @property
    def open_rooms(self) -> int:
        """Hand-overs that are awaited or under way, and pages that are still leased to a peer."""
        return len(self._started.handover) if self._started is not None else 0

    def set_faults(self, **faults: Any) -> None:
        """Replace all fault switches, named as the options without "fault_"; none: no faults.

        They hold for requests submitted from now on; a stall for ever ends. Raises ConfigError.
        """
        self._troubles.set(parse(Faults, faults))

    @property
    def _running(self) -> _Started:
        if self._started is None:
            raise EngineError("the engine was not started", phase=self._role.phase)
        return self._started

    def _build(self) -> _Started:
        path, options = self._settings.model_path, self._options
        limits = worker_pb2.Limits(
            max_sequences=self._settings.max_sequences,
            context_length=options.context_length or model_files.context_length(path),
            vocabulary=model_files.vocabulary(path),
        )
        eos = model_files.eos_token_ids(path)
        language = Language.load(path, vocabulary=limits.vocabulary, eos_token_ids=eos)
        tokens = options.max_total_tokens or min(
            self._settings.max_sequences * limits.context_length, _MOST_TOKENS
        )
        handover = Handover(
            self._role,
            options,
            page_count=max(1, tokens // options.page_size),
            free=self._pages_are_back,
            on_crash=self._crashed,
            settings=self._settings,
        )
        pool = KvPool(
            handover.pages,
            page_size=options.page_size,
            token_bytes=options.kv_bytes_per_token,
            context_length=limits.context_length,
        )
        cache = PrefixCache(options.prefix_cache_tokens)
        layout = kv_tag.number_of(self._fingerprint().SerializeToString(deterministic=True))
        model = SimModel(options, language, pool, cache, layout=layout)
        parking = Parking(self._settings.parking)
        scheduler = Scheduler(
            self._role,
            options,
            max_sequences=self._settings.max_sequences,
            pool=pool,
            model=model,
            handover=handover,
            troubles=self._troubles,
            mailbox=self._mailbox,
            parking=parking,
        )
        steered = Model(**model_files.processor_facts(path))
        self._settings.registry.check_always(steered)
        return _Started(limits, eos, language, pool, model, handover, scheduler, parking, steered)

    def _pages_are_back(self, pages: Sequence[int]) -> None:
        """No peer can write into them any more."""
        started = self._running
        started.pool.release(pages)
        started.scheduler.admit()

    def _fingerprint(self) -> common_pb2.Fingerprint:
        path, options = self._settings.model_path, self._options
        checked = KvCheck.BYTES if self._role is Role.AGGREGATED else options.kv_check
        return common_pb2.Fingerprint(
            model=self._settings.model_name,
            revision=model_files.revision(path),
            engine="sim",
            engine_version=ENGINE_VERSION,
            dtype="float32",
            page_size=options.page_size,
            kv_dtype=f"bytes{options.kv_bytes_per_token}",
            kv_layout="token",
            tensor_parallel=1,
            tokenizer_sha256=model_files.tokenizer_sha256(path),
            protocol_version=PROTOCOL_VERSION,
            lora_sha256=lora.digest(self._settings.lora_adapters),
            kv_beside="" if checked is KvCheck.BYTES else f"kv_check={checked}",
        )

    def _crashed(self, error: BaseException) -> None:
        self._mailbox.fail(EngineError(f"the sim engine died: {type(error).__name__}"))


@dataclass(slots=True, frozen=True, eq=False)
class _Started:
    """The parts that exist once the model's folder was read."""

    limits: worker_pb2.Limits
    eos: frozenset[int]
    language: Language
    pool: KvPool
    model: SimModel
    handover: Handover
    scheduler: Scheduler
    parking: Parking
    steered: Model
    """As logits processors know it."""
