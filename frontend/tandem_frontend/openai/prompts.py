"""A request's texts and token ids to its prompts, which a PrefixStore completes where it knows how
they begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from tandem.errors import InvalidRequestError, UnsupportedError
from tandem.upstream.submission import SubmittedPrompt
from tandem_frontend.openai import prefixes
from tandem_frontend.openai.limits import ModelLimits
from tandem_frontend.openai.prefixes import PromptPrefixes, ReadText
from tandem_frontend.openai.requests import ChatRequest, CompletionRequest, GenerationFields
from tandem_frontend.openai.tokenizer import ModelTokenizer
from tandem_frontend.read_steps import ReadSteps

_DEFAULT_COMPLETION_TOKENS: Final = 16
"""OpenAI's default for plain completions. A chat may use all that is left of the context."""
Made: TypeAlias = tuple[Sequence[SubmittedPrompt], Sequence[ReadText | None]]
"""Prompts, and beside each what was read of its text; None: the prompt is complete."""


class Cache(NamedTuple):
    """Which cached prefixes a request may use."""

    cache_salt: str
    lora_adapter: str


class PromptMaker(NamedTuple):
    """What one request's prompts depend on. Every failure is a RequestError with `param`."""

    tokenizer: ModelTokenizer
    limits: ModelLimits
    model: str
    cache: Cache
    prefixes: PromptPrefixes | None
    """What is known of the prompts; None: each is read in one go."""
    steps: ReadSteps

    def of_chat(self, request: ChatRequest, text: str) -> Made:
        """`text`: what the chat template made of the request."""
        if request.top_logprobs and not request.logprobs:
            raise InvalidRequestError("`top_logprobs` needs `logprobs`", param="top_logprobs")
        asked = _same(request.max_completion_tokens, request.max_tokens)
        self.limits.check_text(text, param="messages")
        (read,) = self._read(request, [text], special_tokens=False)
        token_ids = [] if read else self._encode(text, special_tokens=False)
        prompt = self._prompt(
            request,
            token_ids,
            read,
            asked=asked,
            default=self.limits.context_length,
            param="messages",
        )
        return [prompt], [read]

    def of_completion(self, request: CompletionRequest, *, most: int) -> Made:
        """`most`: choices that one request may have."""
        if request.echo and request.detokenize is False:
            raise UnsupportedError("`echo` is not offered without text", param="echo")
        prompts = _prompts(request.prompt)
        if len(prompts) * (request.n or 1) > most:
            raise InvalidRequestError(
                f"At most {most} choices (prompts times `n`) are offered",
                param="prompt" if len(prompts) > 1 else "n",
            )
        texts = [prompt if isinstance(prompt, str) else "" for prompt in prompts]
        for text in texts:
            self.limits.check_text(text, param="prompt")
        read = self._read(request, texts, special_tokens=True)
        both = zip(prompts, read, strict=True)
        return [self._completion(request, prompt, known) for prompt, known in both], read

    def _completion(
        self, request: CompletionRequest, prompt: str | list[int], read: ReadText | None
    ) -> SubmittedPrompt:
        token_ids: list[int] = []
        if not isinstance(prompt, str):
            token_ids = prompt
        elif prompt and not read:
            token_ids = self._encode(prompt, special_tokens=True)
        self.limits.check_token_ids(token_ids, param="prompt")
        made = self._prompt(
            request,
            token_ids,
            read,
            asked=request.max_tokens,
            default=_DEFAULT_COMPLETION_TOKENS,
            param="prompt",
        )
        if request.echo:
            made.echo = prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)
        return made

    def _prompt(
        self,
        request: GenerationFields,
        token_ids: Sequence[int],
        read: ReadText | None,
        *,
        asked: int | None,
        default: int,
        param: str,
    ) -> SubmittedPrompt:
        """`asked`, `default`: tokens that may follow the prompt."""
        tokens = read.tokens if read else len(token_ids)
        max_tokens = self.limits.max_tokens(tokens, asked, default, param=param)
        if read:
            return SubmittedPrompt(tokens=tokens, max_tokens=max_tokens, task=b"")
        shows_ids, cache = request.return_token_ids is True, self.cache._asdict()
        self.steps.skip()
        prompt = SubmittedPrompt.of(token_ids, max_tokens=max_tokens, shows_ids=shows_ids, **cache)
        self.steps.end("hash")
        return prompt

    def _encode(self, text: str, *, special_tokens: bool) -> list[int]:
        self.steps.skip()
        token_ids = self.tokenizer.encode(text, add_special_tokens=special_tokens)
        self.steps.end("tokenize")
        return token_ids

    def _read(
        self, request: GenerationFields, texts: Sequence[str], *, special_tokens: bool
    ) -> Sequence[ReadText | None]:
        """What was read of texts whose beginnings may be known; None: nothing was. Where the token
        ids are to be shown, nothing is.
        """
        if self.prefixes is None or request.return_token_ids:
            return [None] * len(texts)
        return prefixes.read(
            self.tokenizer,
            texts,
            self.prefixes,
            self.steps,
            special_tokens=special_tokens,
            model=self.model,
            **self.cache._asdict(),
        )


def _same(first: int | None, second: int | None) -> int | None:
    if first is not None and second is not None and first != second:
        raise InvalidRequestError(
            "`max_tokens` and `max_completion_tokens` differ; give one of them", param="max_tokens"
        )
    return second if first is None else first


def _prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """A prompt is a text or token ids; a request has one of them or a list of one kind."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequestError("The prompt must not be empty", param="prompt")
    texts = [item for item in prompt if isinstance(item, str)]
    lists = [item for item in prompt if isinstance(item, list)]
    if len(texts) == len(prompt):
        return [*texts]
    if len(lists) == len(prompt):
        return [*lists]
    token_ids = [item for item in prompt if isinstance(item, int)]
    if len(token_ids) == len(prompt):
        return [token_ids]
    raise InvalidRequestError(
        "`prompt` must hold only texts, only token ids, or only lists of token ids", param="prompt"
    )
