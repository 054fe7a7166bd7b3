"""What an executor raises. What is wrong with a single request is never raised: its response says
it. TensorRT-LLM raises RuntimeError in these places, and so do we.
"""

from __future__ import annotations


class ExecutorError(RuntimeError):
    """The program asked an executor for what cannot be."""


class ShutDownError(ExecutorError):
    """The executor was shut down, or its thread has failed."""


class FullError(ExecutorError):
    """As many requests wait as `max_queue_size` lets wait: try again later."""


class NoResultError(ExecutorError):
    """A response's result was read where it has an error, or the other way round."""
