"""The bodies that clients send. docs/api.md says of each field whether it is offered, and of others
why they are refused.

Unknown fields pass in a request, in its messages, tools and hints: strangers.py decides about them.
What is Tandem's own (`tandem`, `logits_processors`) and forms of answers know no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta

from tandem import sampling
from tandem.errors import InvalidRequestError
from tandem_frontend.openai import foreign
from tandem_frontend.openai.conversation import ChatMessage, TextPart
from tandem_frontend.openai.decoding import Body
from tandem_frontend.openai.formats import FormFields
from tandem_frontend.openai.nvext import KIND as NVEXT
from tandem_frontend.openai.nvext import KvHints, NvExt
from tandem_frontend.openai.strangers import KnownObject
from tandem_frontend.openai.tools import (
    CalledFunction,
    Choice,
    FunctionDefinition,
    MadeCall,
    OlderChoice,
    Tool,
    ToolChoice,
)

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIASES = 1024
MAX_METADATA_CHARACTERS = 512
MAX_TEMPLATE_OPTIONS = 64
MAX_CACHE_SALT_CHARACTERS = 256
TIER_PRIORITIES: Mapping[str, int] = {"flex": -50, "priority": 50}
"""The priorities of the tiers that are not the usual one."""
NO_SEED = -1
NO_BUDGET = -1

_PRIORITY = (
    "Higher is admitted first while requests queue; lower, as in vLLM, where the deployment sets"
    " `priority_order: lower-first`."
)

TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]
MetadataKey = Annotated[str, Meta(min_length=1, max_length=64)]
MetadataText = Annotated[str, Meta(max_length=MAX_METADATA_CHARACTERS)]
MetadataValue = MetadataText | int | float | bool | list[Any] | dict[str, Any] | None
TemplateOptions = Annotated[dict[str, Any], Meta(max_length=MAX_TEMPLATE_OPTIONS)]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ServiceTier = Literal["auto", "default", "flex", "priority", "scale", "standard_only"]
CacheSalt = Annotated[str, Meta(max_length=MAX_CACHE_SALT_CHARACTERS)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    include_usage: bool | None = None
    """End the stream with a chunk that has no choices and the request's `usage`."""
    continuous_usage_stats: bool | None = None
    """Beside `include_usage`: each chunk has the `usage` of its choice so far."""
    include_obfuscation: bool | None = None
    """Nothing is padded: only `false` is offered."""


class LogitsProcessorChoice(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    args: dict[str, Any] = {}


class TandemOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    report: bool = False
    """Add what each phase did to the answer. Only where the deployment allows reports."""
    external_scores: bool = False
    """Add what classifiers answered to each choice. Only where the deployment allows it."""


class GenerationFields(FormFields, forbid_unknown_fields=True, kw_only=True):
    """What chat and plain completions have in common. `null` means the default everywhere."""

    model: str
    n: Annotated[int, Meta(ge=1, le=sampling.MAX_INT32)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=sampling.MAX_INT32)] | None = None
    """As many as `n`, or nothing."""
    max_tokens: sampling.MaxTokens | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=sampling.MAX_INT32)] | None = None
    """The answer does not end before."""
    temperature: sampling.Temperature | None = None
    top_p: sampling.TopP | None = None
    top_k: Annotated[int, Meta(ge=-1, le=sampling.MAX_INT32)] | None = None
    min_p: sampling.MinP | None = None
    seed: Annotated[int, Meta(ge=NO_SEED, le=2**63 - 1)] | None = None
    frequency_penalty: sampling.Penalty | None = None
    presence_penalty: sampling.Penalty | None = None
    repetition_penalty: sampling.RepetitionPenalty | None = None
    logit_bias: dict[int, sampling.LogitBias] | None = None
    stop: (
        Annotated[str, Meta(max_length=MAX_STOP_CHARACTERS)]
        | Annotated[list[StopString], Meta(max_length=MAX_STOPS)]
        | None
    ) = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=128)] | None = None
    ignore_eos: bool | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    """Log-probabilities of the prompt's tokens, with so many alternatives; not in streams."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    detokenize: bool | None = None
    """False: token ids come instead of text."""
    return_token_ids: bool | None = None
    """Token ids come beside the text, and those of the prompt too."""
    timeout: Annotated[float, Meta(ge=0.001)] | None = None
    priority: Annotated[int, Meta(ge=-100, le=100, description=_PRIORITY)] | None = None
    service_tier: ServiceTier | None = None
    """Stands for a `priority`, where none is given."""
    cache_salt: CacheSalt | None = None
    """Prefixes are cached for requests of the same key and the same text alone."""
    extra_key: CacheSalt | None = None
    """`cache_salt`, as SGLang calls it."""
    resume: bool | None = None
    """Whether another pair of workers goes on where a decode worker is lost."""
    logits_processors: Annotated[list[LogitsProcessorChoice], Meta(max_length=16)] | None = None
    tandem: TandemOptions | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=16)] | None = None
    """For the deployment's classifiers; nothing of it is stored."""
    user: str | None = None
    """Requests of one user for a name of several models go to one of them."""
    prompt_cache_key: str | None = None
    """Names a session, as `user` does where this says nothing: see docs/router.md, "Prefixes"."""
    nvext: NvExt | None = None
    """Hints: where the request goes, and when."""
    kv_hints: KvHints = msgspec.UNSET
    """For the engines' KV caches; read only where the deployment passes them on."""


def shows_token_ids(request: GenerationFields) -> bool:
    return request.detokenize is False or request.return_token_ids is True


class TemplateFields(Protocol):
    chat_template_kwargs: TemplateOptions | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None


class ChatRequest(GenerationFields, forbid_unknown_fields=True, kw_only=True):
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: sampling.MaxTokens | None = None
    reasoning_effort: ReasoningEffort | None = None
    thinking_token_budget: Annotated[int, Meta(ge=NO_BUDGET, le=sampling.MAX_INT32)] | None = None
    """Tokens after which the reasoning is ended; -1: none."""
    include_reasoning: bool | None = None
    """False: the answer comes without its reasoning."""
    separate_reasoning: bool | None = None
    """False: the reasoning stays in the `content`, as the model wrote it."""
    tools: list[Tool] | None = None
    tool_choice: Choice | ToolChoice | None = None
    """`auto` where there are tools: the model decides."""
    parallel_tool_calls: bool | None = None
    """False: one call at most."""
    functions: list[FunctionDefinition] | None = None
    """The older form of `tools`."""
    function_call: OlderChoice | None = None
    """The older form of `tool_choice`."""
    chat_template_kwargs: TemplateOptions | None = None
    """What the model's chat template may ask for by name, such as `enable_thinking`."""
    add_generation_prompt: bool | None = None
    """False: the prompt ends with the last message."""
    continue_final_message: bool | None = None
    """The answer goes on with the last message, which is the assistant's."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None


class CompletionRequest(GenerationFields, forbid_unknown_fields=True, kw_only=True):
    prompt: str | list[str | TokenId | list[TokenId]]
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    echo: bool | None = None


class TokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`prompt` or `messages`, not both."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1)] | None = None
    tools: list[Tool] | None = None
    chat_template_kwargs: TemplateOptions | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool = True


class DetokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    model: str | None = None
    tokens: list[TokenId]


_CALLED = KnownObject.of(CalledFunction, foreign.OF_CALLED)
_INNER = {
    "messages": KnownObject.of(
        ChatMessage,
        foreign.OF_MESSAGES,
        content=KnownObject.of(TextPart, foreign.OF_PARTS),
        tool_calls=KnownObject.of(MadeCall, foreign.OF_CALLS, function=_CALLED),
        function_call=_CALLED,
    ),
    "tools": KnownObject.of(
        Tool,
        foreign.OF_TOOLS,
        foreign.OF_CHAT_TOOLS,
        foreign.TOOL_TYPES,
        function=KnownObject.of(FunctionDefinition, foreign.OF_FUNCTIONS),
    ),
}
CHAT_BODY = Body.of(ChatRequest, foreign.OF_CHATS, nvext=NVEXT, **_INNER)
COMPLETION_BODY = Body.of(CompletionRequest, foreign.OF_COMPLETIONS, nvext=NVEXT)
TOKENIZE_BODY = Body.of(TokenizeRequest, foreign.OF_TOKENS, **_INNER)
DETOKENIZE_BODY = Body.of(DetokenizeRequest, {})


def metadata_texts(request: GenerationFields) -> dict[str, str]:
    """The client's metadata as texts; values of other types become JSON."""
    given = request.metadata or {}
    return {name: _as_text(name, value) for name, value in given.items()}


def _as_text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    text = msgspec.json.encode(value).decode()
    if len(text) > MAX_METADATA_CHARACTERS:
        raise InvalidRequestError(
            f"A value of `metadata` must not be longer than {MAX_METADATA_CHARACTERS} characters"
            " of JSON",
            param=f"metadata.{name}",
        )
    return text
