"""Chats: messages and tools to a prompt, and how the answer to it is taken apart."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tandem.engine import model_files
from tandem.errors import ConfigError, InvalidRequestError, UnsupportedError
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai import answer_parsers
from tandem_frontend.openai.answer_parsers import ModelFamily
from tandem_frontend.openai.asked import Parsing
from tandem_frontend.openai.chat_template import ChatTemplate
from tandem_frontend.openai.conversation import ChatMessage
from tandem_frontend.openai.forced import writes_json
from tandem_frontend.openai.requests import NO_BUDGET, ChatRequest, TemplateFields
from tandem_frontend.openai.thought import SWITCHES, Thought, thought_of
from tandem_frontend.openai.tokenizer import ModelTokenizer
from tandem_frontend.openai.tools import AskedTools

log = logging.getLogger(__name__)


class Chats:
    """Knows the model's template, and the family of models whose formats its answers have."""

    def __init__(
        self, config: FrontendConfig, template: ChatTemplate | None, family: ModelFamily | None
    ) -> None:
        self._config = config
        self._template = template
        self._family = family
        self._told = False

    def text(
        self,
        messages: Sequence[ChatMessage],
        fields: TemplateFields,
        tools: AskedTools | None,
    ) -> str:
        """The prompt, with all special tokens. Raises InvalidRequestError and UnsupportedError."""
        template = self._template
        if template is None:
            raise UnsupportedError("The model has no chat template", param="messages")
        for position, message in enumerate(messages):
            message.check(f"messages[{position}]", most_calls=self._config.max_calls)
        if tools is not None:
            self._check_tools(template, tools)
        messages = self._without_preamble(messages)
        shown = tools.shown() if tools is not None and template.takes_tools else ()
        options = _options(fields)
        if not fields.continue_final_message:
            return template.render(messages, tools=shown, options=options)
        if fields.add_generation_prompt:
            raise InvalidRequestError(
                "`continue_final_message` and `add_generation_prompt` exclude each other",
                param="add_generation_prompt",
            )
        options["add_generation_prompt"] = False
        return _up_to(messages[-1], template.render(messages, tools=shown, options=options))

    def parsing(
        self, request: ChatRequest, tools: AskedTools | None, thought: Thought | None
    ) -> Parsing | None:
        """How the answer is taken apart; None: its text is the answer. Raises UnsupportedError."""
        family = self._family
        self._check_hidden(request)
        called = tools is not None and tools.choice != "none"
        must = tools is not None and tools.choice == "required"
        if called and request.detokenize is False:
            raise UnsupportedError("Calls of tools are found in text alone", param="detokenize")
        if family is None or request.detokenize is False:
            return None
        reasoning = family.thinking is not None and request.separate_reasoning is not False
        if not (called or reasoning):
            return None
        return Parsing(
            family=family.name,
            most_held=self._config.max_call_characters,
            reasoning=reasoning,
            thought=thought,
            shows_reasoning=request.include_reasoning is not False,
            tools=tools.schemas() if tools is not None and called else None,
            forced=must and not writes_json(family),
            single=tools is not None and not tools.parallel,
            older=tools is not None and tools.older,
        )

    def thought(self, fields: TemplateFields, prompt: str) -> Thought | None:
        """The thought in the answer that follows the prompt; None: the model does not think."""
        thinking = self._family.thinking if self._family else None
        known = self._template.variables if self._template else frozenset()
        return thought_of(thinking, prompt, options=_options(fields), variables=known)

    def _check_tools(self, template: ChatTemplate, tools: AskedTools) -> None:
        param = "functions" if tools.older else "tools"
        if len(tools.functions) > self._config.max_tools:
            raise InvalidRequestError(
                f"At most {self._config.max_tools} `{param}` are taken", param=param
            )
        if tools.choice == "none":
            return
        if not template.takes_tools:
            raise UnsupportedError("The model's chat template takes no tools", param=param)
        if self._family is None or not self._family.calls:
            raise UnsupportedError(
                "This server does not know how the model writes calls; see `model_family`",
                param=param,
            )

    def _check_hidden(self, request: ChatRequest) -> None:
        """Tokens of reasoning that is not shown would tell it. Raises UnsupportedError."""
        reasons = self._family is not None and self._family.thinking is not None
        shown = request.include_reasoning is not False or request.separate_reasoning is False
        if shown or not reasons:
            return
        asked = {
            "return_token_ids": request.return_token_ids,
            "detokenize": request.detokenize is False,
            "logprobs": request.logprobs,
        }
        for field in filter(asked.get, asked):
            raise UnsupportedError(
                f"`{field}` shows tokens of the reasoning, which `include_reasoning` leaves out",
                param=field,
            )

    def _without_preamble(self, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        """The messages without a line that clients change, so that their prompts share a prefix."""
        preamble = messages[0].preamble(self._config.volatile_preambles)
        if not preamble:
            return messages
        if not self._told:
            self._told = True
            log.info(
                "a line that changes from session to session is left out of prompts: %s", preamble
            )
        first = messages[0].without_first_line()
        if first.content or len(messages) == 1:
            return [first, *messages[1:]]
        return messages[1:]

    def passed_over(self, request: ChatRequest) -> tuple[str, ...]:
        """Names of what the prompt and the answer are made without."""
        preamble = request.messages[0].preamble(self._config.volatile_preambles)
        return (*((preamble.rstrip(":"),) if preamble else ()), *self._unheeded(request))

    def _unheeded(self, request: ChatRequest) -> tuple[str, ...]:
        """Fields of reasoning that a model which does not reason cannot follow."""
        if self._family is not None and self._family.thinking is not None:
            return ()
        known = self._template.variables if self._template else frozenset()
        effort = request.reasoning_effort not in (None, "none", "minimal")
        heeded = not known.isdisjoint(("reasoning_effort", *SWITCHES))
        budget = request.thinking_token_budget not in (None, NO_BUDGET)
        return (
            *(("reasoning_effort",) if effort and not heeded else ()),
            *(("thinking_token_budget",) if budget else ()),
        )


def family_of(
    config: FrontendConfig, tokenizer: ModelTokenizer, template: ChatTemplate | None
) -> ModelFamily | None:
    """The family in whose formats the model answers, by the setting or the model's files; None:
    nobody knows. Raises ConfigError.
    """
    name = config.model_family
    if name == "none":
        return None
    if name == "auto":
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


def _options(fields: TemplateFields) -> dict[str, Any]:
    """What the template may ask for by name; what a client sets by its name goes first."""
    options: dict[str, Any] = {}
    if isinstance(fields, ChatRequest) and (effort := fields.reasoning_effort):
        options["reasoning_effort"] = effort
        if effort == "none":
            options |= dict.fromkeys(SWITCHES, False)
    options |= fields.chat_template_kwargs or {}
    if fields.add_generation_prompt is not None:
        options["add_generation_prompt"] = fields.add_generation_prompt
    return options


def _up_to(last: ChatMessage, prompt: str) -> str:
    """Without what the template writes after the last message."""
    text = last.text.strip()
    end = prompt.rfind(text) if text else -1
    if last.role != "assistant" or end < 0:
        raise InvalidRequestError(
            "`continue_final_message` needs a last message of the assistant, which the chat"
            " template shows as it is",
            param="continue_final_message",
        )
    return prompt[: end + len(text)]
