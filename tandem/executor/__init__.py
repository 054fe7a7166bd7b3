"""The Executor API: request-level generation for Python programs, in the names of TensorRT-LLM's
`tensorrt_llm.bindings.executor`. docs/executor/README.md shows it.
"""

from tandem.executor.asynchronous import AsyncExecutor
from tandem.executor.config import BatchingType, ExecutorConfig, LogitsPostProcessorConfig
from tandem.executor.errors import ExecutorError, FullError, NoResultError, ShutDownError
from tandem.executor.left_out import NAMES, refuse
from tandem.executor.requests import (
    ContextPhaseParams,
    GuidedDecodingParams,
    GuideType,
    LoraConfig,
    OutputConfig,
    Request,
    RequestType,
    SamplingConfig,
)
from tandem.executor.responses import FinishReason, Response, Result
from tandem.executor.statistics import (
    DisServingRequestStats,
    InflightBatchingStats,
    IterationStats,
    KvCacheMetrics,
    KvCacheStats,
    RequestPerfMetrics,
    RequestStage,
    RequestStats,
    RequestStatsPerIteration,
    TimingMetrics,
)
from tandem.executor.threaded import Executor

__all__ = [
    "AsyncExecutor",
    "BatchingType",
    "ContextPhaseParams",
    "DisServingRequestStats",
    "Executor",
    "ExecutorConfig",
    "ExecutorError",
    "FinishReason",
    "FullError",
    "GuideType",
    "GuidedDecodingParams",
    "InflightBatchingStats",
    "IterationStats",
    "KvCacheMetrics",
    "KvCacheStats",
    "LogitsPostProcessorConfig",
    "LoraConfig",
    "NoResultError",
    "OutputConfig",
    "Request",
    "RequestPerfMetrics",
    "RequestStage",
    "RequestStats",
    "RequestStatsPerIteration",
    "RequestType",
    "Response",
    "Result",
    "SamplingConfig",
    "ShutDownError",
    "TimingMetrics",
]


def __getattr__(name: str) -> object:
    """Raises UnsupportedError for a name of TensorRT-LLM's that is left out."""
    if name in NAMES:
        refuse(name, NAMES[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
