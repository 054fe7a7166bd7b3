"""Rows of both libraries, and a greedy loop with the processors of a registry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy
import torch

from tandem.engine import model_files
from tandem.logits import Model, TokenHistory
from tandem.logits.registry import Registry
from tandem.logits.spec import LogitsProcessorEntry, LogitsProcessorSpec
from tandem.logits.state import RequestLogits

ROOT = Path(__file__).parents[3]
MODEL = Model(**model_files.processor_facts(ROOT / "model" / "tandem-tiny"))
EOS = MODEL.eos_token_id
REGISTRY = Registry.builtin()
Library = Literal["numpy", "torch", "cuda"]
Given = tuple[str, dict[str, Any]]


def rows(library: Library, count: int, seed: int = 0) -> Any:
    """(count, vocabulary) float32."""
    values = numpy.random.default_rng(seed).normal(size=(count, MODEL.vocabulary)) * 3
    array = values.astype(numpy.float32)
    if library == "numpy":
        return array
    tensor = torch.from_numpy(array)
    return tensor.cuda() if library == "cuda" else tensor


def plain(values: Any) -> Any:
    """A copy as numpy."""
    return (values.numpy(force=True) if isinstance(values, torch.Tensor) else values).copy()


def state_of(*given: Given, registry: Registry = REGISTRY, model: Model = MODEL) -> RequestLogits:
    entries = tuple(LogitsProcessorEntry(name, args) for name, args in given)
    return RequestLogits.create(registry, LogitsProcessorSpec(entries), model)


def generate(
    state: RequestLogits,
    library: Library,
    *,
    prompt: Sequence[int] = (5, 6, 7),
    steps: int = 24,
    seed: int = 0,
) -> list[int]:
    """Greedily until the end; raises the error of a row that fails."""
    generated: list[int] = []
    for row in rows(library, steps, seed):
        error = state.apply(TokenHistory(prompt, generated), row)
        if error is not None:
            raise type(error)(error.message)
        generated.append(int(row.argmax()))
        if generated[-1] == EOS:
            break
    return generated


def edited(
    state: RequestLogits, library: Library, prompt: Sequence[int], generated: Sequence[int]
) -> Any:
    """One row after the processors, and the same before, as numpy arrays."""
    row = rows(library, 1)[0]
    before = plain(row)
    assert state.apply(TokenHistory(prompt, generated), row) is None
    return plain(row), before
