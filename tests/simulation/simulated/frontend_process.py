"""A frontend: its dispatcher, demultiplexer and streams to routers, and the clients it serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import get_args

from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from simulated.dice import Dice
from simulated.halves import Half, altered
from simulated.loop import Process
from simulated.network import Network
from simulated.prefixes import blocks_of, session_of
from simulated.script import RUNS, SEED, Request, text_of, tokenizer_hash, trace_id
from tandem.byte_budget import ByteBudget
from tandem.complaints import Complaints
from tandem.errors import TandemError
from tandem.prefix_blocks import pack
from tandem.upstream.answer import ChoiceFinish, Row
from tandem.upstream.demultiplexer import Demultiplexer
from tandem.upstream.metrics import Missing, UpstreamMetrics
from tandem.upstream.request_state import RequestState
from tandem.upstream.routers import Routers
from tandem.upstream.submission import Submission, SubmittedPrompt
from tandem.v1 import common_pb2, router_pb2

WAIT_SECONDS = 4.0
"""For a router with a pair."""


BACKLOG_BYTES = 600
"""What may wait for a client that does not read."""


@dataclass(slots=True, eq=False)
class Answer:
    """What a client got."""

    request: Request
    asked: float
    """When it was submitted; before that, when the client came."""
    rows: dict[int, list[Row]] = field(default_factory=dict)
    ends: dict[int, ChoiceFinish] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)
    error: TandemError | None = None
    over: float | None = None
    left: bool = False
    lost: bool = False
    """Its frontend died."""
    completion_tokens: int = 0
    half: Half | None = None
    """It is generation-only, of a request whose phases run apart."""
    state: RequestState | None = None
    reports: list[common_pb2.PhaseReport] = field(default_factory=list)

    @property
    def trace_id(self) -> str:
        return trace_id(self.request.number, self.half.place if self.half is not None else 0)


class _Client:
    """A client's connection: implements tandem.upstream.answer.RequestClient."""

    def watch(self, *, on_lost: Callable[[], object], on_stall: Callable[[], object]) -> None:
        self.on_lost = on_lost

    def abort(self) -> None:
        pass


class FrontendProcess:
    """One life of one frontend, which knows several models and is asked for one of them."""

    def __init__(
        self,
        dice: Dice,
        network: Network,
        name: str,
        model: str,
        tokenizer: int,
        *,
        others: Sequence[str] = (),
        most_routers: int = 0,
    ) -> None:
        """`others`: the models that nobody asks it for."""
        self.dice, self.name, self.model, self.tokenizer = dice, name, model, tokenizer
        self._network, self._most_routers = network, most_routers
        self._others = others
        self.tokenizer_sha256 = tokenizer_hash(model, tokenizer)
        self.process = Process(name)
        self.registry = CollectorRegistry()
        self._started = False
        self.answers: list[Answer] = []
        self.open_answers: dict[Answer, None] = {}
        self.unsent: dict[Answer, None] = {}
        """Those of which some prompt may not have left yet."""
        self.on_over: Callable[[FrontendProcess, Answer], None] = lambda frontend, answer: None

    @property
    def ready(self) -> bool:
        return self._started and self.route.ready

    def start(self) -> None:
        self.dice.loop.spawn(self.process, self._run())

    def die(self, network: Network) -> None:
        """At once; every stream breaks."""
        self.process.dead = True
        for answer in self.answers:
            answer.lost = answer.over is None
        self.open_answers.clear()
        for call in network.of(self.process):
            call.break_off()

    async def _run(self) -> None:
        metrics = UpstreamMetrics(self.registry)
        self.budget = ByteBudget()
        self.demultiplexer = Demultiplexer(
            metrics,
            Complaints(logging.getLogger(__name__)),
            self.budget,
            max_open=10_000,
            max_request_bytes=1_000_000,
            max_backlog_bytes=BACKLOG_BYTES,
            router_wait_seconds=WAIT_SECONDS,
            clock=self.dice.loop.time,
            draw=self.dice.random.randrange,
        )
        for other in self._others:
            self.demultiplexer.add(other, tokenizer_hash(other, self.tokenizer))
        self.route = self.demultiplexer.add(self.model, self.tokenizer_sha256)
        self._started = True
        routers = Routers(
            ["dns://router:1" if self._most_routers else "router"],
            metrics,
            self.budget,
            most=self._most_routers or 1,
            resolve=self._resolve,
            draw=self.dice.random.randrange,
        )
        await routers.run(self.demultiplexer)

    async def _resolve(self, host: str, _: int) -> Sequence[str]:
        """As DNS has it: a name without addresses is none."""
        await asyncio.sleep(self._network.delay())
        found = self._network.services.get(host)
        if not found:
            raise OSError("no such name")
        return list(found)

    def serve(self, request: Request, half: Half | None = None) -> Answer:
        """A client's request, from now on."""
        answer = Answer(request, self.dice.loop.time(), half=half)
        self.answers.append(answer)
        self.open_answers[answer] = self.unsent[answer] = None
        self.dice.loop.spawn(self.process, self._serve(answer))
        return answer

    async def _serve(self, answer: Answer) -> None:
        try:
            await self._generate(answer)
        except TandemError as error:
            answer.error = error
        answer.over = self.dice.loop.time()
        self.open_answers.pop(answer, None)
        self.unsent.pop(answer, None)
        self.on_over(self, answer)

    async def _generate(self, answer: Answer) -> None:
        request, client = answer.request, _Client()
        if request.leaves_after is not None:
            asyncio.get_running_loop().call_later(request.leaves_after, self._leave, answer, client)
        await self.route.served_model(client, request.timeout)
        answer.asked = self.dice.loop.time()
        with self.demultiplexer.submit(
            submission(request, self.tokenizer, answer.half), client
        ) as state:
            answer.state = state
            if request.streaming:
                state.pump = lambda: self._pump(answer, state)
            await state.over()
            state.pump = None
            if state.error is None or request.streaming:
                self._take(answer, state)
            answer.error = state.error
            answer.completion_tokens = state.completion_tokens
            answer.reports = state.reports

    @property
    def waiting(self) -> float:
        """Requests that it says wait, for whatever is missing."""
        read, name = self.registry.get_sample_value, "tandem_frontend_waiting_requests"
        return sum(read(name, {"missing": each}) or 0.0 for each in get_args(Missing))

    def answer_of(self, of: str) -> Answer:
        """Of the request that carries the trace id."""
        return next(each for each in self.answers if each.trace_id == of)

    def _leave(self, answer: Answer, client: _Client) -> None:
        if answer.over is None:
            answer.left = True
            client.on_lost()

    def _pump(self, answer: Answer, state: RequestState) -> bool:
        if answer.request.slow:
            return False
        self._take(answer, state)
        return True

    def _take(self, answer: Answer, state: RequestState) -> None:
        rows, ends = state.take()
        for row in rows:
            if row[0] in answer.ends:
                self.dice.fault(f"request {answer.request.number}: {row} came after its end")
            answer.rows.setdefault(row[0], []).append(row)
        for end in ends:
            if end.choice in answer.ends:
                self.dice.fault(f"request {answer.request.number}: {end} is the second end")
            answer.ends[end.choice] = end


def submission(request: Request, tokenizer: int, half: Half | None = None) -> Submission:
    """`half`: what makes a generation-only request of it; a context-only one where its phases run
    apart otherwise.
    """
    voucher = b"" if half is None else half.voucher
    if half is not None and half.spoilt == "voucher":
        voucher = altered(voucher)
    runs = list(product(range(request.prompts), range(request.n), range(RUNS)))
    stop = []
    if request.stop_at is not None:
        stop = [text_of(request.token(*each, request.stop_at)) for each in runs]
    words = [common_pb2.StopWord(token_id=word) for each in runs if (word := request.word(*each))]
    salt = "another" if half is not None and half.spoilt == "task" else ""
    sampling = common_pb2.SamplingParams(
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
        repetition_penalty=1.0,
        seed=SEED,
        stop=stop,
        stop_words=words,
    )
    return Submission(
        id=f"answer-{request.number}",
        prompts=[
            replace(
                SubmittedPrompt.of(
                    [7, tokenizer, request.number + 1, prompt],
                    max_tokens=request.max_tokens,
                    cache_salt=salt,
                ),
                blocks=pack(blocks_of(request.number)),
            )
            for prompt in range(request.prompts)
        ],
        task=common_pb2.Task(
            trace_id=trace_id(request.number, half.place if half is not None else 0),
            model=request.model,
            sampling=sampling,
            streaming=request.streaming,
            want_text=not request.want_ids,
            want_token_ids=request.want_ids,
            want_report=request.want_report,
            want_external_scores=request.want_report,
            tenant=request.tenant,
            cache_salt=salt,
        ),
        submit=router_pb2.Submit(
            n=request.n,
            tokenizer_sha256=tokenizer_hash(request.model, tokenizer),
            priority=request.priority,
            fairness=request.fairness,
            first_token_ms=request.first_token_ms,
            weight=request.weight,
            resume=request.resume,
            ends_session=request.number % 9 == 0,
            expected_tokens=request.max_tokens if request.number % 4 == 1 else 0,
            context_only=bool(request.seconds) and half is None,
            voucher=voucher,
        ),
        withheld_reason="content_filter",
        timeout_seconds=request.timeout,
        session=session_of(request.number),
    )
