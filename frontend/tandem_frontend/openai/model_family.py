"""Which family of models the served one belongs to: its answers are written in that family's
formats.
"""

from __future__ import annotations

from pathlib import Path

from tandem.engine import model_files
from tandem.errors import ConfigError
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai.chat_template import ChatTemplate
from tandem_frontend.openai.parsing import families
from tandem_frontend.openai.parsing.families import FAMILIES, Family
from tandem_frontend.openai.tokenizer import Tokenizer

AUTO, NONE = "auto", "none"


def of(
    config: FrontendConfig, tokenizer: Tokenizer, template: ChatTemplate | None
) -> Family | None:
    """By the setting, or by what the model's files show; None: nobody knows. Raises ConfigError."""
    name = config.model_family
    if name == NONE:
        return None
    if name == AUTO:
        source = template.source if template else None
        architectures = model_files.architectures(Path(config.model_path))
        return families.detect(source, architectures, tokenizer.added_tokens)
    try:
        return families.named(name)
    except KeyError:
        known = ", ".join(sorted(FAMILIES))
        raise ConfigError(
            f"model_family must be auto, none or one of {known}; not {name!r}"
        ) from None
