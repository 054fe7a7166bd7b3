"""Whatever number, size, text or count a field of any message holds: it costs its own sequence, or
its sender's stream, and a bystander goes on. A field that is added later is tried too.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message
from one_case import one_case
from prometheus_client import CollectorRegistry
from router_messages import told
from simulated import submits
from wire_extremes import extremes, fields

from tandem.byte_budget import ByteBudget
from tandem.complaints import Complaints
from tandem.engine.rooms import MOST_ROOMS, KeyedTimers
from tandem.errors import KvTransferError, TandemError, WorkerError
from tandem.upstream.demultiplexer import Demultiplexer
from tandem.upstream.metrics import UpstreamMetrics
from tandem.upstream.request_state import RequestState
from tandem.upstream.router_stream import RouterStream
from tandem.upstream.submission import Submission, SubmittedPrompt
from tandem.v1 import common_pb2, kv_pb2, router_pb2, worker_pb2
from tandem.wire.prompt_chunks import ChunkRoom, ReadChunks
from tandem_router import generate
from tandem_router.config import RouterConfig
from tandem_router.connection import WorkerConnection
from tandem_router.core.values import Phase
from tandem_router.discovery import Listed
from tandem_router.discovery.static import StaticDiscovery
from tandem_router.links import FrontendLink
from tandem_router.permissions import Permissions
from tandem_router.relay import Relay
from tandem_router.server import build_core
from tandem_router.servicer import RouterServicer
from tandem_router.vouchers import Vouchers
from tandem_router.workers import Workers
from tandem_sim.kv_transfer import checks
from tandem_sim.kv_transfer.receiver import Expected, ReceiverLink
from tandem_sim.kv_transfer.sender import SenderLink

pytestmark = pytest.mark.promise("S6-166", "S6-168")

TRACE = "0af7651916cd43dd8448eb211c80319c"
SAMPLING = common_pb2.SamplingParams(
    max_tokens=4,
    temperature=0.5,
    top_p=1,
    top_k=-1,
    min_p=0.1,
    frequency_penalty=0.1,
    presence_penalty=0.1,
    repetition_penalty=1,
    seed=1,
    stop=["s"],
    stop_token_ids=[1],
    ignore_eos=True,
    logit_bias={1: 1.0},
    logprobs=1,
    prompt_logprobs=1,
    stop_words=[common_pb2.StopWord(token_id=[1])],
    thought=common_pb2.Thought(begin="b", end="e", opened=True, silent=["s"]),
)
TASK = common_pb2.Task(
    trace_id=TRACE,
    model="m",
    prompt_token_ids=[1],
    sampling=SAMPLING,
    logits=common_pb2.LogitsSpec(
        processors=[common_pb2.LogitsProcessor(name="json_schema", args_json="{}")]
    ),
    metadata={"a": "b"},
    embedding_bias=common_pb2.EmbeddingBias(token_ids=b"\1\0\0\0", values=b"\0" * 4),
    shown_special_tokens=[1],
    resume=common_pb2.Resumption(
        step=[
            common_pb2.TokenLogprobs(
                sequence=1,
                token_id=[1],
                logprob=[-1],
                top_count=1,
                top_token_id=[1],
                top_logprob=[-1],
                place=0,
            )
        ]
    ),
    regeneration=common_pb2.Regeneration(
        count=1,
        temperature=1,
        top_p=1,
        top_k=1,
        min_p=0.1,
        presence_penalty=0.1,
        frequency_penalty=0.1,
    ),
)
FINGERPRINT = common_pb2.Fingerprint(model="m", engine="e")
LIMITS = worker_pb2.Limits(max_sequences=8, context_length=100, vocabulary=100)
CACHE = worker_pb2.CacheChanges(anew=True, entered=b"\1" * 8, left=b"\2" * 8, keeps_none=True)
LOAD = worker_pb2.Load(open_legs=1, cache=CACHE)
VOUCHER = common_pb2.Voucher(
    room=5,
    kv_peer="k",
    model="m",
    task_digest=bytes(32),
    first_token_ids=[1],
    first_logprobs=[-1.0],
    expires_unix_ms=2**60,
)
PARKED = worker_pb2.LegParked(token_ids=[1], logprobs=[-1.0], task_digest=bytes(32), lease_ms=9000)
ERROR = common_pb2.Error(code="worker_error", message="m", phase=1, param="p")
REPORT = common_pb2.PhaseReport(engine=common_pb2.EngineTimes())
SUBMIT = router_pb2.Submit(
    first_sequence=1, n=1, trace_id=TRACE, model="m", timeout_ms=9000, task=b""
)


def description(phase: int) -> worker_pb2.WorkerDescription:
    return worker_pb2.WorkerDescription(
        name="w",
        phase=phase,  # type: ignore[arg-type]
        fingerprint=FINGERPRINT,
        kv_endpoint="k",
        limits=LIMITS,
        load=LOAD,
        logits_processors=["json_schema"],
        lora_adapters=["sql"],
        cannot_sample=["seed"],
    )


def cases(example: Message) -> Any:
    return one_case(
        "message", lambda: (pytest.param(case, id=name) for name, case in extremes(example))
    )


class Worker:
    """A stub: what it describes and what it sends are the test's."""

    def __init__(self, described: Message, *frames: Message) -> None:
        self._described = described
        self._frames = [worker_pb2.WorkerFrame(load=LOAD), *frames]
        self.served = asyncio.Event()
        self.stopped = asyncio.Event()

    def Connect(self, commands: AsyncIterator[Any], metadata: Any) -> Worker:
        self._commands = commands
        return self

    async def Describe(self, request: Any, timeout: float, metadata: Any) -> Message:
        return self._described

    async def read(self) -> Message:
        return self._frames.pop(0)

    async def hand_on(self, take: Callable[[Message], object]) -> object:
        for frame in self._frames:
            if (answer := take(frame)) is not None:
                return answer
        self.served.set()
        await self.stopped.wait()
        raise WorkerError("the test is over")

    def cancel(self) -> None:
        pass


class Router:
    """One with a good pair, which a bystander's request runs on."""

    def __init__(self) -> None:
        self.config = RouterConfig(allow_reports=True, allow_external_scores=True)
        self.vouchers = Vouchers(b"k" * 32)
        self.relay = Relay(build_core(self.config), vouchers=self.vouchers)
        self.link = FrontendLink(1_000_000, ByteBudget())
        self.number = self.relay.frontend_up(self.link)
        self.workers = Workers(
            StaticDiscovery(prefill=(), decode=()), self.relay, silence_seconds=9.0
        )
        self._stack: list[tuple[Worker, asyncio.Task[Any]]] = []

    async def connect(self, phase: Phase, described: Message, *frames: Message) -> str:
        """Returns what its session ended with; empty: it goes on."""
        address = f"{phase.value}-{len(self._stack)}:1"
        stub = Worker(described, *frames)
        connection = WorkerConnection(Listed(address, phase), self.relay, silence_seconds=9.0)
        session = asyncio.create_task(connection._serve(stub))  # type: ignore[arg-type]
        self._stack.append((stub, session))
        served = asyncio.create_task(stub.served.wait())
        await asyncio.wait({session, served}, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        served.cancel()
        connection.complaints.close()
        if not session.done():
            return ""
        if connection.connected:
            self.relay.worker_down(address, "its stream ended", died=True)
        error = session.exception()
        assert isinstance(error, WorkerError), error
        return error.message

    async def stand(self) -> None:
        for phase, number in ((Phase.PREFILL, 1), (Phase.DECODE, 2)):
            assert not await self.connect(phase, description(number))
        self.relay.handle(
            submits.submit(
                7,
                frontend=self.number,
                n=1,
                model="m",
                timeout_seconds=60.0,
                task=b"",
            )
        )

    async def bystander_goes_on(self) -> None:
        assert self.relay.core.runs_elsewhere("nowhere", self.number, 7)
        assert self.link.failure is None
        assert not any(end.sequence == 7 for end in (told(self.link) or _NOTHING).ends)
        for stub, session in self._stack:
            stub.stopped.set()
            await asyncio.wait({session})
            session.exception()


_NOTHING = router_pb2.RouterMessage()


async def standing() -> Router:
    router = Router()
    await router.stand()
    return router


@cases(
    router_pb2.FrontendMessage(
        submit=[SUBMIT], cancel=[9], complaint=[router_pb2.Complaint(worker=1, fault="f")]
    )
)
async def test_a_frontend_s_fields_cost_its_own(message: Message) -> None:
    router = await standing()
    servicer = RouterServicer(router.config, router.relay, router.workers)
    link = FrontendLink(1_000_000, ByteBudget())
    number = router.relay.frontend_up(link)

    async def messages() -> AsyncIterator[Any]:
        yield message

    await servicer._read(messages(), number, link, ReadChunks(ChunkRoom(0)))
    router.relay.frontend_down(number)
    for each in router.relay._numbered.values():
        each.complaints.close()
    await router.bystander_goes_on()


@cases(VOUCHER)
async def test_a_voucher_s_fields_cost_its_own_request(message: Any) -> None:
    """Also where a router that was taken over has signed it."""
    router = await standing()
    content = message.SerializeToString()
    signature = router.vouchers._signature(content)
    signed = common_pb2.SignedVoucher(voucher=content, signature=signature)
    await use_voucher(router, signed.SerializeToString())


@cases(common_pb2.SignedVoucher(voucher=b"v", signature=b"s"))
async def test_what_is_no_voucher_costs_its_own_request(message: Any) -> None:
    await use_voucher(await standing(), message.SerializeToString())


async def use_voucher(router: Router, voucher: bytes) -> None:
    submit = router_pb2.Submit(voucher=voucher)
    submit.MergeFrom(SUBMIT)
    servicer = RouterServicer(router.config, router.relay, router.workers)
    link = FrontendLink(1_000_000, ByteBudget())
    number = router.relay.frontend_up(link)
    router.relay.handle(servicer._event(number, submit, iter([()])))
    router.relay.frontend_down(number)
    await router.bystander_goes_on()


@cases(router_pb2.GenerateRequest(task=TASK, n=1, timeout_ms=9000))
async def test_a_caller_s_fields_cost_its_own_call(message: Any) -> None:
    router = await standing()
    answers = generate.Answers(1, 1_000, ByteBudget())
    number = router.relay.frontend_up(answers)
    try:
        submit = generate.submit(
            message,
            frontend=number,
            permissions=Permissions(),
            max_n=8,
            default_timeout_seconds=60.0,
            max_timeout_seconds=100.0,
        )
        router.relay.handle(submit)
    except TandemError:
        pass
    router.relay.frontend_down(number)
    await router.bystander_goes_on()


@pytest.mark.parametrize("phase", [1, 2])
@cases(description(1))
async def test_a_worker_s_description_costs_its_own_stream(message: Any, phase: int) -> None:
    router = await standing()
    if message.phase == 1:
        message = type(message).FromString(message.SerializeToString())
        message.phase = phase
    await router.connect(Phase.PREFILL if phase == 1 else Phase.DECODE, message)
    await router.bystander_goes_on()


@pytest.mark.parametrize(
    "event",
    [
        {"started": worker_pb2.LegStarted(kv_bytes=1, kv_seconds=1)},
        {"verdict": worker_pb2.LegVerdict(terminate=True, reason="r")},
        {"closed": worker_pb2.LegClosed(outcome=4, reason="r", error=ERROR, report=REPORT)},
        {"parked": PARKED},
        {"made": worker_pb2.LegMade(steps=b"s", tokens=1, over=True, obstacle="o")},
    ],
    ids=lambda event: next(iter(event)),
)
async def test_a_worker_s_frames_cost_its_own_legs(event: dict[str, Any]) -> None:
    frame = worker_pb2.WorkerFrame(
        envelopes=[worker_pb2.Envelope(destination=1, payload=b"")],
        events=[worker_pb2.LegEvent(leg=1, **event)],
        load=LOAD,
    )
    for name, case in extremes(frame):
        router = await standing()
        try:
            await router.connect(Phase.DECODE, description(2), case)
            await router.bystander_goes_on()
        except AssertionError as error:
            raise AssertionError(name) from error


# --- what frontends read --------------------------------------------------------------------------


class Client:
    def watch(self, *, on_lost: Callable[[], object], on_stall: Callable[[], object]) -> None:
        pass

    def abort(self) -> None:
        pass


COLUMNS = common_pb2.TokenColumns(
    sequence=[1],
    token_count=[1],
    text=["x"],
    token_id=[1],
    logprobs=[
        common_pb2.TokenLogprobs(
            sequence=1, token_id=[1], logprob=[1], top_count=1, top_token_id=[1], top_logprob=[1]
        )
    ],
    prompt_logprobs=[
        common_pb2.TokenLogprobs(
            sequence=1,
            token_id=[1],
            logprob=[1],
            top_count=1,
            top_token_id=[1],
            top_logprob=[1],
            place=0,
        )
    ],
    finish=[common_pb2.Finish(sequence=1, stop_tokens=[1])],
    report=[common_pb2.PhaseReport(sequence=1, engine=common_pb2.EngineTimes())],
    offset=[0],
)
FLEET = router_pb2.Fleet(
    models=[
        router_pb2.ServedModel(
            name="m",
            tokenizer_sha256="ours",
            limits=LIMITS,
            logits_processors=["p"],
            longest_context=100,
            any_logits_processors=["q"],
            lora_adapters=["sql"],
            free_slots=-3,
            kv_cache=router_pb2.KvCache(pages=9, used_pages=4, page_size=16),
        )
    ],
    expected=["m"],
    coming=["m"],
    pair_wait_ms=10,
)
MESSAGE = router_pb2.RouterMessage(
    payload=b"",
    ends=[
        router_pb2.SequenceEnd(
            sequence=1,
            error=ERROR,
            stop_reason="r",
            voucher=b"v",
            refused=True,
            completion_tokens=1,
        )
    ],
    fleet=FLEET,
    part_worker=[1],
    part_bytes=[1],
    lost=[1],
    run_sequence=[1],
    run_worker=[1],
    queue_wait=[router_pb2.QueueWait(sequence=1, seconds=1.0, cause="c")],
    waiting=[router_pb2.Waiting(sequence=1, what="w")],
)


class Frontend:
    """Two requests: one of the message under test, and a bystander on another worker."""

    def __init__(self, stack: ExitStack) -> None:
        self.demultiplexer = Demultiplexer(
            UpstreamMetrics(CollectorRegistry()),
            Complaints(logging.getLogger(__name__)),
            ByteBudget(),
            max_open=64,
            max_request_bytes=10_000,
            max_backlog_bytes=10_000_000,
            router_wait_seconds=10.0,
        )
        self.route = self.demultiplexer.add("m", "ours")
        self.stream = RouterStream(ByteBudget())
        self.stream.opened = True
        self.demultiplexer.opened(self.stream)
        ready = router_pb2.ServedModel(name="m", tokenizer_sha256="ours", ready_pairs=1)
        self.receive(router_pb2.RouterMessage(fleet=router_pb2.Fleet(models=[ready])))
        self.own, self.other = (self._ask(stack) for _ in range(2))
        self.receive(
            router_pb2.RouterMessage(
                run_sequence=[self.own.base, self.other.base], run_worker=[1, 2]
            )
        )

    def _ask(self, stack: ExitStack) -> RequestState:
        submission = Submission(
            id="a",
            prompts=[SubmittedPrompt.of([1], max_tokens=9)],
            task=common_pb2.Task(
                trace_id=TRACE, model="m", sampling=SAMPLING, streaming=True, want_report=True
            ),
            submit=router_pb2.Submit(n=1, tokenizer_sha256="ours"),
            withheld_reason="stop",
            timeout_seconds=60.0,
        )
        return stack.enter_context(self.demultiplexer.submit(submission, Client()))

    def receive(self, message: router_pb2.RouterMessage) -> None:
        self.demultiplexer.receive(self.stream, message)

    def bystander_goes_on(self) -> None:
        columns = common_pb2.TokenColumns(
            sequence=[self.other.base], offset=[0], token_count=[1], text=["hi"]
        )
        payload = columns.SerializeToString()
        self.receive(
            router_pb2.RouterMessage(payload=payload, part_worker=[2], part_bytes=[len(payload)])
        )
        assert self.other.error is None
        assert [row[:2] for row in self.other.take()[0]] == [(0, "hi")]


async def test_a_worker_s_output_costs_its_own_sequences() -> None:
    for name, case in extremes(COLUMNS):
        with ExitStack() as stack:
            frontend = Frontend(stack)
            payload = case.SerializeToString()
            frontend.receive(
                router_pb2.RouterMessage(
                    payload=payload, part_worker=[1], part_bytes=[len(payload)]
                )
            )
            try:
                frontend.bystander_goes_on()
            except AssertionError as error:
                raise AssertionError(name) from error


async def test_a_router_s_fields_cost_its_own_stream() -> None:
    for _, case in extremes(MESSAGE):
        with ExitStack() as stack:
            frontend = Frontend(stack)
            try:
                frontend.receive(case)  # type: ignore[arg-type]
            except (ValueError, DecodeError):
                frontend.demultiplexer.ended(frontend.stream, drained=False)
            # Another router's stream takes what is new.
            stream = frontend.stream = RouterStream(ByteBudget())
            stream.opened = True
            frontend.demultiplexer.opened(stream)


# --- the hand-over --------------------------------------------------------------------------------

MEMORY = kv_pb2.KvMemory(
    instance="i", agent_metadata=b"m", base_address=1, page_bytes=1, pages=9, token_bytes=1
)
OFFERS = kv_pb2.KvOffers(
    hello=MEMORY, offers=[kv_pb2.KvOffer(room=1, pages=[1], lease_ms=1)], abort=[1]
)
LANDED = kv_pb2.KvLanded(room=1, top_token_id=[1], top_logprob=[1.0], transport="rdma+tcp")
ANSWERS = kv_pb2.KvAnswers(
    hello=MEMORY, landed=[LANDED], failed=[kv_pb2.KvFailed(room=1, error=ERROR)], aborted=[1]
)


@pytest.mark.promise("S6-183")
@pytest.mark.parametrize(
    ("pages", "fits"),
    [([0, 8], True), ([], True), ([9], False), ([2**31], False), ([2**32 - 1], False), ([1, 1], 0)],
)
def test_only_pages_of_the_memory_are_offered_each_once(pages: list[int], fits: bool) -> None:
    offer = kv_pb2.KvOffer(room=1, pages=pages)
    if fits:
        checks.check_offer(offer, pages=9)
    else:
        with pytest.raises(KvTransferError):
            checks.check_offer(offer, pages=9)


@pytest.mark.promise("S6-183")
@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, True),
        ({"pages": checks.MOST_PAGES}, True),
        ({"pages": checks.MOST_PAGES + 1}, False),
        ({"pages": 0}, False),
        ({"base_address": 2**64 - 1}, False),
        ({"agent_metadata": b"x" * checks.MAX_METADATA_BYTES}, True),
        ({"agent_metadata": b"x" * (checks.MAX_METADATA_BYTES + 1)}, False),
        ({"instance": "x" * checks.MAX_INSTANCE_CHARACTERS}, True),
        ({"instance": "x" * (checks.MAX_INSTANCE_CHARACTERS + 1)}, False),
    ],
    ids=lambda changes: str(changes)[:30],
)
def test_a_memory_is_one_that_can_be(changes: dict[str, Any], fits: bool) -> None:
    memory = kv_pb2.KvMemory()
    memory.CopyFrom(MEMORY)
    for name, value in changes.items():
        setattr(memory, name, value)
    if fits:
        checks.check_memory(memory)
    else:
        with pytest.raises(KvTransferError):
            checks.check_memory(memory)


@pytest.mark.promise("S6-183")
@pytest.mark.parametrize("field", ["offers", "abort"])
def test_no_engine_names_so_many_rooms_at_once(field: str) -> None:
    rooms: Any = kv_pb2.KvOffer(room=1) if field == "offers" else 1
    checks.check_offers(kv_pb2.KvOffers(**{field: [rooms] * MOST_ROOMS}))
    with pytest.raises(KvTransferError):
        checks.check_offers(kv_pb2.KvOffers(**{field: [rooms] * (MOST_ROOMS + 1)}))


@pytest.mark.parametrize(
    "odd",
    [
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"seconds": -1.0},
        {"first_logprob": float("nan")},
        {"top_logprob": [float("-inf")]},
        {"top_logprob": []},
        {"top_token_id": [1, 2]},
        {"transport": "t" * 65},
        {"transport": "over\nthe wire"},
    ],
    ids=str,
)
def test_a_hand_over_that_cannot_be_fails_its_room(odd: dict[str, Any]) -> None:
    checks.check_landed(LANDED)
    landed = kv_pb2.KvLanded()
    landed.CopyFrom(LANDED)
    for name, value in odd.items():
        landed.ClearField(name)
        if isinstance(value, list):
            getattr(landed, name).extend(value)
        else:
            setattr(landed, name, value)
    with pytest.raises(KvTransferError):
        checks.check_landed(landed)


class Rooms:
    """What a prefill engine's link asks for."""

    hello = MEMORY

    def __init__(self) -> None:
        self.offered: list[int] = []

    def on_offer(self, link: SenderLink, offer: kv_pb2.KvOffer) -> None:
        self.offered.append(offer.room)

    def on_abort(self, link: SenderLink, room: int) -> None:
        pass


@pytest.mark.promise("S6-183")
async def test_an_offer_that_cannot_be_fails_its_room_alone() -> None:
    rooms: Any = Rooms()
    link = SenderLink(rooms)
    link._pages = MEMORY.pages
    bad = kv_pb2.KvOffer(room=2, pages=[2**31])
    link._on_message(kv_pb2.KvOffers(offers=[kv_pb2.KvOffer(room=1, pages=[1]), bad]))
    assert rooms.offered == [1]
    assert [each.room for each in link._take().failed] == [2]


@pytest.mark.promise("S6-183")
async def test_what_landed_and_cannot_be_fails_its_room_alone() -> None:
    settled: dict[int, Any] = {}
    receiver: Any = SimpleNamespace(
        hello=MEMORY,
        tls=None,
        free=lambda pages: None,
        forget=lambda room: None,
        leases=KeyedTimers(),
    )
    link = ReceiverLink(receiver, "peer")
    for room in (1, 2):
        settle = functools.partial(settled.__setitem__, room)
        link.rooms[room] = Expected(room=room, pages=[room], lease_seconds=1.0, settle=settle)
    link._on_landed(kv_pb2.KvLanded(room=1, seconds=float("nan")))
    link._on_landed(kv_pb2.KvLanded(room=2, seconds=1.0))
    assert isinstance(settled[1], KvTransferError)
    assert isinstance(settled[2], kv_pb2.KvLanded)
    assert link.rooms == {}


TRIED_ELSEWHERE = {
    "DescribeRouterRequest": "empty",
    "DescribeWorkerRequest": "empty",
    "RouterDescription": "read by people and the command line alone",
    "WorkerStatus": "as above",
    "GenerateResponse": "read by callers alone",
    "TaskRequests": "parts of a Task",
    "TaskPrompt": "parts of a Task",
    "UsedParams": "parts of a Task",
    "ProcessorNames": "parts of a Task",
    "ProcessorName": "parts of a Task",
    "WorkerCommand": "tests/unit/worker/test_worker_commands.py",
    "StartLeg": "as above",
    "CancelLeg": "as above",
    "KeptTask": "as above",
}


def test_every_message_of_the_wire_is_tried() -> None:
    tried: set[str] = set()
    for example in (
        router_pb2.FrontendMessage(
            submit=[SUBMIT], cancel=[9], complaint=[router_pb2.Complaint(worker=1, fault="f")]
        ),
        router_pb2.GenerateRequest(task=TASK),
        description(1),
        worker_pb2.WorkerFrame(
            envelopes=[worker_pb2.Envelope(destination=1)],
            events=[worker_pb2.LegEvent(leg=1, started=worker_pb2.LegStarted(kv_bytes=1))],
            load=LOAD,
        ),
        worker_pb2.LegVerdict(reason="r"),
        PARKED,
        worker_pb2.LegMade(steps=b"s"),
        VOUCHER,
        common_pb2.SignedVoucher(voucher=b"v"),
        worker_pb2.LegClosed(error=ERROR, report=REPORT),
        MESSAGE,
        COLUMNS,
        OFFERS,
        ANSWERS,
    ):
        tried.add(example.DESCRIPTOR.name)
        for _, field in fields(example):
            tried |= {field.message_type.name} if field.message_type else set()
    known = {
        name
        for file in (common_pb2, router_pb2, worker_pb2, kv_pb2)
        for name in file.DESCRIPTOR.message_types_by_name
    }
    assert known - tried - set(TRIED_ELSEWHERE) == set()
    assert set(TRIED_ELSEWHERE) <= known
