"""A model's chat template: messages to the text the model was trained on, as Hugging Face's
libraries render it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tandem.errors import ConfigError, InvalidRequestError

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class ChatTemplate:
    """A compiled template with the model's special tokens."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises ConfigError where the template does not compile."""
        try:
            template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"the model's chat template is malformed: {error}") from error
        # A plain dict: each rendering copies it, and copies jinja's ChainMap ten times as slowly.
        template.globals = {
            **template.globals,
            **special_tokens,
            "add_generation_prompt": True,
            "tools": None,
            "documents": None,
        }
        self._template = template

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt, ending where the assistant's answer begins.

        Raises InvalidRequestError where the template refuses the messages.
        """
        try:
            return self._template.render(messages=messages)
        except Exception as error:  # the template is the model's code, not ours
            raise InvalidRequestError(
                f"The model's chat template refuses the messages: {error}", param="messages"
            ) from error


def load(model_path: Path) -> ChatTemplate | None:
    """From chat_template.jinja, else tokenizer_config.json; None where the model has none.

    Raises ConfigError for files that cannot be read.
    """
    config = _tokenizer_config(model_path / "tokenizer_config.json")
    source = _source(model_path / "chat_template.jinja", config.get("chat_template"))
    if source is None:
        return None
    tokens = {name: _text(config[name]) for name in _SPECIAL_TOKENS if config.get(name)}
    return ChatTemplate(source, tokens)


def _tokenizer_config(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return content


def _source(file: Path, configured: object) -> str | None:
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {file}: {error}") from error
    if isinstance(configured, str):
        return configured
    if isinstance(configured, list):  # several named templates
        named = {item.get("name"): item.get("template") for item in configured}
        source = named.get("default")
        return source if isinstance(source, str) else None
    return None


def _text(token: object) -> str:
    """A special token is written as its text or as an object with `content`."""
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """Jinja's own filter escapes for HTML, which would change the prompt."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().astimezone().strftime(format)
