"""A batch's rows in vLLM's engine process: whose they are, and what edits them.

Nothing of vLLM is imported here. vLLM's runners tell which places were taken, and V1's which were
left and exchanged; a sequence's state lives on its row, and goes with it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.errors import InternalError, ProcessorError, RequestError, TandemError
from tandem.logits import embedding_bias
from tandem.logits.arrays import indices, like
from tandem.logits.history import TokenHistory
from tandem.logits.model import Model
from tandem.logits.registry import Registry
from tandem.logits.rows import apply_rows
from tandem.logits.spec import read_entries
from tandem.logits.state import RequestLogits
from tandem_vllm.notes import NoteWriter
from tandem_vllm.penalties import Penalties

log = logging.getLogger(__name__)
Fail = Callable[[str, TandemError], None]
"""Ends a request by vLLM's name of it."""


@dataclass(slots=True, eq=False)
class BatchRow:
    """One sequence of the batch that is more than vLLM's."""

    name: str
    prompt: Sequence[int]
    """Without what another engine made."""
    made: Sequence[int]
    outputs: Sequence[int]
    """vLLM's list of the generated tokens, which grows."""
    first: int | None
    """The token that prefill sampled, which comes next where there are no outputs."""
    penalties: Penalties | None
    state: RequestLogits | None
    told: bool = False
    """Whether its request was ended."""

    @property
    def forced(self) -> bool:
        return self.first is not None and not self.outputs

    def history(self) -> TokenHistory:
        if not self.made:
            return TokenHistory(self.prompt, self.outputs)
        return TokenHistory(self.prompt, [*self.made, *self.outputs])


class Rows:
    """The sequences that vLLM's runner holds, by place."""

    def __init__(self, registry: Registry, model: Model, fail: Fail) -> None:
        self._registry = registry
        self._model = model
        self._fail = fail
        self._rows: dict[int, BatchRow] = {}

    @classmethod
    def configured(cls, given: Mapping[str, Any]) -> Rows:
        """`given`: what `arguments.engine_args` says to vLLM's process."""
        registry = Registry.from_portable(given["registry"])
        return cls(registry, Model(**given["model"]), NoteWriter(given["notes"]).failed)

    def take(
        self,
        place: int,
        given: Mapping[str, Any] | None,
        prompt: Sequence[int],
        outputs: Sequence[int],
    ) -> None:
        """A place is a request's from now on. `given`: `requests.steering` of it; None
        where vLLM does all by itself. `prompt`: with what another engine made. Never raises.
        """
        if given is None:
            self._rows.pop(place, None)
            return
        made = given["made"]
        cut = len(prompt) - made
        self._rows[place] = BatchRow(
            name=given["name"],
            prompt=prompt[:cut] if made else prompt,
            made=prompt[cut:] if made else (),
            outputs=outputs,
            first=given["first"],
            penalties=Penalties.of(given["penalties"]),
            state=self._state(given),
        )

    def leave(self, place: int) -> None:
        """A place is free."""
        self._rows.pop(place, None)

    def move(self, source: int, target: int, *, swap: bool) -> None:
        """A sequence has another place now; with `swap` that one's sequence takes its place."""
        moved, other = self._rows.pop(source, None), self._rows.pop(target, None)
        if moved is not None:
            self._rows[target] = moved
        if swap and other is not None:
            self._rows[source] = other

    def edit(self, logits: Any, places: Mapping[int, int] | None = None) -> None:
        """Edit `logits`, (rows, vocabulary) float32, in place. `places`: by row of `logits`, whose
        it is, for rows that are taken; None: each row is its place's. Never raises: a request that
        fails is ended, and its row is safe to sample.
        """
        batch = self._rows
        if places is not None:
            batch = {at: self._rows[place] for at, place in places.items()}
        if not batch:
            return
        try:
            self._edit(batch, logits)
        except Exception:
            log.exception("the rows of a step could not be edited")
            failed = InternalError("the request's logits could not be edited")
            self._tell((row, failed) for row in batch.values())
            for at in batch:
                logits[at : at + 1] = 0.0

    def _edit(self, batch: Mapping[int, BatchRow], logits: Any) -> None:
        free = [(at, row) for at, row in batch.items() if not row.forced]
        for at, row in free:
            if row.penalties is not None:
                row.penalties.apply(logits[at], row.history())
        self._steer([each for each in free if each[1].state is not None], logits)
        for at, row in batch.items():
            if row.forced:
                logits[at] = -math.inf
                logits[at, row.first] = 0.0

    def _steer(self, steered: Sequence[tuple[int, BatchRow]], logits: Any) -> None:
        if not steered:
            return
        states = [row.state for _, row in steered if row.state is not None]
        histories = [row.history() for _, row in steered]
        chosen = like(logits, indices([at for at, _ in steered]))
        rows = logits[chosen]
        errors = apply_rows(states, histories, rows)
        logits[chosen] = rows
        self._tell(
            (row, error)
            for (_, row), error in zip(steered, errors, strict=True)
            if error is not None
        )

    def _tell(self, failed: Iterable[tuple[BatchRow, TandemError]]) -> None:
        """Once of each."""
        for row, error in failed:
            if not row.told:
                row.told = True
                self._fail(row.name, error)

    def _state(self, given: Mapping[str, Any]) -> RequestLogits | None:
        if not given["spec"] and not given["bias"]:
            return None
        try:
            spec = read_entries(given["spec"]) if given["spec"] else None
            bias = embedding_bias.read(given["bias"])
            return RequestLogits.create(self._registry, spec, self._model, bias=bias)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this request's
            expected = isinstance(error, RequestError | ProcessorError)
            said = str(error) if expected else f"cannot be made: {type(error).__name__}"
            failed = RequestLogits(())
            failed.error = ProcessorError(said)
            return failed
