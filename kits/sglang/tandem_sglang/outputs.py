"""What a step of SGLang's scheduler puts out, on its way to the worker.

SGLang sends a step as one message of forty columns, and its tokenizer manager makes a dictionary of
each row and wakes each request's stream. Most rows say no more than which tokens came: they go in a
message of their own, packed by ourselves, which the engine takes as it comes (inbox.py). What ends
a request, and what has log-probabilities, goes SGLang's way, after it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

HandOver = Sequence[tuple[int, float, str]]
"""[(bytes, seconds, transport)] in the first output of a request, empty in all others."""


class OutputSender(Protocol):
    """Sends as SGLang's SenderWrapper does."""

    socket: Any
    """ZeroMQ's. None: of this rank's outputs nothing is sent, as another one sends the same."""

    def send_output(self, output: Any, recv_obj: object = None) -> None: ...


class RunningRows(msgspec.Struct, tag=True, array_like=True, gc=False):
    """New tokens of requests that go on, in columns of one length."""

    rids: list[str]
    token_ids: list[list[int]]
    cached_tokens: list[int]
    retractions: list[int]
    """How often each was taken out of the batch so far."""
    hand_overs: list[HandOver]


_pack: Final = msgspec.msgpack.Encoder(enc_hook=lambda number: number.item()).encode
"""Counts of SGLang's may be NumPy's."""
_unpack: Final = msgspec.msgpack.Decoder(RunningRows).decode
_TAG: Final = msgspec.msgpack.encode(RunningRows.__name__)


def packed(rows: RunningRows) -> bytes:
    """A message that is none of SGLang's, whether it pickles its own or packs them."""
    return _pack(rows)


def unpacked(message: bytes) -> RunningRows | None:
    """The rows of a message; None: the message is SGLang's own. Raises msgspec.DecodeError."""
    # The tag stands before the columns, behind the head of the array that a message is.
    return _unpack(message) if message.startswith(_TAG, 1) else None


class SplitSender:
    """Sends a step's outputs in these two parts, in place of SGLang's own sender, and where several
    processes have requests in the engine, to each its own.
    """

    def __init__(
        self,
        senders: Sequence[OutputSender],
        wrap: Callable[[Any], Any],
        whose: Callable[[str], int] = lambda rid: 0,
    ) -> None:
        """`senders`: SGLang's SenderWrapper of each process. `wrap`: its wrap_as_pickle. `whose`:
        the place of a request's process among them, by the request's name.
        """
        self._senders = senders
        self._wrap = wrap
        self._whose = whose
        self._plain: Sequence[bool] = ()
        self._hand_overs: dict[str, list[HandOver]] = {}

    def announce(self, plain: Sequence[bool], hand_overs: dict[str, list[HandOver]]) -> None:
        """What comes next: whether a row has nothing beside its tokens, unless it ends, and what
        SGLang calls its customized info.
        """
        self._plain = plain
        self._hand_overs = hand_overs

    def send_output(self, output: Any, recv_obj: object = None) -> None:
        """Send what the scheduler has made of a step, as a SenderWrapper does."""
        plain, self._plain = self._plain, ()
        reasons = output.finished_reasons
        running = [row for row, each in enumerate(plain) if each and reasons[row] is None]
        output.time_stats = None  # of each row, for metrics and spans, which SGLang has none of
        for sender, rows in self._each(output.rids, running):
            if sender.socket is not None:
                sender.socket.send(packed(self._running(output, rows)))
        count = len(output.rids)
        taken = set(running)
        rest = [row for row in range(count) if row not in taken]
        for sender, rows in self._each(output.rids, rest):
            whole = len(rows) == count
            sender.send_output(output if whole else self._rest(output, rows), recv_obj)
        if not count:
            self._senders[0].send_output(output, recv_obj)

    def _each(
        self, rids: Sequence[str], rows: Sequence[int]
    ) -> Iterable[tuple[OutputSender, Sequence[int]]]:
        """The sender of each process that has rows, with its rows."""
        if len(self._senders) == 1:
            return [(self._senders[0], rows)] if rows else []
        parts: dict[int, list[int]] = {}
        for row in rows:
            parts.setdefault(self._whose(rids[row]), []).append(row)
        return [(self._senders[place], part) for place, part in parts.items()]

    def _running(self, output: Any, rows: Sequence[int]) -> RunningRows:
        hand_overs = next(iter(self._hand_overs.values()), [()] * len(output.rids))
        return RunningRows(
            [output.rids[row] for row in rows],
            [list(output.output_ids[row]) for row in rows],
            [output.cached_tokens[row] for row in rows],
            [output.retraction_counts[row] for row in rows],
            [hand_overs[row] for row in rows],
        )

    def _rest(self, output: Any, rows: Sequence[int]) -> Any:
        """An output with all columns of the given rows."""
        count = len(output.rids)
        rest = copy.copy(output)
        for name in output.__struct_fields__:
            column = getattr(output, name)
            if isinstance(column, list) and len(column) == count:
                setattr(rest, name, [column[row] for row in rows])
        if self._hand_overs:
            rest.customized_info = self._wrap(
                {key: [each[row] for row in rows] for key, each in self._hand_overs.items()}
            )
        return rest
