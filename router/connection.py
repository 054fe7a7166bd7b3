"""The router's stream to one worker: opened, kept, and opened again for ever."""

from __future__ import annotations

import asyncio
import logging

import grpc.aio

from router import translate
from router.core.values import Profile
from router.discovery import Listed
from router.links import WorkerLink
from router.relay import Relay
from tandem.v1 import worker_pb2, worker_pb2_grpc
from tandem.wire.grpc import open_channel

log = logging.getLogger(__name__)

DESCRIBE_SECONDS = 5.0
FIRST_BACKOFF_SECONDS = 0.1
LAST_BACKOFF_SECONDS = 2.0


class WorkerConnection:
    """Says Describe, then Connect; when the stream breaks it starts over after a pause that grows
    while attempts fail.
    """

    def __init__(
        self, listed: Listed, relay: Relay, *, silence_seconds: float, max_backlog_bytes: int
    ) -> None:
        self.listed = listed
        self.description: worker_pb2.WorkerDescription | None = None
        """As last told, its load included."""
        self.connected = False
        self.trouble = "not reached yet"
        """Why it is not connected."""
        self._relay = relay
        self._silence = silence_seconds
        self._max_backlog = max_backlog_bytes
        self._pause = FIRST_BACKOFF_SECONDS

    async def run(self) -> None:
        """Until cancelled."""
        async with open_channel(self.listed.address) as channel:
            stub = worker_pb2_grpc.WorkerStub(channel)
            while True:
                try:
                    await self._session(stub)
                except grpc.aio.AioRpcError as error:
                    self._note(error.details() or error.code().name)
                except TimeoutError:
                    self._note(f"it sent nothing for {self._silence:g} seconds")
                except ValueError as error:
                    self._note(str(error))
                await asyncio.sleep(self._pause)
                self._pause = min(self._pause * 2, LAST_BACKOFF_SECONDS)

    def _note(self, trouble: str) -> None:
        """Log what is new: an absent worker is tried for ever and named once."""
        if trouble != self.trouble:
            extra = {"address": self.listed.address, "reason": trouble}
            log.warning("worker is not connected", extra=extra)
        self.trouble = trouble

    async def _session(self, stub: worker_pb2_grpc.WorkerAsyncStub) -> None:
        """One life of the stream. Raises AioRpcError, TimeoutError, or ValueError for a worker that
        describes itself in no way that can be used.
        """
        request = worker_pb2.DescribeWorkerRequest()
        description = await stub.Describe(request, timeout=DESCRIBE_SECONDS)
        profile = translate.profile(description)
        link = WorkerLink(self._max_backlog)
        call = stub.Connect(link.outbox.messages())
        self.description = description
        reason = "it ended its stream"
        try:
            await self._read(call, link, profile)
        except grpc.aio.AioRpcError as error:
            reason = error.details() or error.code().name
            raise
        except TimeoutError:
            reason = f"it sent nothing for {self._silence:g} seconds"
            raise
        except ValueError as error:
            reason = str(error)
            raise
        finally:
            call.cancel()
            if self.connected:
                self.connected = False
                self._relay.worker_down(self.listed.address, reason)
        self._note(reason)

    async def _read(
        self,
        call: grpc.aio.StreamStreamCall[worker_pb2.WorkerCommand, worker_pb2.WorkerFrame],
        link: WorkerLink,
        profile: Profile,
    ) -> None:
        """Pass frames on until the stream ends. The first one says that the worker took it."""
        address, relay, silence = self.listed.address, self._relay, self._silence
        clock = asyncio.get_running_loop().time
        async with asyncio.timeout(silence) as limit:
            while True:
                frame = await call.read()
                if not isinstance(frame, worker_pb2.WorkerFrame):
                    return
                limit.reschedule(clock() + silence)
                if not self.connected:
                    self.connected, self.trouble = True, ""
                    relay.worker_up(address, link, listed_as=self.listed.phase, profile=profile)
                    log.info("worker connected", extra={"address": address})
                relay.frame(address, frame)
                if frame.HasField("load"):
                    self._take_load(frame.load)
                if link.overflow.is_set():
                    raise ValueError("it does not read its commands")

    def _take_load(self, load: worker_pb2.Load) -> None:
        self._pause = FIRST_BACKOFF_SECONDS  # a worker that reports is there
        description = self.description
        if description is None:
            return
        changed = load.draining != description.load.draining
        description.load.CopyFrom(load)
        if changed:
            self._relay.worker_draining(self.listed.address, load.draining)
