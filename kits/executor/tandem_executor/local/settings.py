"""From an executor's configuration to the settings of its router and workers."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path

from tandem import config
from tandem.errors import ConfigError
from tandem.hooks.contract import Phase
from tandem.worker.config import WorkerConfig
from tandem_executor.config import ExecutorConfig
from tandem_router.config import RouterConfig
from tandem_router.vouchers import KEY_BYTES

PHASES: tuple[Phase, ...] = ("prefill", "decode")
_SILENCE_SECONDS = 60.0
"""For a worker beside its router: a machine that stands still is no reason to give it up."""
NOT_THEIRS = frozenset(
    {
        "advertise_host",
        "deployment_revision",
        "engine",
        "engine_options",
        "grpc_reflection",
        "leader",
        "listen",
        "metrics_listen",
        "model_path",
        "name",
        "node_rank",
        "nodes",
        "otlp_endpoint",
        "ready_when_paired",
        "tls_ca",
        "tls_cert",
        "tls_key",
        "tls_peer_name",
        "trace_sample_ratio",
    }
)
"""Settings of a worker that an executor's own do not have."""


def address(folder: Path, name: str) -> str:
    """Where a part of the stack in this folder listens."""
    return f"unix:{folder / name}.sock"


def worker(
    phase: Phase, model_path: Path, executor_config: ExecutorConfig, folder: Path
) -> WorkerConfig:
    """Raises ConfigError."""
    given = dict(executor_config.worker_settings or {})
    if refused := sorted(given.keys() & NOT_THEIRS):
        raise ConfigError(f"worker_settings: not for an executor's own: {', '.join(refused)}")
    own = {
        "listen": address(folder, phase),
        "advertise_host": "127.0.0.1",
        "name": phase,
        "engine": executor_config.engine,
        "engine_options": dict(executor_config.engine_options or {}),
        "model_path": model_path,
    }
    return config.of_mapping(WorkerConfig, {"log_level": "warning"} | given | own)


def router(
    executor_config: ExecutorConfig, folder: Path, processors: Iterable[str]
) -> RouterConfig:
    """`processors`: what the workers know. An executor's program is let name them all; what the
    settings say of each still holds.
    """
    return RouterConfig(
        listen=address(folder, "router"),
        max_queue=executor_config.max_open_sequences,
        client_logits_processors=tuple(processors),
        allow_reports=True,
        allow_external_scores=True,
        worker_silence_seconds=_SILENCE_SECONDS,
        voucher_key_file=_voucher_key(folder),
    )


def _voucher_key(folder: Path) -> str:
    """The file of a key that this executor's own router alone has, and no longer than it runs."""
    file = folder / "voucher.key"
    file.write_bytes(secrets.token_hex(KEY_BYTES).encode())
    return str(file)
