"""Runs in SGLang's scheduler processes: what another engine sends about hand-overs costs that one
at most.

A thread of SGLang reads it, and ends with what it cannot read or use, and the engine with it
(threads.py): a decode engine whose KV lies otherwise would end every prefill engine that it is
tried with, again and again. So each message is looked at before the thread has it. Of what does not
fit nothing is done but a line in the log, and hand-overs to who could not be registered fail.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

from sglang.srt.disaggregation.mooncake import conn as mooncake
from sglang.srt.disaggregation.nixl import conn as nixl

from tandem_sglang.once import SaidOnce

_STAGING = frozenset({b"WATERMARK", b"STAGING_RSP", b"STAGING_REQ", b"CHUNK_READY"})
"""What is for SGLang's staging buffers alone, which few engines have."""
_REFUSED = 64
"""Decode engines that are remembered although their KV does not fit."""
Message = Sequence[bytes]
Fits = Callable[[Message], bool]
_trouble = SaidOnce("another engine's message about a hand-over cannot be used")


class Gate:
    """A socket that hands on what fits."""

    def __init__(self, socket: Any, fits: Fits) -> None:
        self._socket = socket
        self._fits = fits

    def recv_multipart(self, *args: Any, **kwargs: Any) -> Message:
        while True:
            message: Message = self._socket.recv_multipart(*args, **kwargs)
            try:
                if self._fits(message):
                    return message
            except Exception as error:  # noqa: BLE001 - of who sent it: it would end the engine
                _trouble.say("", f"it cannot be read ({type(error).__name__})")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class NixlPeers:
    """The decode engines of a prefill engine."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._refused: dict[str, Message] = {}
        """How each registers whose KV does not fit."""

    def fits(self, message: Message) -> bool:
        """A decode engine is registered here, and no message of that handed on."""
        if message[0] in _STAGING:
            return bool(self._manager.enable_staging)
        if message[0] == b"ABORT":
            return True  # which SGLang itself reads with care
        if message[0] != nixl.GUARD:
            _trouble.say("", "no decode engine begins a message so")
            return False
        if message[1] == b"None":
            self._register(message[1:])
            return False
        asked = nixl.TransferInfo.from_zmq(message[1:])
        if asked.agent_name in self._refused:  # what kept it may have passed
            self._register(self._refused[asked.agent_name])
        return _writes_to(self._manager, asked.agent_name, asked)

    def _register(self, message: Message) -> None:
        peer = nixl.KVArgsRegisterInfo.from_zmq(message)
        try:
            self._manager._add_remote_peer(peer)
        except Exception as error:  # noqa: BLE001 - of SGLang and NIXL, about this peer
            _trouble.say(peer.endpoint, f"{type(error).__name__}: {error}")
            self._manager.decode_kv_args_table.pop(peer.agent_name, None)
            with contextlib.suppress(Exception):
                self._manager.agent.remove_remote_agent(peer.agent_name)
            self._refused[peer.agent_name] = message
            if len(self._refused) > _REFUSED:
                del self._refused[next(iter(self._refused))]  # the one that was refused first
        else:
            self._refused.pop(peer.agent_name, None)


def _decode(manager: Any, message: Message) -> bool:
    if message[0] in _STAGING:
        return bool(manager.enable_staging)
    if message[0] == b"ABORT_ACK":
        _check_numbers(message[1:3])
    return True  # SGLang reads the rest with care


def _mooncake_prefill(manager: Any, message: Message) -> bool:
    if message[0] in _STAGING:
        return bool(manager.enable_staging)
    if message[0] == b"ABORT":
        _check_numbers((message[1], message[3]))
        message[2].decode("ascii")
    elif message[0] == b"None":
        peer = mooncake.KVArgsRegisterInfo.from_zmq(message)
        _check_numbers([message[3].rpartition(b":")[2]])  # which the scheduler's loop adds up
        manager.requires_dcp_relayout(peer.dst_dcp_size, peer.dst_dcp_rank)
    else:
        asked = mooncake.TransferInfo.from_zmq(message)
        session = asked.mooncake_session_id
        # Of a room that is not known yet either: other than NIXL's, the thread that writes would
        # end with who is not registered, and the engine with it.
        return _writes_to(manager, session, asked) and session in manager.decode_kv_args_table
    return True


def _mooncake_decode(manager: Any, message: Message) -> bool:
    if message[0] == mooncake.MooncakeKVManager.AUX_DATA_HEADER:
        manager._handle_aux_data(message)
        return False
    return _decode(manager, message)


def _writes_to(manager: Any, peer: str, asked: Any) -> bool:
    """Whether that decode engine is registered. Else its hand-over fails, on both sides."""
    if peer in manager.decode_kv_args_table or asked.room not in manager.request_status:
        return True
    manager.conclude_failure(
        bootstrap_room=asked.room,
        failure_reason="this prefill engine cannot write to that decode engine: its log says why",
        targets=[(asked.endpoint, asked.dst_port)],
    )
    return False


def _check_numbers(fields: Sequence[bytes]) -> None:
    for field in fields:
        int(field.decode("ascii"))


class NixlGates:
    """For SGLang's NixlKVManager: a gate before the socket of each thread that reads messages."""

    server_socket: Any

    def _start_bootstrap_thread(self) -> None:
        self.server_socket = Gate(self.server_socket, NixlPeers(self).fits)
        super()._start_bootstrap_thread()  # type: ignore[misc]

    def _start_decode_listener_thread(self) -> None:
        self.server_socket = Gate(self.server_socket, functools.partial(_decode, self))
        super()._start_decode_listener_thread()  # type: ignore[misc]


class MooncakeGates:
    """The same for its MooncakeKVManager."""

    server_socket: Any

    def start_prefill_thread(self) -> None:
        self.server_socket = Gate(self.server_socket, functools.partial(_mooncake_prefill, self))
        super().start_prefill_thread()  # type: ignore[misc]

    def start_decode_thread(self) -> None:
        self.server_socket = Gate(self.server_socket, functools.partial(_mooncake_decode, self))
        super().start_decode_thread()  # type: ignore[misc]
