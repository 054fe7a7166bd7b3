"""Hooks without a worker: the outputs of one request pass through a chain as a worker would pass
them, and what a client would be shown is kept. For tests and `tandem check-hook`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tandem.errors import HookError
from tandem.hooks.chain import Chain, SequenceChain
from tandem.hooks.deferred import SequenceInfo
from tandem.hooks.piece import Piece
from tandem.hooks.runner.async_ import run


@dataclass(slots=True)
class Brought:
    """What a step brings one output."""

    piece: Piece
    final: bool = False


@dataclass(slots=True)
class Shown:
    """What a client would get of one output."""

    pieces: list[Piece | None] = field(default_factory=list)
    """What each chunk let through; None: nothing."""
    stop_reason: str | None = None
    """The reason of a terminate of this output."""
    error: HookError | None = None
    """A hook failed closed on this output."""
    over: bool = False

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces if piece is not None)

    @property
    def token_ids(self) -> list[int]:
        return [token for piece in self.pieces if piece is not None for token in piece.token_ids]


class TrialRequest:
    """One request. Each of its outputs has a request_id of its own, as in a worker."""

    def __init__(
        self,
        chain: Chain,
        *,
        request_id: int = 1,
        outputs: int = 1,
        streaming: bool = True,
        trace_id: str = "",
    ) -> None:
        self._sequences = [
            chain.sequence(
                SequenceInfo(
                    request_id=request_id + index,
                    group=request_id,
                    output_index=index,
                    streaming=streaming,
                    trace_id=trace_id or f"{request_id:032x}",
                )
            )
            for index in range(outputs)
        ]
        self.outputs = [Shown() for _ in range(outputs)]

    @property
    def over(self) -> bool:
        return all(output.over for output in self.outputs)

    async def step(self, brought: Sequence[Brought | None]) -> None:
        """One turn of the engine: what it brings each output, in order; None: nothing, as to those
        that are over.

        All are judged before anything is shown: what came together with a terminate, or with a
        failure, is not (S0-029).
        """
        judged: list[tuple[Shown, Piece | None]] = []
        ended = False
        for output, sequence, given in zip(self.outputs, self._sequences, brought, strict=True):
            if given is None or output.over:
                continue
            passed = await self._judge(output, sequence, given)
            judged.append((output, passed))
            ended = ended or output.error is not None or output.stop_reason is not None
        for output, passed in judged:
            shows = not ended or output.stop_reason is not None
            output.pieces.append(passed if shows else None)
        if ended:
            await self.abort()

    async def abort(self) -> None:
        """The client has gone, or the request was ended: every hook is told, unless it knows."""
        for output, sequence in zip(self.outputs, self._sequences, strict=True):
            if not output.over:
                output.over = True
                await run(sequence, sequence.end())

    async def _judge(self, output: Shown, sequence: SequenceChain, given: Brought) -> Piece | None:
        await run(sequence, sequence.begin(given.piece, given.final))
        output.error, output.over = sequence.error, sequence.over
        output.stop_reason = sequence.reason
        return sequence.passed
