"""How forms of answers are compiled for engines whose rows llguidance masks, beside the other
processors of a request.
"""

from __future__ import annotations

import typing
from pathlib import Path

from tandem.engine import model_files
from tandem.engine.base import EngineSettings
from tandem.logits.forms.compiler import Kind
from tandem.logits.forms.workshop import FormPlan

EVERY_KIND: frozenset[Kind] = frozenset(typing.get_args(Kind))


def masked_here(settings: EngineSettings) -> FormPlan:
    """For an engine that masks its rows in the worker's process. Raises ConfigError for a model's
    folder that cannot be read.
    """
    return by_llguidance(settings.model_path, used_here=EVERY_KIND)


def masked_there(settings: EngineSettings) -> FormPlan:
    """For an engine that masks its rows in a process of its own. Raises ConfigError."""
    return by_llguidance(settings.model_path, used_here=frozenset({"choice"}))


def by_llguidance(model_path: Path, *, used_here: frozenset[Kind]) -> FormPlan:
    """For a model's folder. Raises ConfigError."""
    return FormPlan(
        compiler="tandem.logits.forms.compiler:LlguidanceCompiler",
        arguments=model_files.processor_facts(model_path),
        used_here=used_here,
    )
