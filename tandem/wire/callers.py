"""Whom a gRPC server answers: each call's certificate must bear the role that may call it.

Health checks and reflection are calls like any other: who may not call learns nothing.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio

from tandem.complaints import Complaints
from tandem.wire import tls
from tandem.wire.tls import PeerRole, PeerTls

log = logging.getLogger(__name__)

_MAKE: dict[tuple[bool, bool], Callable[..., grpc.RpcMethodHandler[Any, Any]]] = {
    # Whether requests and responses stream.
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class CallerCheck(grpc.aio.ServerInterceptor):
    """Asked once for each call, so that a stream of tokens costs no more for it."""

    def __init__(self, credentials: PeerTls, caller: PeerRole | None) -> None:
        self._name = None if caller is None else credentials.name_of(caller)
        self._complaints = Complaints(log)

    def close(self) -> None:
        """No more calls come: say what has not been said."""
        self._complaints.close()

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        return handler and self._guarded(handler)

    def _guarded(self, handler: Any) -> grpc.RpcMethodHandler[Any, Any]:
        kind = (handler.request_streaming, handler.response_streaming)
        (behaviour,) = filter(
            None,
            (
                handler.unary_unary,
                handler.unary_stream,
                handler.stream_unary,
                handler.stream_stream,
            ),
        )
        # gRPC looks at the kind of function that it is given.
        guard = self._yields if inspect.isasyncgenfunction(behaviour) else self._returns
        return _MAKE[kind](
            guard(behaviour),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _returns(self, behaviour: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        async def guarded(request: Any, context: Any) -> Any:
            await self._admit(context)
            return await behaviour(request, context)

        return guarded

    def _yields(self, behaviour: Callable[..., Any]) -> Callable[..., Any]:
        async def guarded(request: Any, context: Any) -> AsyncIterator[Any]:
            await self._admit(context)
            async with aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    yield response

        return guarded

    async def _admit(self, context: Any) -> None:
        """Ends the call where its certificate does not bear the role."""
        names = tls.names(context.auth_context())
        if self._name is not None and self._name in names:
            return
        self._complaints.warn(
            "call refused: wrong role",
            grpc.StatusCode.PERMISSION_DENIED.name,
            peer=context.peer(),
            reason=f"it is {', '.join(names)[:200]}",
        )
        await context.abort(
            grpc.StatusCode.PERMISSION_DENIED, f"only {self._name or 'nobody'} may call here"
        )
