"""The sockets by which several processes have requests in one SGLang engine. Each process has two:
one from which the engine's own processes take its requests, and one to which they send what comes
of them. Both are the process's to bind, so that one that is started again is found again.

The first process is SGLang's own, with sockets that SGLang makes. Here are those of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tandem_sglang import requests
from tandem_sglang.additions import TokenAddresses
from tandem_sglang.outputs import OutputSender


class TokenSockets:
    """The ends that a scheduler has."""

    def __init__(self, addresses: Sequence[TokenAddresses]) -> None:
        """`addresses`: of the processes from the second."""
        self._addresses = addresses
        self._further: Sequence[OutputSender] = ()

    def open(
        self, channels: Any, make: Callable[[Any, str], OutputSender], *, takes_requests: bool
    ) -> Any:
        """SGLang's SchedulerIpcChannels, with those of the other processes. Only the scheduler of
        rank 0 has sockets.

        `make`: a sender, beside SGLang's own, to an address. `takes_requests`: requests come
        straight to this scheduler, as where there is one alone.
        """
        if channels.recv_from_tokenizer is None or not self._addresses:
            return channels
        first = channels.send_to_tokenizer
        self._further = [make(first.socket, each.outputs) for each in self._addresses]
        if takes_requests:
            for each in self._addresses:
                channels.recv_from_tokenizer.connect(each.requests)
        return replace(channels, send_to_tokenizer=Replies(self.senders(first)))

    def senders(self, first: OutputSender) -> Sequence[OutputSender]:
        """The senders to all processes, to the first before the others."""
        return [first, *self._further]


def place_of(rid: str) -> int:
    """Where the sender of a request's process stands."""
    return requests.process_of(rid) - 1


class Replies:
    """Gives what the scheduler answers beside its outputs to whom it is for: what names a request
    to that request's process, all else to the first.
    """

    def __init__(self, senders: Sequence[OutputSender]) -> None:
        self._senders = senders

    def send_output(self, output: Any, recv_obj: object = None) -> None:
        rid = getattr(output, "rid", None)
        place = place_of(rid) if isinstance(rid, str) and rid else 0
        self._senders[place].send_output(output, recv_obj)
