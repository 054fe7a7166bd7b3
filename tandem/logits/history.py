"""What a processor sees of the tokens so far. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import overload


class HistoryUnavailableError(LookupError):
    """A processor read tokens that its engine does not show. It should declare `Need.HISTORY`, to
    be refused at once.
    """


class TokenHistory(Sequence[int]):
    """Token ids of the prompt, then of what was generated so far, at the moment of one call.

    `position` and `len()` are always exact. The tokens are there only where the engine shows them
    (`has_tokens`). A view, not a copy: a processor must not keep it.
    """

    __slots__ = ("_generated", "_prompt", "position", "prompt_length")

    position: int
    """Tokens generated so far: 0 for the one that prefill samples, 1 for the first of decode."""
    prompt_length: int

    def __init__(self, prompt: Sequence[int], generated: Sequence[int]) -> None:
        self._prompt: Sequence[int] | None = prompt
        self._generated: Sequence[int] = generated
        self.position = len(generated)
        self.prompt_length = len(prompt)

    @classmethod
    def without_tokens(cls, *, prompt_length: int, position: int) -> TokenHistory:
        """For an engine that knows where a sequence is, but not yet which token came last."""
        history = cls((), ())
        history._prompt = None
        history.prompt_length = prompt_length
        history.position = position
        return history

    def at(self, position: int) -> TokenHistory:
        """The history at the moment when `position` tokens were generated."""
        earlier = TokenHistory((), self._generated)
        earlier._prompt = self._prompt
        earlier.prompt_length = self.prompt_length
        earlier.position = position
        return earlier

    @property
    def has_tokens(self) -> bool:
        return self._prompt is not None

    @property
    def generated(self) -> Sequence[int]:
        """The generated tokens alone. Raises HistoryUnavailableError."""
        self._shown_prompt()
        if len(self._generated) == self.position:
            return self._generated
        return self._generated[: self.position]

    def __len__(self) -> int:
        return self.prompt_length + self.position

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self._token(place) for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"token {index} of a history of {len(self)}")
        return self._token(place)

    def __iter__(self) -> Iterator[int]:
        return chain(self._shown_prompt(), islice(self._generated, self.position))

    def _token(self, place: int) -> int:
        prompt = self._shown_prompt()
        if place < self.prompt_length:
            return prompt[place]
        return self._generated[place - self.prompt_length]

    def _shown_prompt(self) -> Sequence[int]:
        if self._prompt is None:
            raise HistoryUnavailableError(
                "this engine gives a logits processor its position, but not the tokens: "
                "declare Need.HISTORY in `needs` to be refused before the request starts"
            )
        return self._prompt
