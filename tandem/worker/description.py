"""What a worker says of itself to routers."""

from __future__ import annotations

import secrets

from tandem.engine.base import EngineDescription
from tandem.hooks.contract import Phase
from tandem.logits.registry import Registry
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker.config import WorkerConfig

PHASES = {"prefill": common_pb2.PHASE_PREFILL, "decode": common_pb2.PHASE_DECODE}


def describe(
    phase: Phase,
    config: WorkerConfig,
    engine: EngineDescription,
    *,
    has_hook: bool,
    has_classifiers: bool,
    may_judge: bool = False,
    registry: Registry,
    judges_logprobs: bool = False,
    aggregated_as: str = "",
) -> worker_pb2.WorkerDescription:
    """All of it but the load. The fingerprint is the engine's, and the deployment's revision.
    `may_judge`: it has classifiers, or may get some. `aggregated_as`: what the phases of one engine
    both call their instance; empty: it has one.
    """
    fingerprint = common_pb2.Fingerprint()
    fingerprint.CopyFrom(engine.fingerprint)
    fingerprint.deployment_revision = config.deployment_revision
    fingerprint.aggregated = bool(aggregated_as)
    return worker_pb2.WorkerDescription(
        name=config.worker_name(phase),
        instance=aggregated_as or new_instance(),
        phase=PHASES[phase],
        fingerprint=fingerprint,
        kv_endpoint=engine.kv_endpoint,
        limits=engine.limits,
        has_hook=has_hook or has_classifiers,
        has_classifiers=has_classifiers,
        may_judge=may_judge,
        judges_logprobs=judges_logprobs,
        propagate_terminate=config.propagate_terminate and phase == "prefill",
        logits_processors=[name for name in registry.offered() if name not in engine.cannot_apply],
        cannot_sample=sorted(engine.cannot_sample),
        lora_adapters=sorted(config.lora_adapters),
        keeps_tasks=True,
        parks=engine.parks and config.max_parked > 0,
    )


def new_instance() -> str:
    """A random name for one start of a worker process."""
    return secrets.token_hex(8)
