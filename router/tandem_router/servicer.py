"""The router's gRPC service, for frontends and for plain callers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any, NoReturn

import grpc.aio
from google.protobuf.message import DecodeError

from tandem.errors import InvalidRequestError, QueueFullError, TandemError, TooLargeError
from tandem.v1 import common_pb2, router_pb2, router_pb2_grpc
from tandem.wire.grpc import answering_bytes
from tandem.wire.prompt_chunks import Names, ReadChunks
from tandem_router import generate, ingress
from tandem_router.config import RouterConfig
from tandem_router.core import events
from tandem_router.links import FrontendLink
from tandem_router.permissions import Permissions
from tandem_router.relay import Relay
from tandem_router.workers import Workers

CODE_METADATA = "tandem-code"
"""Trailing metadata of a failed call: the `code` of the error, a class of tandem/errors.py."""
PARAM_METADATA = "tandem-param"
PHASE_METADATA = "tandem-phase"
MOST_DETAILS = 1_000
"""Characters of an error's message; headers of a call hold no more than 8 KiB together."""

FrontendContext = grpc.aio.ServicerContext[router_pb2.FrontendMessage, bytes]


class RouterServicer(router_pb2_grpc.RouterServicer):
    def __init__(self, config: RouterConfig, relay: Relay, workers: Workers) -> None:
        self._config = config
        self._relay = relay
        self._workers = workers
        self._permissions = Permissions(
            client_logits_processors=config.client_logits_processors,
            allow_reports=config.allow_reports,
            allow_external_scores=config.allow_external_scores,
            allow_kv_hints=config.allow_kv_hints,
        )

    def add_to(self, server: Any) -> None:
        """What frontends are told is bytes already (FrontendLink)."""
        router_pb2_grpc.add_RouterServicer_to_server(self, answering_bytes(server, "Connect"))

    async def Connect(  # type: ignore[override]
        self, request_iterator: AsyncIterator[router_pb2.FrontendMessage], context: FrontendContext
    ) -> None:
        chunks = ReadChunks(self._relay.chunk_room)
        link = FrontendLink(
            self._config.max_backlog_bytes, self._relay.budget, prompt_chunks=chunks.most
        )
        number = self._relay.frontend_up(link)
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(self._read(request_iterator, number, link, chunks))
            group.create_task(self._write(context, link))
            try:
                await link.over.wait()
            finally:
                reading.cancel()
                link.outbox.stop()
                self._relay.frontend_down(number)
                chunks.close()
        if link.failure is not None:
            await _abort(context, link.failure)

    async def _read(
        self,
        messages: AsyncIterator[router_pb2.FrontendMessage],
        number: int,
        link: FrontendLink,
        chunks: ReadChunks,
    ) -> None:
        async for message, names in _readable(messages, link, chunks):
            for items in ingress.slices(message):
                self._relay.handle(*(self._event(number, item, names) for item in items))
                if len(items) < len(message.submit) + len(message.cancel):
                    await asyncio.sleep(0)
            for complaint in message.complaint:
                self._relay.complaint(complaint.worker, complaint.fault[: ingress.MAX_FAULT])
        link.over.set()

    def _event(self, number: int, item: ingress.Item, names: Iterator[Names]) -> events.Event:
        if isinstance(item, int):
            return events.Cancel(number, item)
        return ingress.read_submit(
            number,
            item,
            chunk_names=next(names),
            permissions=self._permissions,
            vouchers=self._relay.vouchers,
            max_timeout_seconds=self._config.max_timeout_seconds,
            tracing=self._relay.tracer is not None,
        )

    async def _write(self, context: Any, link: FrontendLink) -> None:
        await link.outbox.write_to(context)
        link.over.set()

    async def Generate(
        self,
        request: router_pb2.GenerateRequest | None,
        context: grpc.aio.ServicerContext[router_pb2.GenerateRequest, router_pb2.GenerateResponse],
    ) -> AsyncIterator[router_pb2.GenerateResponse]:
        """`request`: None where it was too much to be parsed (tandem/wire/bounded.py)."""
        if request is None:
            await _abort(
                context, TooLargeError("the request has too many parts, or too large ones")
            )
        config = self._config
        answers = generate.Answers(
            request.n or 1,
            config.max_backlog_bytes,
            self._relay.budget,
            prompt_logprobs=request.task.sampling.HasField("prompt_logprobs"),
        )
        number = self._relay.frontend_up(answers)
        try:
            submit = generate.submit(
                request,
                frontend=number,
                permissions=self._permissions,
                max_n=config.max_n,
                default_timeout_seconds=config.default_timeout_seconds,
                max_timeout_seconds=config.max_timeout_seconds,
            )
            self._relay.handle(await self._paired(submit, answers))
            async for response in answers.responses():
                yield response
        except TandemError as error:
            await _abort(context, error)
        finally:
            self._relay.frontend_down(number)

    async def _paired(self, submit: events.Submit, answers: generate.Answers) -> events.Submit:
        """The request, with the time that is left of it, once it need not wait any longer for its
        model's first pair. The core knows no model before that, and queues what comes later.

        Raises QueueFullError where too many wait so, or there is no memory for it.
        """
        relay, clock = self._relay, asyncio.get_running_loop().time
        message = submit.message
        if not relay.awaits_pair(message.model):
            return submit
        if relay.early + message.n > self._config.max_queue:
            raise QueueFullError(f"{relay.early} sequences are waiting already; try again later")
        kept, since = relay.budget.allotment(), clock()
        kept.admit(len(submit.task))
        relay.early += message.n
        try:
            with suppress(TimeoutError):
                wait = min(self._config.pair_wait_seconds, message.timeout_ms / 1000)
                async with asyncio.timeout(wait):
                    while relay.awaits_pair(message.model):
                        await answers.news()
        finally:
            relay.early -= message.n
            kept.close()
        waited_ms = int((clock() - since) * 1000)
        message.timeout_ms = max(0, message.timeout_ms - waited_ms)
        return submit

    async def Describe(
        self,
        request: router_pb2.DescribeRouterRequest,
        context: grpc.aio.ServicerContext[
            router_pb2.DescribeRouterRequest, router_pb2.RouterDescription
        ],
    ) -> router_pb2.RouterDescription:
        core = self._relay.core.snapshot()
        return router_pb2.RouterDescription(
            models=self._relay.fleet.models,
            workers=self._workers.statuses(),
            queued=core.queue_length + self._relay.early,
            open_sequences=core.open_sequences,
        )


async def _readable(
    messages: AsyncIterator[router_pb2.FrontendMessage], link: FrontendLink, chunks: ReadChunks
) -> AsyncIterator[tuple[router_pb2.FrontendMessage, Iterator[Names]]]:
    """Messages with their whole prompts, and the names of the chunks of each, until the frontend
    ends its stream, or says what cannot be: then its link fails.
    """
    try:
        async for message in messages:
            ingress.check_message(message)
            yield message, iter(chunks.complete(message.submit))
    except DecodeError:
        link.fail(InvalidRequestError("a message is no tandem.v1.FrontendMessage"))
    except TandemError as error:
        link.fail(error)


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: TandemError) -> NoReturn:
    """End the call with the error's status; its code travels beside it."""
    trailing = [(CODE_METADATA, error.code)]
    if error.param and error.param.isascii() and error.param.isprintable():
        trailing.append((PARAM_METADATA, error.param))
    if error.phase:
        trailing.append((PHASE_METADATA, common_pb2.Phase.Name(error.phase)))
    details = f"{error.code}: {error.message[:MOST_DETAILS]}"
    await context.abort(error.grpc_status, details, tuple(trailing))
