"""The Executor API: request-level generation for Python programs, in the names of TensorRT-LLM's
`tensorrt_llm.bindings.executor`. docs/executor/README.md shows it.
"""

from tandem.version import tandem_version
from tandem_executor import workers_own
from tandem_executor.asynchronous import AsyncExecutor
from tandem_executor.config import BatchingType, ExecutorConfig, LogitsPostProcessorConfig
from tandem_executor.errors import ExecutorError, FullError, NoResultError, ShutDownError
from tandem_executor.left_out import NAMES, refuse
from tandem_executor.requests import (
    ContextPhaseParams,
    GuidedDecodingParams,
    GuideType,
    LoraConfig,
    OutputConfig,
    Request,
    RequestType,
    SamplingConfig,
)
from tandem_executor.responses import FinishReason, Response, Result
from tandem_executor.statistics import (
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
from tandem_executor.threaded import Executor

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


__version__ = tandem_version()


def __getattr__(name: str) -> object:
    """A name of TensorRT-LLM's for settings of workers. Raises UnsupportedError for one that is
    left out.
    """
    if name in workers_own.NAMES:
        return getattr(workers_own, name)
    if name in NAMES:
        refuse(name, NAMES[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
