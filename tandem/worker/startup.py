"""What a worker does before it can serve: its processors, its engine, the test switch."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol, TypeVar

from tandem.byte_budget import ByteBudget
from tandem.config import export
from tandem.engine import factory, lora, model_files
from tandem.engine.base import EngineDescription, EngineSettings
from tandem.errors import StartError
from tandem.hooks.contract import Phase
from tandem.logits import settings as logits_settings
from tandem.logits.builtin import hello_world
from tandem.logits.forms.workshop import Workshop
from tandem.logits.model import Model
from tandem.logits.registry import Registry
from tandem.logits.spec import LogitsProcessorEntry
from tandem.sockets import is_loopback
from tandem.text.tokenizer import Tokenizer
from tandem.usercode.deadline import WATCH
from tandem.wire.tls import PeerTls
from tandem.worker import kv_events
from tandem.worker.config import WorkerConfig

log = logging.getLogger(__name__)
PROGRESS_SECONDS = 10.0
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Startable(Protocol[T_co]):
    """An Engine, or an EngineFollower."""

    async def start(self) -> T_co: ...


def load_registry(config: WorkerConfig) -> Registry:
    """The logits processors of this deployment. Raises LoadError."""
    processors = logits_settings.parse(config.logits_processors)
    WATCH.install()  # ready-made processors are given a client's arguments too
    return Registry.from_settings(
        processors, seconds=config.logits_timeout_ms / 1000, most=config.max_logits_processors
    )


def engine_settings(
    phase: Phase,
    config: WorkerConfig,
    registry: Registry,
    tls: PeerTls | None = None,
    budget: ByteBudget | None = None,
) -> EngineSettings:
    """Raises ConfigError for an address, or files of LoRA adapters, that cannot be used."""
    return EngineSettings(
        model_path=config.model_path,
        model_name=config.model_name(),
        max_sequences=config.max_sequences,
        host=config.host(phase),
        options=config.engine_options,
        registry=registry,
        nodes=config.engine_nodes(),
        tls=tls,
        connection_limits=config.connection_limits,
        budget=budget,
        form_cache_bytes=config.form_cache_mb * 2**20,
        parking=config.parking_limits(),
        token_processes=config.token_processes,
        lora_adapters=lora.load(
            config.lora_adapters, config.model_path, max_rank=config.max_lora_rank
        ),
    )


def kv_events_of(phase: Phase, config: WorkerConfig) -> kv_events.KvEvents | None:
    """What publishes the events of the phase's KV cache; None: nothing does, as in decode, which
    computes no prompts. Raises StartError.
    """
    settings = kv_events.parse(config.kv_events)
    if settings is None or phase == "decode":
        return None
    topic = f"kv@{config.worker_name(phase)}@{config.model_name()}"
    return kv_events.KvEvents(settings, topic=topic)


def keep_transfer_local(host: str) -> None:
    """Where peers reach this worker on this machine alone, keep UCX and Gloo there too: they would
    listen on every network of the machine, and on that of its name. An operator's own choice stays.
    Before an engine is made.
    """
    if is_loopback(host):
        export({"UCX_NET_DEVICES": "lo", "GLOO_SOCKET_IFNAME": "lo"})


def make_workshop(config: WorkerConfig, settings: EngineSettings) -> Workshop:
    """What compiles the forms that requests ask for. Raises ConfigError."""
    return Workshop(
        factory.plan_forms(config.engine, settings),
        Model(**model_files.processor_facts(config.model_path)),
        config.workshop_limits(),
    )


def forced_entries(
    config: WorkerConfig, registry: Registry, tokenizer: Tokenizer, engine: EngineDescription
) -> tuple[LogitsProcessorEntry, ...]:
    """What every request gets: the deployment's own, then that of the test switch, tokenised once
    (S1-047). Raises StartError.
    """
    always = registry.always()
    if not config.test_logits_processor:
        return always
    switch = hello_world(
        lambda text: tokenizer.encode(text, special_tokens=False), engine.eos_token_ids
    )
    return (*always, switch)


async def start_engine(engine: Startable[T], *, name: str, stop: asyncio.Event) -> T | None:
    """Start the engine and log that it is still at it. None where `stop` came first.

    Raises StartError.
    """
    async with asyncio.TaskGroup() as tasks:
        starting = tasks.create_task(_started_or_error(engine))
        progress = tasks.create_task(_log_progress(name))
        stopped = tasks.create_task(stop.wait())
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for task in (starting, progress, stopped):
            task.cancel()
    if starting.cancelled():
        return None
    result = starting.result()
    if isinstance(result, StartError):
        raise result
    return result


async def _started_or_error(engine: Startable[T]) -> T | StartError:
    """As a value, so that the task group does not wrap it."""
    try:
        return await engine.start()
    except StartError as error:
        return error


async def _log_progress(name: str) -> None:
    began = time.monotonic()
    log.info("starting engine %s", name)
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        log.info("engine %s is starting", name, extra={"seconds": round(time.monotonic() - began)})
