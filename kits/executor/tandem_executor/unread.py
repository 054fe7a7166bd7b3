"""One request's responses that the program has not awaited yet, kept as pieces of tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

from msgspec import Struct

from tandem.errors import TandemError
from tandem.logits.tap import Logits
from tandem_executor.requests import ContextPhaseParams, Request
from tandem_executor.responses import FinishReason, Response, Result
from tandem_executor.statistics import RequestPerfMetrics, TimingMetrics

Measure = Callable[[int, RequestPerfMetrics], object]
"""Writes down what is known of a sequence, by its index."""


class CompletedSequence(NamedTuple):
    """How and why a sequence of a request ended."""

    reason: FinishReason
    stop_reason: str = ""
    withheld: bool = False
    perf_metrics: RequestPerfMetrics | None = None
    logits: Logits | None = None
    """Logits of the whole sequence, where they were asked for and it was not streamed."""
    params: ContextPhaseParams | None = None
    """What a context-only request leaves."""
    replacement: str = ""
    """Text that a classifier shows instead of the withheld output."""
    external_scores: dict[str, Any] | None = None
    """Answers of classifiers, by the classifiers' names; None: nobody asked for them."""


class _Piece(Struct, eq=False):
    """What came of one sequence, and makes a response for each token, or one in all."""

    sequence: int
    token_ids: list[int]
    log_probs: list[float]
    completion: CompletedSequence | None = None
    logits: Logits | None = None
    """Where logits were asked for: of a piece with one token, or with the whole sequence."""
    final: bool = False
    """Whether the piece ends the request."""


class Unread:
    """What came of one request, in the order in which it is to be read.

    Tokens of a request that does not stream are held back until their sequence has ended.
    """

    __slots__ = (
        "_bare",
        "_client_id",
        "_cumulative",
        "_error",
        "_held",
        "_id",
        "_log_probs",
        "_pieces",
        "_request",
        "_shows_all",
        "_so_far",
        "_streaming",
        "_wants_log_probs",
        "arrived",
        "ended",
        "enqueued_at",
        "measure",
        "perf_metrics",
        "ready",
        "unread_tokens",
    )

    def __init__(
        self, request_id: int, request: Request, sequences: int, enqueued_at: float
    ) -> None:
        self._id = request_id
        self._request = request
        # What is asked for each token is kept here, beside what the token changes.
        self._client_id = request.client_id
        self._streaming = request.streaming
        self._shows_all = request.streaming and request.return_all_generated_tokens
        self._wants_log_probs = request.output_config.return_log_probs
        output = request.output_config
        logits = output.return_context_logits or output.return_generation_logits
        more = self._shows_all or self._wants_log_probs or logits
        self._bare = self._streaming and not more
        """A token's response holds the token and nothing else."""
        self._pieces: deque[_Piece] = deque()
        self._held = {number: _Piece(number, [], []) for number in range(sequences)}
        """What sequences that have not ended have beside `_pieces`."""
        self._so_far: list[list[int]] = [[] for _ in range(sequences)]
        """Tokens read of each sequence, for requests whose every response repeats them."""
        self._log_probs: list[list[float]] = [[] for _ in range(sequences)]
        """Log-probabilities read of each sequence; every response repeats them, as upstream's."""
        self._cumulative = [0.0] * sequences
        self._error: TandemError | None = None
        self.enqueued_at = enqueued_at
        """By the clock of `time.monotonic`."""
        self.measure: Measure | None = None
        """None: it has not left the queue, or nobody can say more of it."""
        self.perf_metrics: RequestPerfMetrics | None = None
        """Figures of the sequence that ended last, where the program wants them."""
        self.ended = False
        """Nothing more can come of it."""
        self.ready = 0
        """Responses that can be read."""
        self.arrived = 0
        """Tokens that came."""
        self.unread_tokens = 0

    @property
    def prompt_tokens(self) -> int:
        return len(self._request.input_token_ids)

    def tokens(
        self,
        sequence: int,
        token_ids: list[int],
        log_probs: list[float],
        logits: Logits | None = None,
    ) -> None:
        """Take in the tokens of a sequence that has not ended. The lists are kept. `logits`: of one
        token that is streamed.
        """
        count = len(token_ids)
        self.arrived += count
        self.unread_tokens += count
        if not self._streaming:
            held = self._held[sequence]
            held.token_ids += token_ids
            held.log_probs += log_probs
        elif count:
            self.ready += count
            self._pieces.append(_Piece(sequence, token_ids, log_probs, logits=logits))

    def finish(self, sequence: int, completion: CompletedSequence) -> None:
        """A sequence has ended. The last of its unread responses says so, or one of its own."""
        held = self._held.pop(sequence)
        piece = self._last_of(sequence) if self._streaming else None
        if piece is None:
            piece = held
            self._pieces.append(piece)
            self.ready += 1
        if self._request.output_config.return_perf_metrics:
            self.perf_metrics = self._measured(sequence)
            completion = completion._replace(perf_metrics=self.perf_metrics)
        piece.completion = completion
        piece.logits = completion.logits or piece.logits
        if not self._held:
            self._make_final(piece)
            self.ended = True
            self.measure = None

    def finish_all(self, completion: CompletedSequence) -> None:
        """End every sequence that has not ended."""
        for sequence in list(self._held):
            self.finish(sequence, completion)

    def fail(self, error: TandemError) -> None:
        """End the request: what can be read already stays, and the error comes last."""
        for piece in self._held.values():
            self.unread_tokens -= len(piece.token_ids)
        self._held.clear()
        self.ended = True
        self.measure = None
        self._error = error
        self.ready += 1

    def read(self, into: list[Response]) -> int:
        """Put all responses that are ready `into` a list, and return of how many tokens they are;
        they are not given again.
        """
        tokens = 0
        for piece in self._pieces:
            token_ids = piece.token_ids
            tokens += len(token_ids)
            if self._streaming and len(token_ids) > 1:
                into += self._each(piece)
            elif self._bare and piece.completion is None:
                result = Result(
                    output_token_ids=[token_ids],
                    finish_reasons=[FinishReason.NOT_FINISHED],
                    sequence_index=piece.sequence,
                )
                into.append(Response(self._id, result, self._client_id))
            else:
                into.append(self._response(piece, token_ids, piece.log_probs))
        self._pieces.clear()
        self.unread_tokens -= tokens
        if self._error is not None:
            error = self._error
            message = error.message or error.code
            into.append(Response(self._id, message, self._client_id, error.code))
        self.ready = 0
        return tokens

    def _measured(self, sequence: int) -> RequestPerfMetrics:
        arrived = timedelta(seconds=self.enqueued_at)
        metrics = RequestPerfMetrics(timing_metrics=TimingMetrics(arrival_time=arrived))
        if self.measure is not None:
            self.measure(sequence, metrics)
        return metrics

    def _last_of(self, sequence: int) -> _Piece | None:
        return next((each for each in reversed(self._pieces) if each.sequence == sequence), None)

    def _make_final(self, piece: _Piece) -> None:
        """Move the piece behind all others, for nothing may follow a sequence's last piece."""
        if self._pieces[-1] is not piece:
            self._pieces.remove(piece)
            self._pieces.append(piece)
        piece.final = True

    def _each(self, piece: _Piece) -> Iterator[Response]:
        """A response for each of its tokens."""
        count = len(piece.token_ids)
        for place in range(count):
            part = slice(place, place + 1)
            last = place == count - 1
            yield self._response(piece, piece.token_ids[part], piece.log_probs[part], last=last)

    def _response(
        self, piece: _Piece, token_ids: list[int], log_probs: list[float], *, last: bool = True
    ) -> Response:
        sequence = piece.sequence
        completion = piece.completion if last else None
        result = Result(
            is_final=last and piece.final,
            output_token_ids=[self._shown(sequence, token_ids)],
            finish_reasons=[completion.reason if completion else FinishReason.NOT_FINISHED],
            sequence_index=sequence,
        )
        if self._wants_log_probs:
            self._log_probs[sequence] += log_probs
            self._cumulative[sequence] += sum(log_probs)
            result.log_probs = [list(self._log_probs[sequence])]
            result.cum_log_probs = [self._cumulative[sequence]]
        if piece.logits is not None:
            result.context_logits, result.generation_logits = piece.logits
        if completion is not None:
            result.is_sequence_final = True
            result.withheld, result.stop_reason = completion.withheld, completion.stop_reason
            result.request_perf_metrics = completion.perf_metrics
            result.context_phase_params = completion.params
            result.replacement = completion.replacement
            result.external_scores = completion.external_scores
        return Response(self._id, result, self._client_id)

    def _shown(self, sequence: int, token_ids: list[int]) -> list[int]:
        if self._shows_all:
            self._so_far[sequence] += token_ids
            return list(self._so_far[sequence])
        request = self._request
        if self._streaming or request.output_config.exclude_input_from_output:
            return token_ids
        return [*request.input_token_ids, *token_ids]
