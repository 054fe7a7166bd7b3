"""Executors with sim engines of their own, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tandem_executor import Executor, ExecutorConfig, OutputConfig, Request, Response

SECONDS = 60.0
PROMPT = [101, 102, 103, 104]
VOCABULARY = 2048


def sim(**changes: Any) -> ExecutorConfig:
    """The configuration of a fast sim engine."""
    return ExecutorConfig(**{"engine": "sim", "engine_options": {"step_ms": 0}} | changes)


def request(**changes: Any) -> Request:
    output = OutputConfig(exclude_input_from_output=True)
    return Request(
        **{"input_token_ids": PROMPT, "max_tokens": 8, "output_config": output} | changes
    )


def responses_of(executor: Executor, request_id: int) -> list[Response]:
    """All responses of a request."""
    found: list[Response] = []
    while not found or not (found[-1].has_error() or found[-1].result.is_final):
        new = executor.await_responses(request_id, SECONDS)
        assert new, "it takes too long"
        found += new
    return found


def last(executor: Executor, **fields: Any) -> Response:
    return responses_of(executor, executor.enqueue_request(request(**fields)))[-1]


def answer(executor: Executor, **fields: Any) -> list[int]:
    """The tokens that a request generates."""
    return last(executor, **fields).result.output_token_ids[0]


@contextmanager
def running(model_path: Path, **changes: Any) -> Iterator[Executor]:
    with Executor(model_path, sim(**changes)) as executor:
        yield executor
