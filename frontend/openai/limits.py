"""What the served model can take: the smallest limits of its workers."""

from __future__ import annotations

from collections.abc import Sequence

from frontend.openai.tokenizer import Tokenizer
from tandem import token_limits
from tandem.errors import ContextLengthError, InvalidRequestError
from tandem.v1 import router_pb2


class Limits:
    """What the served model's workers can take; the model's own files where they do not say."""

    def __init__(self, tokenizer: Tokenizer, served: router_pb2.ServedModel) -> None:
        self.context_length = served.limits.context_length or tokenizer.context_length
        self.vocabulary = served.limits.vocabulary or tokenizer.vocabulary
        self.logits_processors = served.logits_processors
        self._longest_token = tokenizer.longest_token

    def check_text(self, text: str, *, param: str) -> None:
        """Refuse what cannot fit without tokenising it, which would take long."""
        if len(text) > self.context_length * self._longest_token:
            raise ContextLengthError(
                f"a prompt of {len(text)} characters is more than the context of "
                f"{self.context_length} tokens",
                param=param,
            )

    def check_token_ids(self, token_ids: Sequence[int], *, param: str) -> None:
        token_limits.check_token_ids(token_ids, self.vocabulary, param=param)

    def max_tokens(
        self, prompt: Sequence[int], asked: int | None, default: int, *, param: str
    ) -> int:
        """How many tokens may follow. Raises ContextLengthError where what was asked for does not
        fit.
        """
        if not prompt:
            raise InvalidRequestError("The prompt must not be empty", param=param)
        context = self.context_length
        if error := token_limits.context_error(len(prompt), asked, context, param=param):
            raise error
        return asked or min(context - len(prompt), default)
