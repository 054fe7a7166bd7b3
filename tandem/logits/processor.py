"""The logits processor's contract: what a processor is given, and what it may do. Standard library
only.

A processor is a callable class. A worker builds one for each sequence from the request's JSON
arguments, in both phases, and calls it before every token is sampled, with the history so far and
one row of logits, which it edits in place:

    class BanToken:
        needs = frozenset({Need.VOCABULARY})

        def __init__(self, token_id: int) -> None:
            self._token_id = token_id

        def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
            logits[self._token_id] = -math.inf

The row is a 1-D numpy array or torch tensor of float32, one value for each token id, after
penalties and before temperature. Prefill samples the first token and decode all others in another
process: derive what you do from `input_ids.position`, which is exact in both, and not from a
counter of your own, which starts again in decode (S1-051, S1-052, S3-097).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, Protocol, overload

INTERFACE_VERSION = 1
"""Of this module. A class may state the one it was written for as `interface_version`; another one
is refused at load.
"""


class Need(enum.Enum):
    """What a processor must be given to be right. An engine that cannot give it refuses the request
    (S3-092).
    """

    POSITION = "position"
    """How many tokens were generated."""
    HISTORY = "history"
    """Which tokens: the prompt's and the generated ones, the last one included."""
    VOCABULARY = "vocabulary"
    """A row over the whole vocabulary, indexed by token id."""


EVERYTHING = frozenset(Need)


class HistoryUnavailableError(LookupError):
    """A processor read tokens that its engine does not show. It should declare `Need.HISTORY`, to
    be refused at once.
    """


class Row(Protocol):
    """One row of logits, (vocabulary,): what numpy arrays and torch tensors have in common."""

    def __len__(self) -> int: ...
    def __getitem__(self, key: Any, /) -> Any: ...
    def __setitem__(self, key: Any, value: Any, /) -> None: ...
    def max(self) -> Any: ...


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

    @property
    def has_tokens(self) -> bool:
        return self._prompt is not None

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


class LogitsProcessor(Protocol):
    """What a processor class must offer.

    Class attributes, both optional: `needs`, a set of Need (absent: everything, to be safe), and
    `interface_version`. A method `check_vocabulary(size: int) -> None` is optional too: it raises
    ValueError at admission, where an argument names a token that the model does not have.
    """

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None: ...


def needs_of(processor: object) -> frozenset[Need]:
    """What a processor, or its class, declares; everything where it declares nothing."""
    return frozenset(getattr(processor, "needs", EVERYTHING))
