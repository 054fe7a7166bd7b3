"""The logits processors of a request: the form of its answer, those that it names itself, and
fields that are one by another name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tandem.errors import InvalidRequestError, UnsupportedError
from tandem.logits.spec import PARAM, LogitsProcessorEntry, LogitsProcessorSpec
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai.formats import AnswerForm, check_arguments
from tandem_frontend.openai.limits import ModelLimits
from tandem_frontend.openai.requests import ChatRequest, GenerationFields, LogitsProcessorChoice
from tandem_frontend.openai.thought import Thought


class RequestProcessors(NamedTuple):
    spec: LogitsProcessorSpec | None = None
    fields: tuple[str, ...] = ()
    """What the client calls each."""


def processors_of(
    request: GenerationFields,
    form: AnswerForm | None,
    limits: ModelLimits,
    config: FrontendConfig,
    *,
    thought: Thought | None,
) -> RequestProcessors:
    """The form comes first, as grammars must. Raises InvalidRequestError and UnsupportedError."""
    own: list[LogitsProcessorEntry] = []
    if choices := request.logits_processors:
        _check_offered(choices, limits, config)
        own = [LogitsProcessorEntry(choice.name, choice.args) for choice in choices]
    found: list[AnswerForm] = []
    if form is not None:
        _check_form(form, request, limits)
        _check_size(form.field, [form.processor], config)
        found.append(form)
    found += [AnswerForm(f"{PARAM}[{place}]", entry) for place, entry in enumerate(own)]
    if own:
        _check_size(PARAM, [each.processor for each in found], config)
    for each in _named_otherwise(request, thought):
        if each.processor.name not in limits.logits_processors:
            raise _not_offered(each.field)
        found.append(each)
    if not found:
        return RequestProcessors()
    spec = LogitsProcessorSpec(tuple(each.processor for each in found))
    return RequestProcessors(spec, tuple(each.field for each in found))


def _named_otherwise(request: GenerationFields, thought: Thought | None) -> Iterator[AnswerForm]:
    if count := request.min_tokens:
        yield AnswerForm("min_tokens", LogitsProcessorEntry("min_new_tokens", {"count": count}))
    if not isinstance(request, ChatRequest):
        return
    budget = request.thinking_token_budget
    if budget is None or budget < 0:
        return
    if thought is not None and thought.state != "off":
        field = "thinking_token_budget"
        args: dict[str, Any] = {"budget": budget, "end_text": thought.end}
        if not thought.opened:
            args["begin_text"] = thought.begin
        yield AnswerForm(field, LogitsProcessorEntry("thinking_budget", args))


def _not_offered(field: str) -> UnsupportedError:
    return UnsupportedError(f"This deployment's workers do not offer `{field}`", param=field)


def _check_size(
    field: str, entries: Sequence[LogitsProcessorEntry], config: FrontendConfig
) -> None:
    try:
        check_arguments(entries, config.spec_limits)
    except ValueError as error:
        raise InvalidRequestError(f"`{field}` is too large: {error}", param=field) from error


def _check_offered(
    choices: Sequence[LogitsProcessorChoice], limits: ModelLimits, config: FrontendConfig
) -> None:
    allowed = set(config.client_logits_processors).intersection(limits.logits_processors)
    for position, choice in enumerate(choices):
        if choice.name not in allowed:
            raise UnsupportedError(
                f"The logits processor `{choice.name}` is not offered",
                param=f"{PARAM}[{position}].name",
            )


def _check_form(form: AnswerForm, request: GenerationFields, limits: ModelLimits) -> None:
    """Forms are OpenAI's: `client_logits_processors` need not name them."""
    if form.processor.name not in limits.logits_processors:
        raise _not_offered(form.field)
    if request.ignore_eos:
        raise InvalidRequestError(
            f"`ignore_eos` is not offered with `{form.field}`, which says where answers end",
            param="ignore_eos",
        )
