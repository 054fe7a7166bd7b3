"""What the served model can take: what some pair of its workers can."""

from __future__ import annotations

from collections.abc import Sequence

from tandem import token_limits
from tandem.errors import InvalidRequestError
from tandem.v1 import router_pb2
from tandem_frontend.openai.tokenizer import ModelTokenizer


class ModelLimits:
    """What some pair of the served model can take; the model's files where workers do not say."""

    def __init__(self, tokenizer: ModelTokenizer, served: router_pb2.ServedModel) -> None:
        shortest = served.limits.context_length or tokenizer.context_length
        self.context_length = max(served.longest_context, shortest)
        self._shortest_context = shortest
        self.vocabulary = served.limits.vocabulary or tokenizer.vocabulary
        self.logits_processors = {*served.logits_processors, *served.any_logits_processors}
        self._longest_token = tokenizer.longest_token

    def check_text(self, text: str, *, param: str) -> None:
        """Refuse what cannot fit without tokenising it, which would take long."""
        if len(text) > self.context_length * self._longest_token:
            raise token_limits.too_long(
                self.context_length, f"{len(text)} characters of prompt", param=param
            )

    def check_token_ids(self, token_ids: Sequence[int], *, param: str) -> None:
        token_limits.check_token_ids(token_ids, self.vocabulary, param=param)

    def max_tokens(self, prompt: int, asked: int | None, default: int, *, param: str) -> int:
        """How many tokens may follow a prompt of so many. Raises ContextLengthError where what was
        asked for does not fit. Who did not ask gets no more than every pair can take, so that any
        can run it, but where the prompt itself needs one that takes more.
        """
        if not prompt:
            raise InvalidRequestError("The prompt must not be empty", param=param)
        context = self.context_length
        if error := token_limits.context_error(prompt, asked, context, param=param):
            raise error
        if prompt < self._shortest_context:
            context = self._shortest_context
        return asked or min(context - prompt, default)
