"""The settings that an SGLang engine is started with, the same on each of its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from tandem import config, sockets
from tandem.engine import model_files
from tandem.engine.base import EngineDescription, EngineSettings, Role
from tandem.engine.cache_events import CacheSubscription
from tandem.engine.kv_tag import KvCheck
from tandem.engine.prefix_log import PrefixLog
from tandem.errors import ConfigError
from tandem.free_ports import FreePorts
from tandem.logits.model import Model
from tandem_sglang import (
    argument_rules,
    arguments,
    describe,
    fitting,
    kept,
    mooncake,
    parallel,
    processors,
    requests,
    warm_up,
)
from tandem_sglang import options as engine_options
from tandem_sglang.additions import Additions, TokenAddresses, shared_numbers
from tandem_sglang.launch import Launched, SglangThread
from tandem_sglang.ports import Ports, inner_port
from tandem_sglang.proofs import Proof
from tandem_sglang.units import FORMS, SEEDS, TAGS
from tandem_sglang.validation import EngineBounds


class Setup:
    """An engine's settings, read and checked before SGLang is imported."""

    def __init__(self, role: Role, settings: EngineSettings) -> None:
        """Raises ConfigError for options that are unknown or impossible, StartError for logits
        processors that could not run.
        """
        self._role = role
        self._settings = settings
        self._options = engine_options.parse(settings.options)
        argument_rules.check_idle(
            self._options.extra,
            adapters=bool(settings.lora_adapters),
            mooncake=self._options.transfer_backend == mooncake.NAME,
        )
        parallel.check(self._options, role)
        if role is Role.AGGREGATED and self._options.decode_prefix_cache:
            raise ConfigError(
                "engine option decode_prefix_cache is for decode workers: an aggregated one keeps "
                "what it computed without it"
            )
        self.parallel = parallel.of(self._options, role)
        self.kv_ranks = parallel.kv_ranks(self._options)
        if settings.max_sequences % self.parallel.data:
            raise ConfigError(
                f"{self.parallel.data} data-parallel ranks cannot share {settings.max_sequences} "
                "sequences equally: set max_sequences to a multiple of engine option data_parallel"
            )
        self._check_token_processes()
        if self.parallel.accelerators % settings.nodes.count:
            raise ConfigError(
                f"{settings.nodes.count} nodes cannot share {self.parallel.accelerators}"
                " accelerators equally: set engine option tensor_parallel to a multiple of the"
                " setting nodes"
            )
        self._device = arguments.resolve_device(self._options)
        self._check_stages()
        self._check_adapters()
        self._facts = model_files.processor_facts(settings.model_path)
        model = Model(**self._facts)
        self.processors = processors.Processors(
            settings.registry,
            self._options,
            model,
            ranks=self.parallel.kv_ranks,
            stages=self.parallel.pipeline,
        )
        self.seeded = self._options.seeded_sampling
        self.cache = self._subscription()
        """Follows what the engine's prefix cache holds; None: nobody does."""

    def _check_stages(self) -> None:
        """A worker would end at its first hand-over: see `NixlKVManager._prepare_payload_xfer`."""
        options = self._options
        unequal = options.decode_pipeline_parallel not in (0, options.pipeline_parallel)
        if unequal and self._device == "cpu" and options.transfer_backend == "nixl":
            raise ConfigError(
                "SGLang hands KV over between unequal numbers of groups of layers to a GPU's memory"
                " alone: leave engine option decode_pipeline_parallel at 0 on CPUs"
            )

    def _check_adapters(self) -> None:
        """Raises ConfigError for what adapters cannot be beside. With data-parallel ranks SGLang's
        scheduler would end as it starts: see `LoRAManager.__init__`.
        """
        if not self._settings.lora_adapters:
            return
        argument_rules.check_adapters(self._options.extra)
        if self.parallel.data == 1:
            return
        if self._device == "cpu":
            raise ConfigError(
                "SGLang applies LoRA adapters beside data-parallel ranks on GPUs alone: leave the"
                " setting lora_adapters empty, or engine option data_parallel at 1"
            )
        needed = arguments.LORA_WITH_RANKS
        if self._options.extra.get("lora_backend", needed) != needed:
            raise ConfigError(
                "SGLang applies LoRA adapters beside data-parallel ranks with the lora_backend"
                f" {needed} alone: leave it out of engine option server_args"
            )

    def _check_token_processes(self) -> None:
        processes, ranks = self._settings.token_processes, self.parallel.data
        if processes == 1:
            return
        if self._settings.max_sequences % (processes * ranks):
            raise ConfigError(
                f"{processes} token processes cannot share {self._settings.max_sequences} sequences"
                f" of {ranks} data-parallel ranks equally: set max_sequences to a multiple of"
                f" {processes * ranks}"
            )
        if ranks > 1 and self._settings.nodes.count > 1:
            raise ConfigError(
                "data-parallel ranks on several nodes send tokens to one process alone: leave the"
                " setting token_processes at 1"
            )

    def prefix_log(self) -> PrefixLog | None:
        """What the engine's prefix cache holds, as far as it is followed; None: it is not."""
        if self._options.extra.get("disable_radix_cache"):
            return PrefixLog(keeps=False)
        return None if self.cache is None else self.cache.events.log

    def ports(self, held: ExitStack) -> Ports:
        """A leader's, kept from others until `held` is closed. Raises StartError.

        Ranks on several nodes meet at the leader's address, and at ports that follow it.
        """
        free, host = FreePorts(held), self._settings.host
        here = self._settings.nodes.count == 1
        bootstrap = 0
        if self._role is Role.PREFILL:
            asked = self._options.bootstrap_port
            bootstrap = free.wanted(host, asked, setting="engine option bootstrap_port")
        return Ports(
            bootstrap=bootstrap,
            meeting=free.port([(host, 0)]) if here else 0,
            inner=inner_port(free, host) if here and self.parallel.data > 1 else 0,
        )

    def endpoint(self, ports: Ports) -> tuple[str, int] | None:
        """The address at which a prefill engine begins hand-overs; None for other roles."""
        return (self._settings.host, ports.bootstrap) if self._role is Role.PREFILL else None

    def describe(
        self, launched: Launched, bounds: EngineBounds, endpoint: tuple[str, int] | None = None
    ) -> EngineDescription:
        """See describe.description."""
        return describe.description(
            launched,
            bounds,
            self._settings,
            kv_endpoint=sockets.endpoint(*endpoint) if endpoint else "",
            prefixes=self.prefix_log(),
            ranks=self.kv_ranks,
            stages=self._options.pipeline_parallel,
            kv_check=KvCheck.OFF if launched.lacks(TAGS) else self._options.kv_check,
            cannot_apply=self.processors.refused(),
        )

    def bounds(self, launched: Launched) -> EngineBounds:
        """Those of a started engine's requests, without what the units that are lacking would do.
        Raises StartError where every request is to have a logits processor that the engine cannot
        apply then, and as describe.bounds does.
        """
        for unit, found in fitting.lacking(launched.units):
            self.processors.withhold(unit.withheld, f"its SGLang lacks {found.lacks}")
        return describe.bounds(launched, role=self._role, seeded=self.seeded)

    def export(self) -> None:
        """Set the variables that SGLang reads in the environment of this process."""
        config.export(
            arguments.environment(
                self._options,
                host=self._settings.host,
                device=self._device,
                ranks=self.parallel.accelerators,
            )
        )

    async def warm_up(self, launched: Launched, bounds: EngineBounds) -> dict[str, str]:
        """See warm_up.run."""
        grammars = not self.processors.no_forms
        grammars &= arguments.grammar_backend(self._options) != "none"
        return await warm_up.run(
            launched,
            bounds,
            grammars=grammars,
            processors=self.processors.enabled,
            lora_adapters=[each.name for each in self._settings.lora_adapters],
            proofs=self._proofs(launched, grammars),
            ranks=self.parallel.data,
            seconds=self._options.warm_up_seconds,
        )

    def _proofs(self, launched: Launched, grammars: bool) -> dict[str, Proof]:
        """Those of what the engine would do. With drafts seeds decide tokens otherwise."""
        proofs: dict[str, Proof] = fitting.proofs(launched.units)
        if not grammars:
            proofs.pop(FORMS, None)
        if arguments.speculative(self._options):
            proofs.pop(SEEDS, None)
        return proofs

    def thread(
        self, ports: Ports, *, further: Sequence[TokenAddresses] = ()
    ) -> tuple[SglangThread, Any]:
        """A thread that starts this node's part, and `Additions.states` of its scheduler. Sets the
        environment of this process. A follower is told the leader's ports by SGLang. `further`:
        where the worker's processes from the second are.
        """
        host = self._settings.host
        self.export()
        additions = Additions(
            seeded=self.seeded,
            speculative=arguments.speculative(self._options),
            on_cpu=self._device == "cpu",
            ranks=self.parallel.kv_ranks,
            stages=self.parallel.pipeline,
            peer_ranks=self.kv_ranks[Role.PREFILL if self._role is Role.DECODE else Role.DECODE],
            registry=self.processors.portable,
            model=self._facts,
            transfer_backend=self._options.transfer_backend,
            kv_check=self._options.kv_check,
            revision=model_files.revision(self._settings.model_path),
            handover_timeout_seconds=self._options.handover_timeout_seconds,
            grammar_cache_bytes=self._settings.form_cache_bytes,
            further=further,
            states=shared_numbers(self.parallel.data),
        )
        made = arguments.server_args(
            self._options,
            role=self._role,
            model_path=self._settings.model_path,
            max_sequences=self._settings.max_sequences,
            host=host,
            device=self._device,
            ports=ports,
            processors=self.processors.enabled,
            nodes=self._settings.nodes,
            cache_events="" if self.cache is None else self.cache.endpoint,
            lora_adapters=self._settings.lora_adapters,
        )
        unequal = len(set(self.kv_ranks.values())) > 1
        thread = SglangThread(
            made,
            additions,
            kept=kept.of(made, self._options),
            unequal=unequal,
            strict=self._options.strict_units,
            seconds=self._options.load_seconds,
        )
        return thread, additions.states

    def close(self) -> None:
        """Call this when nobody follows the prefix cache any more."""
        if self.cache is not None:
            self.cache.close()

    def _subscription(self) -> CacheSubscription | None:
        """Decode computes no prompts, and the leader's first rank speaks for all; but data-parallel
        ones have a cache each, and routers do not choose among them. An operator who has events
        published elsewhere keeps them.
        """
        extra = self._options.extra
        if self._role is Role.DECODE or self._settings.nodes.rank or self.parallel.data > 1:
            return None
        if extra.get("disable_radix_cache") or "kv_events_config" in extra:
            return None
        return CacheSubscription(requests.owner_of)
