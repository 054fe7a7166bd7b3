"""How forms of answers are compiled for the sim engine: by llguidance, which also masks its rows in
the worker's process.
"""

from __future__ import annotations

from pathlib import Path

from tandem.engine import model_files
from tandem.engine.base import EngineSettings
from tandem.logits.forms.workshop import FormPlan


def plan(settings: EngineSettings) -> FormPlan:
    return plan_for(settings.model_path)


def plan_for(model_path: Path) -> FormPlan:
    """For a model's folder. Raises ConfigError."""
    facts = model_files.processor_facts(model_path)
    return FormPlan(
        compiler="tandem.logits.forms.compiler:LlguidanceCompiler",
        arguments={
            "vocabulary": facts["vocabulary"],
            "eos_token_ids": sorted(facts["eos_token_ids"]),
            "tokenizer_path": str(facts["tokenizer_path"]),
        },
        used_here=frozenset({"json_schema", "regex", "ebnf", "choice", "tagged"}),
    )
