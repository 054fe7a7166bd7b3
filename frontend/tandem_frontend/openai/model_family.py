"""Which family of models the served one belongs to: its answers are written in that family's
formats.
"""

from __future__ import annotations

from pathlib import Path

from tandem.engine import model_files
from tandem.errors import ConfigError
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai import answer_parsers
from tandem_frontend.openai.answer_parsers import ModelFamily
from tandem_frontend.openai.chat_template import ChatTemplate
from tandem_frontend.openai.tokenizer import Tokenizer

AUTO, NONE = "auto", "none"


def of(
    config: FrontendConfig, tokenizer: Tokenizer, template: ChatTemplate | None
) -> ModelFamily | None:
    """By the setting, or by what the model's files show; None: nobody knows. Raises ConfigError."""
    name = config.model_family
    if name == NONE:
        return None
    if name == AUTO:
        source = template.source if template else None
        architectures = model_files.architectures(Path(config.model_path))
        return answer_parsers.detect(source, architectures, tokenizer.added_tokens)
    try:
        return answer_parsers.named(name)
    except KeyError:
        known = ", ".join(answer_parsers.names())
        raise ConfigError(
            f"model_family must be auto, none or one of {known}; not {name!r}"
        ) from None
