"""The settings that an SGLang engine is started with, the same on each of its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tandem import config
from tandem.engine import model_files
from tandem.engine.base import Nodes, Role
from tandem.engine.sglang import arguments, processors
from tandem.engine.sglang import options as engine_options
from tandem.engine.sglang.additions import Additions
from tandem.engine.sglang.launch import EngineThread
from tandem.errors import ConfigError
from tandem.logits.model import Model
from tandem.logits.registry import Registry


class Setup:
    """An engine's settings, read and checked before SGLang is imported."""

    def __init__(
        self,
        *,
        role: Role,
        model_path: Path,
        max_sequences: int,
        host: str,
        options: Mapping[str, Any],
        registry: Registry,
        nodes: Nodes,
    ) -> None:
        """Raises ConfigError for options that are unknown or impossible, StartError for logits
        processors that could not run.
        """
        self._role = role
        self._model_path = model_path
        self._max_sequences = max_sequences
        self._host = host
        self._nodes = nodes
        self._options = engine_options.parse(options)
        self._device = arguments.resolve_device(self._options)
        self._facts = model_files.processor_facts(model_path)
        self.processors = processors.Processors(registry, self._options, Model(**self._facts))
        self.seeded = arguments.seeded(self._options, self._device)
        if self._options.tensor_parallel % nodes.count:
            raise ConfigError(
                f"{nodes.count} nodes cannot share {self._options.tensor_parallel} accelerators "
                "equally: set engine option tensor_parallel to a multiple of the setting nodes"
            )

    def endpoint(self) -> tuple[str, int] | None:
        """The address at which a prefill engine begins hand-overs; None for other roles. Raises
        StartError."""
        if self._role is not Role.PREFILL:
            return None
        return self._host, arguments.listening_port(self._host, self._options.bootstrap_port)

    def thread(self, *, bootstrap_port: int = 0) -> tuple[EngineThread, Any]:
        """A thread that starts this node's part, and `Additions.states` of its scheduler. Sets the
        environment of this process. A follower is told the leader's port by SGLang.
        """
        config.export(arguments.environment(self._options, host=self._host, device=self._device))
        additions = Additions(
            seeded=self.seeded,
            on_cpu=self._device == "cpu",
            registry=self.processors.portable,
            model=self._facts,
        )
        made = arguments.server_args(
            self._options,
            role=self._role,
            model_path=self._model_path,
            max_sequences=self._max_sequences,
            host=self._host,
            device=self._device,
            bootstrap_port=bootstrap_port,
            processors=self.processors.enabled,
            nodes=self._nodes,
        )
        return EngineThread(made, additions), additions.states
