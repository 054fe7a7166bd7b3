"""How forms of answers are compiled for vLLM: by llguidance, which also masks rows, in vLLM's own
process beside the other processors of a request. So a form goes on behind tokens that another
engine made, which vLLM's own grammars do not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tandem.engine import model_files
from tandem.engine.base import EngineSettings
from tandem.logits.forms.workshop import FormPlan


def plan(settings: EngineSettings) -> FormPlan:
    """Raises ConfigError for a model's folder that cannot be read."""
    return FormPlan(
        compiler="tandem.logits.forms.compiler:LlguidanceCompiler",
        arguments=model_facts(settings.model_path),
        used_here=frozenset({"choice"}),
    )


def model_facts(model_path: Path) -> dict[str, Any]:
    """What processors are told of the model, as another process can be given it. Raises ConfigError
    for a folder that cannot be read.
    """
    facts = model_files.processor_facts(model_path)
    return {
        "vocabulary": facts["vocabulary"],
        "eos_token_ids": sorted(facts["eos_token_ids"]),
        "tokenizer_path": str(facts["tokenizer_path"]),
    }
