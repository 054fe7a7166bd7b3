"""The router's stream to one worker: opened, kept, and opened again while the worker is listed."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

from tandem.complaints import Complaints
from tandem.errors import WorkerError
from tandem.v1 import worker_pb2, worker_pb2_grpc
from tandem.wire import faces
from tandem.wire.grpc import open_channel
from tandem.wire.prompt_chunks import SentChunks
from tandem.wire.silence import Silence
from tandem.wire.tls import PeerRole, PeerTls
from tandem_router import translate
from tandem_router.core import events
from tandem_router.core.values import Profile
from tandem_router.discovery import Listed
from tandem_router.links import WorkerLink
from tandem_router.relay import Relay

log = logging.getLogger(__name__)

DESCRIBE_SECONDS = 5.0
FIRST_BACKOFF_SECONDS = 0.1
LAST_BACKOFF_SECONDS = 2.0
MOST_EVENTS = 65_536
"""In one frame; more are no worker's."""
UNLISTED = "it is no longer listed, or no longer this router's share"
_ENDED = "it ended its stream"
_OUR_FAULT = "the router failed; see the router's log"


class WorkerConnection:
    """Says Describe, then Connect; when the stream breaks it starts over after a pause that grows
    while attempts fail.

    Once the worker is no longer listed it gets nothing new. What is open on it may end, as its
    stream is closed only then; and a stream that breaks is not opened again.
    """

    def __init__(
        self,
        listed: Listed,
        relay: Relay,
        *,
        tls: PeerTls | None = None,
        silence_seconds: float,
    ) -> None:
        self.listed = listed
        self.complaints = Complaints(log)
        """Log lines that name the worker's unreadable output."""
        self.is_listed = True
        self.description: worker_pb2.WorkerDescription | None = None
        """As last told, its load included."""
        self.connected = False
        self.tried = asyncio.Event()
        """Set once the worker is connected, was not to be reached, or has left the list."""
        self.trouble = "not reached yet"
        """Why it is not connected."""
        self._relay = relay
        self._tls = tls
        self._silence = silence_seconds
        self._pause = FIRST_BACKOFF_SECONDS
        self._listening: Silence | None = None
        self._unlisted = asyncio.Event()
        self._withheld = False
        """The core has been told to give it nothing new."""

    async def run(self) -> None:
        """Until the worker is not listed, and has finished what is open on it."""
        while self.is_listed:
            trouble = await self._session()
            seconds, ejected = self._relay.closed_for(self.listed.address)
            self._note(ejected if seconds else trouble)
            self.tried.set()
            if seconds:
                await self._stay_away(seconds)
            elif self.is_listed:
                await asyncio.sleep(self._pause)
                self._pause = min(self._pause * 2, LAST_BACKOFF_SECONDS)
        self.tried.set()  # also where it left the list before it was dialled
        self.complaints.close()
        log.info("worker dropped", extra=self._extra(reason=UNLISTED))

    @property
    def silent_seconds(self) -> float:
        """At least so long it has said nothing."""
        return 0.0 if self._listening is None else self._listening.seconds

    def set_listed(self, is_listed: bool) -> None:
        """What discovery says of the worker now."""
        self.is_listed = is_listed
        if not is_listed:
            self._unlisted.set()
        if self.connected:
            self._withhold()

    async def _stay_away(self, seconds: float) -> None:
        """For so long, or until the worker leaves the list."""
        self._unlisted.clear()
        if self.is_listed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._unlisted.wait(), seconds)

    def _note(self, trouble: str) -> None:
        """Log what is new: an absent worker is tried for ever and named once."""
        if trouble != self.trouble and self.is_listed:
            log.warning("worker is not connected", extra=self._extra(reason=trouble))
        self.trouble = trouble

    def _extra(self, reason: str | None = None) -> dict[str, str | None]:
        return {"address": self.listed.address, "reason": reason}

    async def _session(self) -> str:
        """One life of the stream, and of its channel, which would keep the certificate that it was
        opened with. Returns why it is over.
        """
        reason, died = "its stream was broken off", True
        try:
            key = self.listed.address
            role: PeerRole = "worker" if faces.is_one(key) else self.listed.phase.value
            async with open_channel(faces.address(key), self._tls, role=role) as channel:
                reason = await self._serve(worker_pb2_grpc.WorkerStub(channel))
                died = False
        except grpc.aio.AioRpcError as error:
            reason = error.details() or error.code().name
            died = error.code() is not grpc.StatusCode.FAILED_PRECONDITION  # else it gave us up
        except TimeoutError:
            reason = f"it sent nothing for {self._silence:g} seconds"
        except WorkerError as error:
            reason = error.message
        except asyncio.CancelledError:
            # Where nobody cancels us, the call was ended over what our commands raised.
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            reason, died = _OUR_FAULT, False
            log.error("commands to a worker could not be sent", extra=self._extra())
        except Exception:
            reason, died = _OUR_FAULT, False
            log.exception("a worker's stream broke by a fault of the router", extra=self._extra())
        finally:
            if self.connected:
                self.connected = False
                self._relay.worker_down(self.listed.address, reason, died=died)
        return reason

    async def _serve(self, stub: worker_pb2_grpc.WorkerAsyncStub) -> str:
        """Pass frames on until the stream ends, or nothing is to come of it any longer. Raises
        AioRpcError or TimeoutError, or WorkerError where the worker cannot be used.
        """
        link = WorkerLink(self.complaints)
        metadata = faces.metadata(self.listed.address)
        call: Any = stub.Connect(link.outbox.messages(), metadata=metadata)
        try:
            async with Silence(self._silence) as listening:
                self._listening = listening
                first = await call.read()  # it says that the worker took the stream
                if first is grpc.aio.EOF:
                    return _ENDED
                frame = self._readable(first)
                listening.heard = True
                profile = await self._describe(stub)
                if not self.is_listed:
                    return UNLISTED  # the core would give it what waits
                link.chunks = SentChunks(frame.prompt_chunks)
                self._begin(link, profile, frame.load)

                def take(read: worker_pb2.WorkerFrame | None) -> str | None:
                    listening.heard = True
                    return self._take(link, self._readable(read))

                return self._take(link, frame) or await call.hand_on(take) or _ENDED
        finally:
            link.outbox.stop()
            call.cancel()
            self._listening = None

    def _readable(self, frame: worker_pb2.WorkerFrame | None) -> worker_pb2.WorkerFrame:
        """Raises WorkerError for None, which stands for what cannot be read, and for too much."""
        if frame is None:
            raise self._at_fault("a frame that is no tandem.v1.WorkerFrame")
        if len(frame.events) > MOST_EVENTS:
            raise self._at_fault(f"a frame of {len(frame.events)} events")
        return frame

    def _take(self, link: WorkerLink, frame: worker_pb2.WorkerFrame) -> str | None:
        """Pass on what a frame says. Returns why the stream is over, if it is. Raises WorkerError
        where the worker cannot be used.
        """
        self._relay.frame(self.listed.address, frame)
        has_load = frame.HasField("load")
        if has_load and link.given_up is None:
            self._take_load(frame.load)
        if link.given_up is not None:
            if link.given_up.died:
                raise WorkerError(link.given_up.reason)
            return link.given_up.reason
        if not has_load:
            return None
        if self._is_over():
            return UNLISTED
        if link.waits and link.patience.over(asyncio.get_running_loop().time(), self._silence):
            raise WorkerError("it does not read its commands")
        return None

    def _at_fault(self, fault: str) -> WorkerError:
        """What cannot be worked with ends the stream: nobody knows what was in it."""
        self._relay.fault(self.listed.address, self.complaints, fault)
        return WorkerError(f"it sent {fault}")

    async def _describe(self, stub: worker_pb2_grpc.WorkerAsyncStub) -> Profile:
        """Asked only once the stream is there. So a worker that was restarted in between, and has
        another KV endpoint, cannot be taken for the one that the stream is of.
        """
        request = worker_pb2.DescribeWorkerRequest()
        self.description = await stub.Describe(
            request, timeout=DESCRIBE_SECONDS, metadata=faces.metadata(self.listed.address)
        )
        return translate.profile(self.description)

    def _begin(self, link: WorkerLink, profile: Profile, load: worker_pb2.Load) -> None:
        self.connected, self.trouble = True, ""
        link.keeps_tasks = profile.keeps_tasks
        self.tried.set()
        self._withheld = profile.draining
        self._relay.worker_up(
            self.listed.address,
            link,
            listed_as=self.listed.phase,
            profile=profile,
            other_legs=load.open_legs,
            step_age=events.step_age(load),
        )
        log.info("worker connected", extra=self._extra())

    def _take_load(self, load: worker_pb2.Load) -> None:
        self._pause = FIRST_BACKOFF_SECONDS  # a worker that reports is there
        if self.description is not None:
            self.description.load.CopyFrom(load)
        self._withhold()
        self._relay.handle(events.WorkerLoad(self.listed.address, load))

    def _withhold(self) -> None:
        """Tell the core whether the worker is to get nothing new, where that has changed."""
        drains = self.description is not None and self.description.load.draining
        withheld = drains or not self.is_listed
        if withheld != self._withheld:
            self._withheld = withheld
            self._relay.handle(events.WorkerDraining(self.listed.address, withheld))

    def _is_over(self) -> bool:
        """Asked at each load report, so within a second."""
        return not self.is_listed and self._relay.core.settled(self.listed.address)
