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
from jinja2 import meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tandem.errors import ConfigError, InvalidRequestError
from tandem_frontend.openai.conversation import ChatMessage
from tandem_frontend.openai.system_messages import Render, SystemMessages
from tandem_frontend.openai.tools import CalledFunction, MadeCall

_RESERVED = ("messages", "tools", "raise_exception", "strftime_now")
"""What templates ask for that is not an option."""
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class ChatTemplate:
    def __init__(
        self, source: str, special_tokens: Mapping[str, str], *, tool_source: str | None = None
    ) -> None:
        """`tool_source`: another template for chats with tools. Raises ConfigError."""
        self.source = source if tool_source is None else source + tool_source
        """All that is written of templates: a model's family shows in it."""
        try:
            self.variables = frozenset(
                meta.find_undeclared_variables(_environment().parse(self.source))
            )
            """What a template asks for by name."""
            self._plain = _compiled(source, special_tokens)
            self._for_tools = self._plain
            if tool_source is not None:
                self._for_tools = _compiled(tool_source, special_tokens)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"the model's chat template is malformed: {error}") from error
        self._reserved = frozenset({*special_tokens, *_RESERVED})
        self._short_ids = "length 9" in self.source  # Mistral's complain of others in these words
        self._parsed_arguments = self.takes_tools and self._takes_objects()
        self._system_messages = SystemMessages.of(
            self.source, [_rendering(each) for each in {self._plain, self._for_tools}]
        )

    @property
    def takes_tools(self) -> bool:
        """Whether tools are shown to the model at all."""
        return "tools" in self.variables

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt, ending where the assistant's answer begins. `options`: what else the template
        may ask for by name.

        Raises InvalidRequestError where the template refuses the messages, and for options that are
        not a client's to choose.
        """
        for name in options or ():
            if name in self._reserved:
                raise InvalidRequestError(
                    f"`chat_template_kwargs` cannot set `{name}`",
                    param=f"chat_template_kwargs.{name}",
                )
        shown = [
            message.for_template(parsed_arguments=self._parsed_arguments, short_ids=self._short_ids)
            for message in messages
        ]
        template = self._for_tools if tools else self._plain
        given = {"messages": self._system_messages.placed(shown), "tools": tools or None}
        try:
            return template.render({**(options or {}), **given})
        except Exception as error:  # the template is the model's code, not ours
            raise InvalidRequestError(
                f"The model's chat template refuses the messages: {error}", param="messages"
            ) from error

    def _takes_objects(self) -> bool:
        """Whether the template takes a call's arguments as an object; else as JSON."""
        function = CalledFunction(name="f", arguments={"a": 1})
        calls = [MadeCall(id="000000000", function=function)]
        chat = [{"role": "user", "content": "x"}]
        called = ChatMessage(role="assistant", tool_calls=calls)
        chat.append(called.for_template(parsed_arguments=True, short_ids=False))
        tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
        try:
            self._for_tools.render(messages=chat, tools=[tool])
        except Exception:  # noqa: BLE001 - the template is the model's code, not ours
            return False
        return True


def _rendering(template: jinja2.Template) -> Render:
    def render(messages: Sequence[Mapping[str, Any]]) -> str:
        return template.render(messages=messages, tools=None)

    return render


def load(model_path: Path) -> ChatTemplate | None:
    """From chat_template.jinja, else tokenizer_config.json; None: none. Raises ConfigError."""
    config = _tokenizer_config(model_path / "tokenizer_config.json")
    configured = config.get("chat_template")
    source = _source(model_path / "chat_template.jinja", configured)
    if source is None:
        return None
    tokens = {name: _text(config[name]) for name in _SPECIAL_TOKENS if config.get(name)}
    for_tools = _named(configured, "tool_use") if source == _named(configured, "default") else None
    return ChatTemplate(source, tokens, tool_source=for_tools)


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
    return _named(configured, "default")


def _named(configured: object, name: str) -> str | None:
    if not isinstance(configured, list):
        return None
    named = {item.get("name"): item.get("template") for item in configured}
    source = named.get(name)
    return source if isinstance(source, str) else None


def _compiled(source: str, special_tokens: Mapping[str, str]) -> jinja2.Template:
    template = _environment().from_string(source)
    # A plain dict: each rendering copies it, and copies jinja's ChainMap ten times as slowly.
    template.globals = {
        **template.globals,
        **special_tokens,
        "add_generation_prompt": True,
        "documents": None,
    }
    return template


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
