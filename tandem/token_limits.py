"""Which token ids and how many of them a model can take: the same rule, and the same words, in
every component that asks.
"""

from __future__ import annotations

from collections.abc import Collection

from tandem.errors import ContextLengthError, InvalidRequestError


def check_token_ids(token_ids: Collection[int], vocabulary: int, *, param: str) -> None:
    """Raises InvalidRequestError for an id that the model does not have."""
    if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocabulary):
        outside = next(token_id for token_id in token_ids if not 0 <= token_id < vocabulary)
        raise InvalidRequestError(
            f"{param}: token id {outside} is outside the vocabulary of {vocabulary}", param=param
        )


def context_error(
    prompt: int, max_tokens: int | None, context: int, *, param: str = "max_tokens"
) -> ContextLengthError | None:
    """What is wrong where a prompt of so many tokens and its completion exceed the context.

    Prompt and completion share the context. A completion of unknown length has one token at least.
    """
    if prompt + (max_tokens or 1) <= context:
        return None
    wanted = f"{max_tokens} to generate" if max_tokens else "at least one to generate"
    return too_long(context, f"{prompt} prompt tokens and {wanted}", param=param)


def too_long(context: int, given: str, *, param: str) -> ContextLengthError:
    """In OpenAI's words, by which client libraries know that a prompt is to be shortened."""
    return ContextLengthError(
        f"This model's maximum context length is {context} tokens; {given} are more", param=param
    )
