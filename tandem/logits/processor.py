"""The logits processor's contract: what a processor is given, and what it may do.

A processor is a callable class. A worker builds one for each sequence from the request's JSON
arguments, in both phases, and calls it before every token is sampled, with the history so far and
one row of logits, which it edits in place:

    class BanToken(BaseLogitsProcessor):
        needs = frozenset({Need.VOCABULARY})
        keeps_state = False

        def __init__(self, token_id: int) -> None:
            self._token_id = token_id

        def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
            logits[self._token_id] = -math.inf

The row is a 1-D numpy array or torch tensor of float32, one value for each token id, after
penalties and before temperature. Prefill samples the first token and decode all others in another
process, so a processor that is given what it needs must decide alike in both (S1-051, S1-052,
S3-097).
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from tandem.logits.history import TokenHistory
from tandem.logits.model import Model

INTERFACE_VERSION = 1
"""The version of this module. A class may state the one it was written for as `interface_version`;
another one is refused at load."""


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
    TOKENIZER = "tokenizer"
    """The model's tokenizer: `Model.encode` and `Model.decode` in `prepare`."""


EVERYTHING = frozenset(Need)


class Row(Protocol):
    """One row of logits, (vocabulary,): what numpy arrays and torch tensors have in common. Rows,
    (rows, vocabulary), of the batched form are the same.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, key: Any, /) -> Any: ...
    def __setitem__(self, key: Any, value: Any, /) -> None: ...
    def max(self) -> Any: ...


class BaseLogitsProcessor(ABC):
    """What a processor may say of itself, with the answers that are always safe.

    Deriving from it is not required: a class with the same `__call__` serves as well. What a class
    does not declare is taken from here.
    """

    needs: ClassVar[frozenset[Need]] = EVERYTHING
    """What the engine must give it."""
    keeps_state: ClassVar[bool] = True
    """Whether an instance remembers something from call to call that it could not derive from its
    position and history. Such an instance is called once for each position in order, in every
    process: where decode begins, and wherever an engine goes back, a fresh one is first called for
    all earlier positions, with a row that is thrown away.
    """
    deterministic: ClassVar[bool] = True
    """Whether equal arguments, histories and rows give equal rows. One that is not is refused where
    several processes must agree (tensor parallelism).
    """
    leaves_token: bool = False
    """Whether the last call has surely left a token to sample, if it was given one: such rows need
    not be looked at afterwards. A class, or an instance after each call, may say so.
    """

    def prepare(self, model: Model) -> None:  # noqa: B027 - most have nothing to prepare
        """Called once, after construction, with what is known of the model: at admission, and again
        where the sequence runs. A ValueError is the client's, as from the constructor.
        """

    @abstractmethod
    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        """Edit `logits`, (vocabulary,), in place. An exception ends the request, and no other."""


@runtime_checkable
class BatchedLogitsProcessor(Protocol):
    """A class that can also edit all its rows of a step at once.

    `apply_batch(processors, histories, logits)` is a class method: row i of `logits`, (rows,
    vocabulary), belongs to processors[i] and histories[i]. It must do what `__call__` does on each
    row alone. When it raises, the rows are restored and edited one by one, so that only the guilty
    request ends; a class whose batched form raises for no input may say `batch_is_total = True`,
    which saves the copy that this takes.
    """

    @classmethod
    def apply_batch(
        cls, processors: Sequence[Any], histories: Sequence[TokenHistory], logits: Row
    ) -> None: ...


class LogitsProcessor(Protocol):
    """The least that a processor class must offer; see BaseLogitsProcessor for the rest."""

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None: ...


def needs_of(processor: object) -> frozenset[Need]:
    """What a processor, or its class, declares; everything where it declares nothing."""
    return frozenset(getattr(processor, "needs", EVERYTHING))


def keeps_state(processor: object) -> bool:
    return bool(getattr(processor, "keeps_state", True))


def deterministic(processor: object) -> bool:
    return bool(getattr(processor, "deterministic", True))


def leaves_token(processor: object) -> bool:
    return bool(getattr(processor, "leaves_token", False))


def comes_first(processor: object) -> bool:
    """Whether it is a grammar: an engine applies its own before all processors."""
    return bool(getattr(processor, "comes_first", False))
