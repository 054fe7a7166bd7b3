"""Whom a gRPC server answers: each call's certificate must bear the role that may call it.

Health checks and reflection are calls like any other: who may not call learns nothing.
"""

from __future__ import annotations

import logging

import grpc

from tandem.complaints import Complaints
from tandem.wire.tls import PeerRole, PeerTls
from tandem_loop_grpc.serving import Context

log = logging.getLogger(__name__)


class CallerCheck:
    """Asked once for each call, so that a stream of tokens costs no more for it."""

    def __init__(self, credentials: PeerTls, caller: PeerRole | None) -> None:
        self._name = None if caller is None else credentials.name_of(caller)
        self._complaints = Complaints(log)

    def close(self) -> None:
        """No more calls come: say what has not been said."""
        self._complaints.close()

    async def admit(self, context: Context) -> None:
        """Ends the call where its certificate does not bear the role. A pattern such as `*.tandem`
        is a name of its own here, and matches nothing.
        """
        names = context.names()
        if self._name is not None and self._name in names:
            return
        self._complaints.warn(
            "call refused: wrong role",
            grpc.StatusCode.PERMISSION_DENIED.name,
            peer=context.peer(),
            reason=f"the certificate names {', '.join(names)[:200]}",
        )
        await context.abort(
            grpc.StatusCode.PERMISSION_DENIED, f"only {self._name or 'nobody'} may call here"
        )
