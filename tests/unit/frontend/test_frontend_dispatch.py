"""Which router a request goes to, and when it goes to another: `tandem.upstream` by itself."""

from __future__ import annotations

import logging
import random
from contextlib import ExitStack
from typing import Any, get_args

import pytest
from prometheus_client import CollectorRegistry
from upstream_parts import FakeClient, submission

from tandem.byte_budget import ByteBudget
from tandem.complaints import Complaints
from tandem.errors import (
    InternalError,
    RouterLostError,
    TandemError,
    TooLargeError,
    WorkerError,
)
from tandem.message_limits import MAX_TASK_BYTES
from tandem.upstream.choice import Draw
from tandem.upstream.demultiplexer import Demultiplexer
from tandem.upstream.metrics import Missing, UpstreamMetrics
from tandem.upstream.request_state import RequestState
from tandem.upstream.router_stream import RouterStream
from tandem.upstream.submission import SubmittedPrompt
from tandem.v1 import common_pb2, router_pb2


class Bench:
    """A demultiplexer, the requests of a test, and streams to routers that the test plays."""

    def __init__(
        self,
        stack: ExitStack,
        *,
        max_open: int = 64,
        wait: float = 10.0,
        draw: Draw = random.randrange,
        budget: ByteBudget | None = None,
    ) -> None:
        self._stack = stack
        self._registry = CollectorRegistry()
        self.budget = budget or ByteBudget()
        self.demultiplexer = Demultiplexer(
            UpstreamMetrics(self._registry),
            Complaints(logging.getLogger(__name__)),
            self.budget,
            max_open=max_open,
            max_request_bytes=10_000,
            max_backlog_bytes=10_000,
            router_wait_seconds=wait,
            draw=draw,
        )
        self.route = self.demultiplexer.add("m", "ours")
        self.client = FakeClient()

    def ask(self, client: FakeClient | None = None, **changes: Any) -> RequestState:
        asked = submission(model="m", **changes)
        submit = self.demultiplexer.submit(asked, client or self.client)
        return self._stack.enter_context(submit)

    @property
    def waiting(self) -> dict[str, float]:
        """Requests that its metrics say wait, by what is missing."""
        read, name = self._registry.get_sample_value, "tandem_frontend_waiting_requests"
        counts = {each: read(name, {"missing": each}) for each in get_args(Missing)}
        return {missing: count for missing, count in counts.items() if count}

    def router(self, **said: Any) -> RouterStream:
        """A router that has greeted with its fleet."""
        stream = RouterStream(ByteBudget())
        stream.opened = True
        self.demultiplexer.opened(stream)
        self.fleet(stream, **said)
        return stream

    def fleet(
        self,
        stream: RouterStream,
        *,
        pairs: int = 1,
        sha256: str = "ours",
        free: int | None = None,
        **more: Any,
    ) -> None:
        """`free`: its free slots; `more`: other fields of its ServedModel."""
        model = router_pb2.ServedModel(
            name="m", ready_pairs=pairs, tokenizer_sha256=sha256, free_slots=free, **more
        )
        fleet = router_pb2.Fleet(models=[model])
        self.demultiplexer.receive(stream, router_pb2.RouterMessage(fleet=fleet))

    def begin(self, stream: RouterStream, state: RequestState) -> None:
        """The router says that all of a request runs."""
        message = router_pb2.RouterMessage(
            run_sequence=state.sequences, run_worker=[1] * len(state.sequences)
        )
        self.demultiplexer.receive(stream, message)

    def rows(self, stream: RouterStream, **columns: Any) -> None:
        columns.setdefault("offset", [0] * len(columns.get("sequence", ())))
        payload = common_pb2.TokenColumns(**columns).SerializeToString()
        self.demultiplexer.receive(stream, router_pb2.RouterMessage(payload=payload))


def sent(stream: RouterStream) -> list[int]:
    """First sequences of the submits that leave for a router now."""
    message = stream._take()
    return [] if message is None else [each.first_sequence for each in message.submit]


@pytest.fixture
async def bench() -> Any:
    with ExitStack() as stack:
        yield Bench(stack)


@pytest.mark.promise("S5-561")
async def test_what_a_lost_router_had_begun_fails(bench: Bench) -> None:
    routers = bench.router(), bench.router()
    state = bench.ask()
    lost = next(each for each in routers if sent(each))
    bench.begin(lost, state)
    bench.demultiplexer.ended(lost, drained=False)
    assert isinstance(state.error, RouterLostError)


@pytest.mark.promise("S5-561")
async def test_what_waited_at_a_lost_router_goes_to_the_next(bench: Bench) -> None:
    lost = bench.router()
    waits, runs = bench.ask(), bench.ask()
    assert sent(lost) == [waits.base, runs.base]
    bench.begin(lost, runs)
    bench.demultiplexer.ended(lost, drained=False)
    assert isinstance(runs.error, RouterLostError)
    assert sent(bench.router()) == [waits.base]
    assert waits.error is None


@pytest.mark.promise("S5-561")
async def test_of_several_prompts_of_which_one_had_begun_none_goes_on(bench: Bench) -> None:
    lost = bench.router()
    prompts = [SubmittedPrompt.of([1, 2, 3], max_tokens=16) for _ in range(2)]
    state = bench.ask(prompts=prompts, n=2)
    sent(lost)
    message = router_pb2.RouterMessage(run_sequence=[state.base + 3], run_worker=[1])
    bench.demultiplexer.receive(lost, message)
    bench.demultiplexer.ended(lost, drained=False)
    assert isinstance(state.error, RouterLostError)


@pytest.mark.promise("S5-561")
async def test_what_was_lost_with_two_routers_goes_to_no_third(bench: Bench) -> None:
    """They may have died of it."""
    state = bench.ask()
    for _ in range(2):
        assert state.error is None
        lost = bench.router()
        assert sent(lost) == [state.base]
        bench.demultiplexer.ended(lost, drained=False)
    assert isinstance(state.error, RouterLostError)
    assert sent(bench.router()) == []


@pytest.mark.promise("S5-561")
async def test_a_context_only_request_may_have_begun_unsaid(bench: Bench) -> None:
    lost = bench.router()
    state = bench.ask(context_only=True)
    sent(lost)
    bench.demultiplexer.ended(lost, drained=False)
    assert isinstance(state.error, RouterLostError)


@pytest.mark.parametrize("shown", [False, True])
async def test_what_a_drained_router_never_began_goes_to_the_next(
    bench: Bench, shown: bool
) -> None:
    drained = bench.router()
    state = bench.ask()
    sent(drained)
    if shown:
        bench.rows(drained, sequence=[state.base], token_count=[1], text=["a"])
    drained.drain()
    bench.demultiplexer.ended(drained, drained=True)
    assert sent(bench.router()) == ([] if shown else [state.base])
    assert isinstance(state.error, RouterLostError) == shown


async def test_a_request_that_ends_while_it_waits_is_never_sent(bench: Bench) -> None:
    bench.ask()
    bench.client.lose()
    assert sent(bench.router()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"token_count": [1, 1], "text": ["only one"]},
        {"token_count": [1, 1], "text": ["a", "b"], "token_id": [7, 8]},
    ],
)
async def test_a_frame_that_cannot_be_read_ends_the_requests_it_is_of(
    bench: Bench, wrong: dict[str, Any]
) -> None:
    router = bench.router()
    first, second, other = bench.ask(), bench.ask(want_token_ids=True), bench.ask()
    bench.rows(router, sequence=[first.base, second.base], **wrong)
    assert isinstance(first.error, WorkerError)
    assert isinstance(second.error, WorkerError)
    assert (first.take()[0], other.error) == ([], None)


async def test_a_frame_that_lost_all_its_token_ids_ends_the_requests_that_want_them(
    bench: Bench,
) -> None:
    router = bench.router()
    asked = bench.ask(want_token_ids=True)
    bench.rows(router, sequence=[asked.base], token_count=[2], text=[""])
    assert isinstance(asked.error, WorkerError)


class Worker:
    """One that a router of the bench speaks for."""

    def __init__(self, bench: Bench, stream: RouterStream, number: int) -> None:
        self._bench, self._stream, self.number = bench, stream, number

    def runs(self, *sequences: int) -> None:
        message = router_pb2.RouterMessage(
            run_sequence=sequences, run_worker=[self.number] * len(sequences)
        )
        self._bench.demultiplexer.receive(self._stream, message)

    def says(self, payload: bytes) -> None:
        message = router_pb2.RouterMessage(
            payload=payload, part_worker=[self.number], part_bytes=[len(payload)]
        )
        self._bench.demultiplexer.receive(self._stream, message)

    def rows(self, **columns: Any) -> None:
        self.says(common_pb2.TokenColumns(**columns).SerializeToString())


def complaints(stream: RouterStream) -> dict[int, str]:
    message = stream._take()
    return {} if message is None else {each.worker: each.fault for each in message.complaint}


def _row(sequence: int, offset: int, text: str = "x") -> dict[str, Any]:
    return {"sequence": [sequence], "offset": [offset], "token_count": [1], "text": [text]}


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"offset": [2]}, "missing"),
        ({"offset": [0]}, "comes again"),
        ({"offset": [2**32 - 1]}, "missing"),
        ({"token_count": [2**32 - 1]}, "cannot be"),
        ({"token_count": [65_537]}, "cannot be"),
        ({"text": []}, "differ in length"),
        ({"offset": []}, "differ in length"),
        ({"token_count": [1, 1]}, "differ in length"),
        ({"token_id": [7]}, "disagree"),
        ({"rows": 2}, "missing"),
        ({"rows": 0}, "missing"),
        ({"rows": 1, "completion_tokens": 2**32 - 1}, "missing"),
        ({"rows": 1, "cached_tokens": 2**32 - 1}, "missing"),
        ({"rows": 1, "stop_tokens": [1] * 257}, "missing"),
        (None, "no tandem.v1.TokenColumns"),
    ],
    ids=str,
)
async def test_a_bad_frame_ends_what_it_is_of_and_its_worker_is_named(
    bench: Bench, wrong: dict[str, Any] | None, fault: str
) -> None:
    """What is wrong of a second row, or of the end behind a first one. None: it cannot be read."""
    router = bench.router()
    mine, other = bench.ask(), bench.ask()
    sent(router)
    bad, good = Worker(bench, router, 1), Worker(bench, router, 2)
    bad.runs(mine.base)
    good.runs(other.base)
    bad.rows(**_row(mine.base, 0))
    good.rows(**_row(other.base, 0))
    if wrong is None:
        bad.says(b"\xff")
    elif "rows" in wrong:
        bad.rows(finish=[common_pb2.Finish(sequence=mine.base, **wrong)])
    else:
        bad.rows(**_row(mine.base, 1) | wrong)
    good.rows(**_row(other.base, 1), finish=[common_pb2.Finish(sequence=other.base, rows=2)])
    assert isinstance(mine.error, WorkerError)
    assert (other.error, other.open_choices, len(other.take()[0])) == (None, 0, 2)
    assert len(mine.take()[0]) == 1
    said = complaints(router)
    assert list(said) == [1]
    assert fault in said[1]


@pytest.mark.parametrize("end", [False, True])
async def test_rows_of_another_worker_s_sequence_touch_it_not(bench: Bench, end: bool) -> None:
    router = bench.router()
    mine, other = bench.ask(), bench.ask()
    sent(router)
    bad, good = Worker(bench, router, 1), Worker(bench, router, 2)
    bad.runs(mine.base)
    good.runs(other.base)
    if end:
        bad.rows(finish=[common_pb2.Finish(sequence=other.base)])
    else:
        bad.rows(**_row(other.base, 0, "not yours"))
    good.rows(**_row(other.base, 0, "yours"))
    assert (mine.error, other.error, other.open_choices) == (None, None, 1)
    assert [row[1] for row in other.take()[0]] == ["yours"]
    assert "run elsewhere" in complaints(router)[1]


async def test_rows_of_a_request_that_has_gone_are_no_fault(bench: Bench) -> None:
    router = bench.router()
    gone = bench.ask()
    worker = Worker(bench, router, 1)
    worker.runs(gone.base)
    gone.fail(WorkerError("gone"))
    worker.rows(**_row(gone.base, 0))
    assert complaints(router) == {}


async def test_a_row_without_its_sequence_ends_all_that_runs_on_its_worker(bench: Bench) -> None:
    router = bench.router()
    first, second, other = bench.ask(), bench.ask(), bench.ask()
    sent(router)
    worker = Worker(bench, router, 1)
    worker.runs(first.base, second.base)
    worker.rows(**{**_row(first.base, 0), "offset": [0, 0], "text": ["a", "b"]})
    assert isinstance(first.error, WorkerError)
    assert isinstance(second.error, WorkerError)
    assert other.error is None


async def test_what_the_router_could_not_pass_on_ends_what_runs_there(bench: Bench) -> None:
    router = bench.router()
    mine, other = bench.ask(), bench.ask()
    sent(router)
    Worker(bench, router, 1).runs(mine.base)
    Worker(bench, router, 2).runs(other.base)
    bench.demultiplexer.receive(router, router_pb2.RouterMessage(lost=[1, 77]))
    assert isinstance(mine.error, WorkerError)
    assert (other.error, complaints(router)) == (None, {})


async def test_a_sequence_that_is_tried_again_is_the_next_worker_s(bench: Bench) -> None:
    router = bench.router()
    state = bench.ask()
    sent(router)
    first, second = Worker(bench, router, 1), Worker(bench, router, 2)
    first.runs(state.base)
    second.runs(state.base)
    first.says(b"\xff")
    assert state.error is None
    second.says(b"\xff")
    assert isinstance(state.error, WorkerError)


async def test_a_router_says_only_where_its_own_requests_run(bench: Bench) -> None:
    router = bench.router()
    state = bench.ask()
    other = RouterStream(ByteBudget())
    Worker(bench, other, 1).runs(state.base, 2**64 - 1)
    Worker(bench, other, 1).says(b"\xff")
    assert state.error is None
    Worker(bench, router, 1).runs(state.base)
    Worker(bench, router, 1).rows(**_row(state.base, 0))
    assert len(state.take()[0]) == 1


@pytest.mark.parametrize(
    "parts",
    [
        {"part_worker": [1], "part_bytes": [2]},
        {"part_worker": [1], "part_bytes": []},
        {"part_worker": [1, 2], "part_bytes": [3]},
        {"part_worker": [0], "part_bytes": [3]},
        {"run_worker": [1]},
    ],
)
async def test_parts_that_do_not_add_up_are_the_router_s_fault(
    bench: Bench, parts: dict[str, list[int]]
) -> None:
    with pytest.raises(ValueError, match=r"parts|zip"):
        bench.demultiplexer.receive(
            bench.router(), router_pb2.RouterMessage(payload=b"abc", **parts)
        )


async def test_the_first_failure_is_the_one_that_is_told(bench: Bench) -> None:
    state = bench.ask()
    first: TandemError = RouterLostError("one")
    state.fail(first)
    state.fail(WorkerError("two"))
    assert state.error is first


# --- how large a request may be -------------------------------------------------------------------


@pytest.mark.parametrize(("size", "prompts", "fits"), [(90, 8, True), (90, 128, False)])
async def test_what_is_sent_for_all_prompts_together_is_bounded(
    bench: Bench, size: int, prompts: int, fits: bool
) -> None:
    each = SubmittedPrompt.of([1] * 3, max_tokens=16)
    fields = {"prompts": [each] * prompts, "metadata": {"k": "v" * size}}
    if fits:
        assert bench.ask(**fields).error is None
        return
    with pytest.raises(TooLargeError):
        bench.ask(**fields)
    assert bench.demultiplexer.open_requests == 0


def test_a_prompt_that_would_fill_a_message_is_refused_before_it_is_made() -> None:
    large = SubmittedPrompt(tokens=1, max_tokens=16, task=bytes(MAX_TASK_BYTES + 1))
    with pytest.raises(TooLargeError):
        submission(prompts=[large]).check_size(b"", most=1 << 40)


def test_a_prompt_s_task_is_what_all_have_in_common_and_its_own() -> None:
    prompts = [SubmittedPrompt.of([1, 2], max_tokens=3), SubmittedPrompt.of([4], max_tokens=5)]
    made = submission(prompts=prompts, sampling=common_pb2.SamplingParams(temperature=0.5))
    submits = [
        made.to_submit(place, place, common=made.common_task(), seconds=1.0, parent_span=0)
        for place in range(2)
    ]
    tasks = [common_pb2.Task.FromString(each.task) for each in submits]
    assert [list(each.prompt_token_ids) for each in tasks] == [[1, 2], [4]]
    assert [(each.sampling.max_tokens, each.sampling.temperature) for each in tasks] == [
        (3, 0.5),
        (5, 0.5),
    ]


@pytest.mark.parametrize(
    "odd",
    [
        {"hook_seconds": float("nan")},
        {"phase_seconds": float("inf")},
        {"kv_seconds": -1.0},
        {"worker": "w" * 257},
        {"kv_transport": "t" * 257},
        {"phase": 77},
    ],
    ids=lambda odd: next(iter(odd)),
)
async def test_a_report_that_cannot_be_is_left_out(bench: Bench, odd: dict[str, Any]) -> None:
    stream = bench.router()
    state = bench.ask(want_report=True)
    good = common_pb2.PhaseReport(sequence=state.base, phase=common_pb2.PHASE_DECODE)
    bad = common_pb2.PhaseReport()
    bad.CopyFrom(good)
    for name, value in odd.items():
        setattr(bad, name, value)
    bench.rows(stream, report=[bad, good])
    assert state.reports == [good]


async def test_times_in_the_queue_that_cannot_be_are_left_out_and_long_causes_cut(
    bench: Bench,
) -> None:
    stream = bench.router()
    state = bench.ask(want_report=True)
    said = [
        router_pb2.QueueWait(sequence=state.base, seconds=seconds, cause="c" * 300)
        for seconds in (float("nan"), float("inf"), -1.0, 0.5)
    ]
    said.append(router_pb2.QueueWait(sequence=state.base + 900, seconds=1.0))
    bench.demultiplexer.receive(stream, router_pb2.RouterMessage(queue_wait=said))
    assert [(each.seconds, each.cause) for each in state.queue_waits] == [(0.5, "c" * 256)]
    for _ in range(300):
        bench.demultiplexer.receive(stream, router_pb2.RouterMessage(queue_wait=said[3:4]))
    assert len(state.queue_waits) == 200


def fail_for(monkeypatch: pytest.MonkeyPatch, broken: RequestState, method: str) -> None:
    """A method of the class raises for this request, and does for others what it did."""
    real = getattr(RequestState, method)

    def fail(state: RequestState, *args: Any, **options: Any) -> Any:
        if state is broken:
            raise OSError("of a kind that nobody expects")
        return real(state, *args, **options)

    monkeypatch.setattr(RequestState, method, fail)


@pytest.mark.promise("S6-182")
async def test_what_cannot_be_taken_for_one_request_is_taken_for_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = bench.router()
    broken, whole = bench.ask(), bench.ask()

    fail_for(monkeypatch, broken, "finish")
    ends = [common_pb2.Finish(sequence=each.base, rows=0) for each in (broken, whole)]
    bench.rows(stream, finish=ends)
    assert isinstance(broken.error, InternalError)
    assert whole.error is None
    assert whole.open_choices == 0


@pytest.mark.promise("S6-182")
async def test_a_request_that_cannot_be_sent_keeps_no_other_from_its_router(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, whole = bench.ask(), bench.ask()
    fail_for(monkeypatch, broken, "to_submit")
    stream = bench.router()
    assert isinstance(broken.error, InternalError)
    assert sent(stream) == [whole.base]
