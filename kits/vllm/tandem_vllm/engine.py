"""vLLM behind the engine protocol, in either phase or with both in one process.

Here it is started, warmed up and stopped; its requests are in traffic.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack

from tandem import config
from tandem.engine import kv_tag, lora, model_files
from tandem.engine.base import (
    EngineDescription,
    EngineFigures,
    EngineRequest,
    EngineSettings,
    Role,
    Step,
    load_of,
)
from tandem.engine.cache_events import CacheSubscription
from tandem.engine.kv_tag import KvCheck
from tandem.errors import ConfigError, EngineError, StartError
from tandem.free_ports import FreePorts
from tandem.logits.model import Model
from tandem.v1 import common_pb2, worker_pb2
from tandem_vllm import arguments, requests, settle, validation, warm_up
from tandem_vllm import options as engine_options
from tandem_vllm.launch import Launched, VllmThread
from tandem_vllm.notes import NoteReader
from tandem_vllm.options import ModelRunner
from tandem_vllm.pull_client import PullClient
from tandem_vllm.pull_server import PullServer
from tandem_vllm.traffic import Traffic

PROTOCOL_VERSION = 1
"""The version of proto/tandem/v1 that this worker speaks."""
_KV_LAYOUTS = {ModelRunner.V1: "nixl-pull", ModelRunner.V2: "nixl-pull-v2"}
"""Pages as vLLM's NIXL connector registers them, which compares the rest by itself. A pair has one
runner: of one seed the two draw different tokens.
"""
_CANNOT_RESUME = {ModelRunner.V1: frozenset({"seed"}), ModelRunner.V2: frozenset()}
"""V1 draws a request's tokens from one sequence of numbers, which begins anew. V2 draws each by the
seed and the token's place.
"""


class VllmEngine:
    """See tandem.engine.base.Engine. SIGTERM and SIGINT stay the worker's."""

    def __init__(self, role: Role, settings: EngineSettings) -> None:
        """Raises ConfigError for options that are unknown or impossible, LoadError for logits
        processors that another process cannot import.
        """
        self._role = role
        self._settings = settings
        self._options = engine_options.parse(settings.options)
        if role is not Role.DECODE and self._options.decode_prefix_cache:
            raise ConfigError("engine option decode_prefix_cache is for decode workers")
        model = Model(**model_files.processor_facts(settings.model_path))
        settings.registry.check_always(model)
        settings.registry.portable()
        self._eos = model_files.eos_token_ids(settings.model_path)
        self._notes = NoteReader()
        self._cache = None if role is Role.DECODE else CacheSubscription(requests.owner_of)
        seconds = self._options.handover_timeout_seconds
        self._server = self._client = None
        if role is Role.PREFILL:
            self._server = PullServer(
                wait_seconds=seconds,
                tls=settings.tls,
                limits=settings.connection_limits,
                budget=settings.budget,
            )
        elif role is Role.DECODE:
            self._client = PullClient(settings.tls)
        self._traffic = Traffic(
            role,
            settings,
            model=model,
            eos_token_ids=self._eos,
            handover_seconds=seconds,
            notes=self._notes,
            server=self._server,
            client=self._client,
        )
        self._held = ExitStack()
        """Ports that nobody else may take."""
        self._thread: VllmThread | None = None
        self._closed = False

    async def start(self) -> EngineDescription:
        """Takes tens of seconds, while the loop runs on. Raises StartError, saying what to do."""
        try:
            return await self._start()
        except StartError:
            await self.close()
            raise

    async def _start(self) -> EngineDescription:
        settings, cpu = self._settings, arguments.on_cpu()
        free, host, port = FreePorts(self._held), settings.host, 0
        if self._role is Role.PREFILL:
            asked = self._options.side_channel_port
            port = free.wanted(host, asked, setting="engine option side_channel_port")
        own = arguments.own_variables(
            self._role,
            self._options.model_runner,
            host=host,
            side_channel_port=port or free.port(),
        )
        config.export(own, inherited=".*")
        config.export(arguments.environment(host=settings.host, cpu=cpu))
        settle.announce(os.getpid())
        given = arguments.engine_args(
            self._options,
            settings,
            self._role,
            cpu=cpu,
            notes=self._notes.address,
            cache_events="" if self._cache is None else self._cache.endpoint,
        )
        self._notes.follow()
        self._thread = VllmThread(
            given,
            seconds=self._options.load_seconds,
            lora_adapters=self._settings.lora_adapters,
            runner=self._options.model_runner,
        )
        launched = await self._thread.start()
        self._notes.read()
        if self._cache is not None:
            self._traffic.tasks.start(self._cache.follow())
        await warm_up.run(launched, seconds=self._options.warm_up_seconds)
        bounds = validation.EngineBounds(
            role=self._role,
            context_length=min(launched.context_length, launched.pages * launched.page_size),
            vocabulary=launched.vocabulary,
        )
        endpoint = ""
        if self._server is not None:
            endpoint = await self._server.start(settings.host, self._options.kv_port)
        description = self._description(launched, bounds, endpoint)
        said = description.fingerprint.SerializeToString(deterministic=True)
        checked = self._options.kv_check is not KvCheck.OFF
        self._traffic.begin(launched, bounds, kv_tag.number_of(said) if checked else 0)
        return description

    def submit(self, request: EngineRequest) -> None:
        """Raises RequestError, ParkingFullError, and EngineError once closed."""
        if self._closed:
            raise EngineError("the engine is closed")
        self._traffic.submit(request)

    def cancel(self, request_id: int) -> None:
        self._traffic.cancel(request_id)

    async def hand_on(self, take: Callable[[Step], object]) -> None:
        await self._traffic.mailbox.hand_on(take)

    def load(self) -> worker_pb2.Load:
        traffic = self._traffic
        return load_of(
            self._role, traffic.load(), open_legs=len(traffic), step_age=traffic.step_age
        )

    def figures(self) -> EngineFigures:
        ends = self._server if self._server is not None else self._client
        return EngineFigures(
            open_handovers=0 if ends is None else len(ends),
            parked=len(self._traffic.parking),
            parked_bytes=self._traffic.parking.bytes,
            retractions=self._traffic.retractions,
            ranks=(self._traffic.load(),),
        )

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._server is not None:
            await self._server.close()
        if self._client is not None:
            await self._client.close()
        await self._traffic.close()
        if self._thread is not None:
            await self._thread.stop()
        if self._cache is not None:
            self._cache.close()
        self._notes.close()
        self._held.close()

    def _description(
        self, launched: Launched, bounds: validation.EngineBounds, endpoint: str
    ) -> EngineDescription:
        settings, path = self._settings, self._settings.model_path
        alone = self._role is Role.AGGREGATED
        checked = alone or self._options.kv_check is not KvCheck.OFF
        return EngineDescription(
            fingerprint=common_pb2.Fingerprint(
                model=settings.model_name,
                revision=model_files.revision(path),
                engine="vllm",
                engine_version=launched.version,
                dtype=launched.dtype,
                page_size=launched.page_size,
                kv_dtype=launched.kv_dtype,
                kv_layout=_KV_LAYOUTS[self._options.model_runner],
                tensor_parallel=self._options.tensor_parallel,
                tokenizer_sha256=model_files.tokenizer_sha256(path),
                protocol_version=PROTOCOL_VERSION,
                lora_sha256=lora.digest(settings.lora_adapters),
                kv_beside="" if checked else f"kv_check={KvCheck.OFF}",
            ),
            limits=worker_pb2.Limits(
                max_sequences=settings.max_sequences,
                context_length=bounds.context_length,
                vocabulary=bounds.vocabulary,
            ),
            kv_endpoint=endpoint,
            parks=self._role is Role.PREFILL,
            eos_token_ids=self._eos,
            prefixes=None if self._cache is None else self._cache.events.log,
            cannot_resume=_CANNOT_RESUME[self._options.model_runner],
        )
