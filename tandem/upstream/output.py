"""What workers wrote, as routers pass it on: hands each row, report and end to its request.

A frame that cannot be read ends the sequences that it was of, or all that run on its worker where
nobody knows; it is counted, named, and told to the router, which knows whose fault it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType

from google.protobuf.message import DecodeError

from tandem.complaints import Complaints
from tandem.errors import WorkerError
from tandem.upstream import rows
from tandem.upstream.metrics import UpstreamMetrics
from tandem.upstream.request_state import RequestState
from tandem.upstream.router_stream import RouterStream
from tandem.v1 import common_pb2, router_pb2
from tandem.wire import frames

log = logging.getLogger(__name__)

# Repeated fields are cut into lists before they are gone through, here, in rows.py and in
# demultiplexer.py: protobuf ends each iteration with an IndexError and its text, which costs more
# than the row of a token. A field that few messages have is asked for first: to cut what is not
# there costs twice as much.

UNREADABLE = "a payload that is no tandem.v1.TokenColumns"
FOREIGN = "rows of sequences that run elsewhere"
LOST = "the router could not pass it on"
_NONE: Mapping[int, RequestState] = MappingProxyType({})


class Runs:
    """Which worker each open sequence runs on, as routers say: whose output it may be, and what
    ends where that worker's output is lost. A router numbers its workers for itself, so a worker is
    known by stream and number.
    """

    def __init__(self) -> None:
        self._of: dict[tuple[RouterStream, int], dict[int, RequestState]] = {}
        self._at: dict[int, tuple[RouterStream, int]] = {}

    def begin(self, stream: RouterStream, worker: int, sequence: int, state: RequestState) -> None:
        """The sequence runs on that worker from now on, and nowhere else."""
        self.end(sequence)
        self._at[sequence] = stream, worker
        self._of.setdefault((stream, worker), {})[sequence] = state

    def knows(self, sequence: int) -> bool:
        """Whether a router has said on which worker the sequence runs."""
        return sequence in self._at

    def end(self, sequence: int) -> None:
        """Nothing more is expected of the sequence, which need not be known."""
        place = self._at.pop(sequence, None)
        if place is not None:
            here = self._of[place]
            del here[sequence]
            if not here:
                del self._of[place]

    def of(self, stream: RouterStream, worker: int) -> Mapping[int, RequestState]:
        """The requests of the sequences that run on a worker, by sequence."""
        return self._of.get((stream, worker), _NONE)


class OutputReceiver:
    """Knows every sequence that has not ended, and whose it is."""

    def __init__(
        self, metrics: UpstreamMetrics, complaints: Complaints, clock: Callable[[], float]
    ) -> None:
        self._metrics = metrics
        self._complaints = complaints
        self._clock = clock
        self._routes: dict[int, RequestState] = {}
        self._running = Runs()

    def expect(self, state: RequestState) -> None:
        self._routes.update(dict.fromkeys(state.sequences, state))

    def of(self, sequence: int) -> RequestState | None:
        """The request of a sequence that has not ended."""
        return self._routes.get(sequence)

    def end(self, sequence: int) -> None:
        """Nothing more is expected of it. It need not be known."""
        self._routes.pop(sequence, None)
        self._running.end(sequence)

    def receive(self, stream: RouterStream, message: router_pb2.RouterMessage) -> None:
        """Raises ValueError or DecodeError where the router itself breaks the protocol."""
        if message.run_sequence or message.run_worker:
            self._begin_all(stream, message)
        if payload := message.payload:
            for worker, part in frames.split_parts(message, payload):
                self.receive_part(stream, worker, part)
        if message.lost:
            for worker in message.lost[:]:
                self._lost(stream, worker, LOST)

    def _begin_all(self, stream: RouterStream, message: router_pb2.RouterMessage) -> None:
        for sequence, worker in zip(message.run_sequence[:], message.run_worker[:], strict=True):
            self._begin(stream, sequence, worker)

    def _begin(self, stream: RouterStream, sequence: int, worker: int) -> None:
        """A sequence runs on a worker from now on, if it is open by that stream."""
        state = self._routes.get(sequence)
        if state is not None and state.first_of(sequence) in stream.open:
            self._running.begin(stream, worker, sequence, state)
            state.begin(sequence)

    def runs(self, sequence: int) -> bool:
        """Whether a router has said that it began with a sequence, which has not ended."""
        return self._running.knows(sequence)

    def receive_part(self, stream: RouterStream, worker: int, payload: bytes) -> None:
        """What one worker wrote; 0: the router does not say which."""
        if (row := frames.read_row(payload)) is not None:
            self._lone(stream, worker, row)
            return
        try:
            columns = frames.parse(payload)
        except DecodeError:
            if not worker:
                raise
            self._lost(stream, worker, UNREADABLE)
            return
        if columns.prompt_logprobs:  # before any row
            for part in columns.prompt_logprobs[:]:
                if fault := rows.hand_out_prompt(part, self._routes):
                    self._complain(stream, worker, fault)
        routes = self._running.of(stream, worker) if worker else self._routes
        try:
            out = rows.hand_out(columns, routes, self._clock())
        except ValueError as error:
            self._fail_of(stream, worker, columns, str(error))
            return
        if (tokens := self._metrics.completion_tokens) is not None:
            tokens.count += out.tokens
        if columns.report:
            for report in columns.report[:]:
                if state := self._routes.get(report.sequence):
                    state.guarded(state.report, report)
        if columns.finish:
            for finish in columns.finish[:]:
                self._finish(finish, routes, out)
        if out.strays and not out.strays.isdisjoint(self._routes):
            self._complain(stream, worker, FOREIGN)
        if out.faults:
            for fault in set(out.faults.values()):
                self._complain(stream, worker, fault)

    def _lone(self, stream: RouterStream, worker: int, row: frames.Row) -> None:
        """Hand out a payload of one row of text, the usual payload of a lone stream."""
        routes = self._running.of(stream, worker) if worker else self._routes
        sequence, _, count, _ = row
        state = routes.get(sequence)
        if state is None:
            if sequence in self._routes:
                self._complain(stream, worker, FOREIGN)
        elif not state.row(*row, self._clock(), True):
            state.fail(rows.unreadable())
            self._complain(stream, worker, rows.GAP)
        if (tokens := self._metrics.completion_tokens) is not None:
            tokens.count += count

    def _finish(
        self,
        finish: common_pb2.Finish,
        routes: Mapping[int, RequestState],
        out: rows.HandedOut,
    ) -> None:
        sequence = finish.sequence
        state = routes.get(sequence)
        if state is None:
            out.strays.add(sequence)
        elif not state.fits(finish):
            out.faults[sequence] = rows.GAP
            state.fail(rows.unreadable())
        else:
            self.end(sequence)
            state.guarded(state.finish, finish)

    def _fail_of(
        self, stream: RouterStream, worker: int, columns: common_pb2.TokenColumns, fault: str
    ) -> None:
        """End the requests that a malformed frame is of, and no others: those that it names, or,
        where a sequence is missing in it, all that run on the worker.
        """
        rest = (len(columns.token_count), len(columns.text), len(columns.offset))
        if worker and len(columns.sequence) < max(rest):
            self._lost(stream, worker, fault)
            return
        finished = (finish.sequence for finish in columns.finish)
        routes = self._running.of(stream, worker) if worker else self._routes
        for sequence in {*columns.sequence, *finished}:
            if state := routes.get(sequence):
                state.fail(rows.unreadable())
        self._complain(stream, worker, fault)

    def _lost(self, stream: RouterStream, worker: int, fault: str) -> None:
        """End every request that runs on a worker whose output is lost."""
        for state in dict.fromkeys(self._running.of(stream, worker).values()):
            state.fail(rows.unreadable())
        self._complain(stream, worker, fault)

    def _complain(self, stream: RouterStream, worker: int, fault: str) -> None:
        self._metrics.unreadable.inc()
        if worker and fault != LOST:
            stream.complain(worker, fault)
        self._complaints.warn(
            "output of a worker cannot be read",
            WorkerError.code,
            reason=fault,
            worker=worker,
        )
