"""What `tandem top` takes from the metrics of a frontend and of a worker."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tandem.cli.client import ApiError

Buckets = Mapping[float, float]
"""A histogram: how many were at most so many seconds, by that bound; the last bound is infinite."""
_FRONTEND, _WORKER = "tandem_frontend_", "tandem_worker_"
_TIMES = {f"{_FRONTEND}{name}_seconds_bucket": name for name in ("ttft", "itl")}
_SERVER = "server"
"""The label of a failure that is not the client's."""


@dataclass(slots=True, frozen=True, kw_only=True)
class FrontendReading:
    """What a frontend counted since its start, and what it has now."""

    version: str = ""
    models: frozenset[str] = frozenset()
    requests: float = 0.0
    """Requests that ended, in any way."""
    errors: Mapping[str, float] = field(default_factory=dict)
    """Requests that failed and not by their client's fault, by code."""
    tokens: float = 0.0
    met: float = 0.0
    """Requests that met both latency objectives."""
    compared: float = 0.0
    """Requests that were compared with the objectives."""
    slo: Mapping[str, float] = field(default_factory=dict)
    """The objectives, "ttft" and "itl", in seconds."""
    ttft: Buckets = field(default_factory=dict)
    itl: Buckets = field(default_factory=dict)


@dataclass(slots=True, frozen=True, kw_only=True)
class EngineReading:
    """What a worker counts of its engine in one phase, since its start or now. None: it does not
    say.
    """

    open_legs: float = 0.0
    waiting_legs: float = 0.0
    tokens: float = 0.0
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    kv_used_ratio: float | None = None
    draining: float = 0.0


_OF_A_WORKER = tuple(_WORKER + name for name in EngineReading.__dataclass_fields__)
_OF_A_FRONTEND = (
    "tandem_build_info",
    *_TIMES,
    *(_FRONTEND + name for name in ("requests", "completion_tokens", "slo_", "served_model_info")),
)


def frontend(exposition: str) -> FrontendReading:
    """A frontend's figures. Raises ApiError for a text that holds none."""
    counts: defaultdict[str, float] = defaultdict(float)
    errors: defaultdict[str, float] = defaultdict(float)
    times: dict[str, dict[float, float]] = {name: {} for name in _TIMES.values()}
    models, slo, version = set(), {}, ""
    for name, labels, value in _samples(exposition, _OF_A_FRONTEND):
        match name.removeprefix(_FRONTEND):
            case "requests_total":
                counts["requests"] += value
                if labels.get("fault") == _SERVER:
                    errors[labels.get("outcome", "")] += value
            case "completion_tokens_total":
                counts["tokens"] += value
            case "slo_requests_total":
                counts["compared"] += value
                counts["met"] += value * (labels.get("ttft") == labels.get("itl") == "met")
            case "slo_seconds":
                slo[labels.get("objective", "")] = value
            case "served_model_info":
                models.add(labels.get("model", ""))
            case "tandem_build_info":
                version = labels.get("version", "")
            case _ if name in _TIMES:
                buckets, bound = times[_TIMES[name]], _bound(labels.get("le", ""))
                buckets[bound] = buckets.get(bound, 0.0) + value
    if "requests" not in counts:
        raise ApiError("no frontend's metrics are at this address")
    return FrontendReading(
        version=version,
        models=frozenset(models),
        errors={code: count for code, count in errors.items() if count},
        slo=slo,
        ttft=times["ttft"],
        itl=times["itl"],
        requests=counts["requests"],
        tokens=counts["tokens"],
        met=counts["met"],
        compared=counts["compared"],
    )


def engines(exposition: str) -> dict[str, EngineReading]:
    """A worker's figures, by phase. Raises ApiError for a text that holds none."""
    found: dict[str, dict[str, float]] = {}
    for name, labels, value in _samples(exposition, _OF_A_WORKER):
        given = name.removeprefix(_WORKER).removesuffix("_total")
        if given in EngineReading.__dataclass_fields__ and "phase" in labels:
            values = found.setdefault(labels["phase"], {})
            values[given] = values.get(given, 0.0) + value
    if not found:
        raise ApiError("no worker's metrics are at this address")
    return {phase: EngineReading(**each) for phase, each in found.items()}


def _samples(
    exposition: str, prefixes: tuple[str, ...]
) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Each sample that is a finite number, from lines with these prefixes. Other lines are not
    parsed: with 200 workers, parsing every line would take longer than an interval.
    """
    kept = "".join(f"{line}\n" for line in exposition.splitlines() if line.startswith(prefixes))
    try:
        families = list(text_string_to_metric_families(kept))
    except ValueError as error:
        raise ApiError("the answer is no Prometheus exposition") from error
    samples: Iterator[Sample] = (sample for family in families for sample in family.samples)
    for sample in samples:
        if math.isfinite(sample.value):
            yield sample.name, sample.labels, sample.value


def _bound(text: str) -> float:
    """Raises ApiError."""
    try:
        return float(text)
    except ValueError as error:
        raise ApiError("the answer is no Prometheus exposition") from error
