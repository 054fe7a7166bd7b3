"""How forms of answers are compiled for SGLang: by the grammar backend that its scheduler has, in a
process of its own. The scheduler then compiles what passed once more.
"""

from __future__ import annotations

from tandem.engine import model_files
from tandem.engine.base import EngineSettings
from tandem.logits.forms.workshop import FormPlan
from tandem_sglang import arguments
from tandem_sglang import options as engine_options
from tandem_sglang.server_arguments import ONE_LINE_JSON


def plan(settings: EngineSettings) -> FormPlan:
    """Raises ConfigError for a grammar backend that forms cannot be checked for."""
    options = engine_options.parse(settings.options)
    extra = options.extra
    facts = model_files.processor_facts(settings.model_path)
    return FormPlan(
        compiler="tandem_sglang.form_compiler:SglangCompiler",
        arguments={
            "backend": arguments.grammar_backend(options),
            "model_path": str(settings.model_path),
            "tokenizer_path": str(extra.get("tokenizer_path") or settings.model_path),
            "vocabulary": facts["vocabulary"],
            "eos_token_ids": facts["eos_token_ids"],
            "any_whitespace": not extra.get(ONE_LINE_JSON, True),
            "max_whitespace": extra.get("constrained_json_max_whitespace_cnt"),
        },
        environment={
            **arguments.environment(options, host=settings.host, device="cpu"),
            "CUDA_VISIBLE_DEVICES": "",  # the accelerator is the engine's
        },
        used_here=frozenset({"choice"}),
        eager=True,
    )
