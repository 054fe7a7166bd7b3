"""The processors of one sequence while it runs.

An engine keeps one RequestLogits on its own request object, so that the state is gone with the
request: there is no map to prune and no id to collide (S3-090, S3-093, S3-095).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from tandem.errors import TandemError
from tandem.logits import embedding_bias
from tandem.logits.building import DEFAULT_SECONDS
from tandem.logits.embedding_bias import EmbeddingBias
from tandem.logits.history import TokenHistory
from tandem.logits.model import Model
from tandem.logits.processor import LogitsProcessor, Row, comes_first, keeps_state
from tandem.logits.ready import is_ready_made
from tandem.logits.registry import Registry
from tandem.logits.rows import apply_rows
from tandem.logits.spec import LogitsProcessorSpec
from tandem.v1 import common_pb2

Make = Callable[[], LogitsProcessor]
_alive: set[int] = set()
_report: Callable[[int], object] = int


def alive() -> int:
    """How many sequences have processors in this process now: 0 when nothing is open (S3-090)."""
    return len(_alive)


def report_alive(report: Callable[[int], object]) -> None:
    """Call `report` with `alive()`, now and whenever it changes."""
    global _report
    _report = report
    report(alive())


class Part:
    """One processor of a sequence, and where it stands."""

    __slots__ = ("_make", "batched", "due", "keeps_state", "name", "processor")

    def __init__(self, name: str, make: Make) -> None:
        self.name = name
        self.processor = make()
        self.keeps_state = keeps_state(self.processor)
        self.batched = hasattr(type(self.processor), "apply_batch")
        self.due = 0
        """The position it is ready to be called for."""
        self._make = make

    def renew(self) -> None:
        self.processor = self._make()

    def replay(self, history: TokenHistory, row: Any) -> None:
        """Call a fresh processor for all positions before `history`, with a copy of `row` that is
        thrown away.
        """
        scratch = row[:] + 0.0
        for position in range(history.position):
            self.processor(history.at(position), scratch)


class RequestLogits:
    """Fresh processors for one sequence, applied in the order of its spec (S1-042)."""

    __slots__ = ("__weakref__", "clients_own", "error", "grammar_ends", "parts", "seconds")

    error: TandemError | None
    """What ended the use of the processors, a ProcessorError or ContradictionError; once set it
    stays.
    """

    clients_own: bool
    """Where no token is left, the client's fields have left none: it named processors, and no code
    of a deployment or a program took part.
    """

    grammar_ends: int | None
    """The place in `parts` before which a grammar has masked the row: what it forbids stays
    forbidden, whatever the processors from there on do. None where there is no grammar.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, Make]],
        *,
        seconds: float = DEFAULT_SECONDS,
        engine_grammar: bool = False,
        from_client: bool = False,
    ) -> None:
        """`named`: each processor's name and what makes a fresh one. `seconds`: the limit of one
        call. `engine_grammar`: rows come masked by a grammar of the engine's own. `from_client`: a
        client named some of them.
        """
        self.error = None
        self.seconds = seconds
        self.parts = tuple(Part(name, make) for name, make in named)
        self.clients_own = (from_client or engine_grammar) and all(
            is_ready_made(each.processor) or isinstance(each.processor, EmbeddingBias)
            for each in self.parts
        )
        if engine_grammar:
            self.grammar_ends = 0
        elif self.parts and comes_first(self.parts[0].processor):
            self.grammar_ends = 1
        else:
            self.grammar_ends = None
        _alive.add(id(self))
        _report(len(_alive))

    @staticmethod
    def create(
        registry: Registry,
        spec: LogitsProcessorSpec | None,
        model: Model,
        *,
        engine_grammar: bool = False,
        bias: common_pb2.EmbeddingBias | None = None,
    ) -> RequestLogits:
        """`bias` comes after the processors of `spec`. Raises RequestError or ProcessorError, as
        `Registry.create`.
        """
        entries = () if spec is None else spec.entries
        named: list[tuple[str, Make]] = [
            (entry.name, functools.partial(registry.create, entry, model)) for entry in entries
        ]
        if bias is not None:
            named.append((embedding_bias.PARAM, functools.partial(EmbeddingBias, bias)))
        return RequestLogits(
            named,
            seconds=registry.seconds,
            engine_grammar=engine_grammar,
            from_client=any(getattr(entry, "from_client", False) for entry in entries),
        )

    def apply(self, history: TokenHistory, row: Row) -> TandemError | None:
        """Let each processor edit `row`, (vocabulary,), in place; see `rows.apply_rows`."""
        return apply_rows([self], [history], row[None])[0]

    def __del__(self) -> None:
        _alive.discard(id(self))
        _report(len(_alive))
