"""A deployment from one seed: frontends, routers and workers, what happens to them, and its end."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from random import Random
from unittest.mock import patch

from google.protobuf import text_format
from google.protobuf.message import Message

import simulated.stranger
import tandem.upstream.request_state
import tandem.upstream.router_link
import tandem.upstream.router_stream
import tandem.wire.prompt_chunks
import tandem.worker.core.leg
import tandem.worker.core.machine
import tandem.worker.core.outgoing
import tandem.worker.core.shows
import tandem_router.connection
import tandem_router.core.prefixes
import tandem_router.core.trust
import tandem_router.core.worker
import tandem_router.links
import tandem_router.policies.prefix
from simulated import dividing, halves
from simulated.answers import judge_answer
from simulated.dice import MOST_PAUSE, Dice
from simulated.engine import Fabric
from simulated.frontend_process import Answer, FrontendProcess, submission
from simulated.frontend_rules import FrontendRules
from simulated.halves import Half
from simulated.loop import BrokenRule, Process, VirtualLoop
from simulated.network import Call, Network
from simulated.plan import FAULTS_END, Plan, draw
from simulated.prefixes import BLOCK
from simulated.router_process import RouterProcess
from simulated.script import ANY_TOKENIZER, FIRST_TOKENIZER, FOREIGN_TOKENIZER, Request
from simulated.stranger import STRANGE_ROUTER, FickleRouter, Stranger, StrangeRouter
from simulated.themes import RETIRE_SECONDS
from simulated.worker_process import WorkerProcess, WorkerSpec
from tandem.byte_budget import ByteBudget
from tandem.v1 import router_pb2, worker_pb2
from tandem.wire import faces
from tandem_router.core.sequences import Request as RouterRequest
from tandem_router.core.values import Phase
from tandem_router.discovery import Listed, Listing

SMALL = (
    (tandem_router.links, "MESSAGE_BYTES", 100),
    (tandem_router.links, "_UNCOUNTED_BYTES", 50),
    (tandem.upstream.request_state, "_COLLECTED_AT_ONCE", 2),
    (tandem.upstream.router_stream, "_MESSAGE_BYTES", 200),
    (tandem.worker.core.outgoing, "FRAME_BYTES", 150),
    (tandem.worker.core.outgoing, "MAX_ROW_BYTES", 40),
    (tandem.worker.core.machine, "FRAME_BYTES", 150),
    (tandem.worker.core.shows, "FRAME_BYTES", 150),
    (tandem.worker.core.leg, "MAX_ROW_BYTES", 40),
)
"""Bounds that make many messages of what waits, and several rows of a token."""
BLOCKS = (
    (tandem.wire.prompt_chunks, "CHUNK_TOKENS"),
    (tandem_router.core.worker, "BLOCK_TOKENS"),
    (tandem_router.core.prefixes, "BLOCK_TOKENS"),
    (tandem_router.policies.prefix, "HINT_TOKENS"),
)
"""What says how long a block is: prompts are short here."""
MOST_KILLED = 2
"""Workers that one sequence may end: its own, and one more."""
GARBAGE_SEEDS = 50
"""In one of so many seeds, which has no faults, garbage is looked at too: that takes time."""
PATIENCE = 90.0
"""Virtual seconds after the last fault by which everything must have ended by itself."""


class World:
    """One run."""

    def __init__(
        self,
        seed: int,
        *,
        trace: Callable[[str], None] | None = None,
        messages: Callable[[str], None] | None = None,
    ) -> None:
        """`trace` gets a line for each event and action of the routers' cores; `messages`, one for
        each message and status between processes.
        """
        self.plan: Plan = draw(seed)
        self._messages = messages
        plan = self.plan
        self.loop = VirtualLoop(self._at_rest)
        self.dice = Dice(
            plan.source,
            self.loop,
            plan.faulty,
            plan.engine_faults,
            FAULTS_END,
            Random(f"chunk rooms {seed}"),
            trace,
        )
        self.network = Network(self.loop, plan.source, plan.delays, plan.window)
        self.network.show = self._show
        self.fabric = Fabric()
        self.requests = {each.number: each for each in plan.requests}
        self.network.watch_up = self._sent_by_client
        self.network.watch_down = self._sent_by_server
        self.network.watch_arrival = self._read_by_client
        pauses = any(happening.startswith("pause") for _, happening in plan.happenings)
        self.frontend_rules = FrontendRules(
            now=self.loop.time,
            slack=4.0 if pauses else 0.5,
            fault=self.dice.fault,
            open_calls=lambda: self.network.calls,
        )
        self.workers: dict[str, WorkerProcess] = {}
        self._faces: dict[tuple[Process | None, str], WorkerProcess] = {}
        """By what is dialled."""
        self.routers: list[RouterProcess] = []
        self.frontends: list[FrontendProcess] = []
        self._lives = 0
        self._halves_due = 0
        """Generation-only requests that are yet to be made."""
        self._listing: dict[str, WorkerSpec] = {}
        self.dice.garbled, self.dice.garbles = plan.garbled, plan.garbles
        self.dice.late_failures, self.dice.slow_cancels = plan.late_failures, plan.slow_cancels
        self.dice.breaks_off, self.dice.failed_starts = plan.breaks_off, plan.failed_starts
        self.dice.quirks = {each.address: each.quirk for each in plan.workers}
        self.routers_made = 0
        self._watches_garbage = seed % GARBAGE_SEEDS == 0
        self._others = 0
        """Requests in memory that are not this world's."""

    def run(self) -> None:
        """To the end. Raises BrokenRule at the first rule that does not hold."""
        with self._patched():
            try:
                if self._watches_garbage:
                    gc.collect()
                    gc.disable()
                    self._others = _router_requests()
                self.loop.run_until_complete(self._live())
            finally:
                gc.enable()
                self._bury()

    async def _live(self) -> None:
        plan, dice = self.plan, self.dice
        for _, specs in groupby(plan.workers, key=lambda each: each.whole or each.address):
            started = self._start_worker(*specs)
            for worker in () if plan.faulty else started.faces:
                worker.shell.proved()  # clients come where nobody has to wait for canaries
                worker.engine.moved_kv = True
        if plan.fickle_router:
            self._start_fickle_router()
        for _ in range(plan.routers):
            self._start_router()
        for model in plan.models:
            for number in range(plan.frontends):
                self._start_frontend(f"frontend-{model}-{number}", model, FIRST_TOKENIZER)
        if plan.stale_frontend:
            model = plan.requests[0].model
            self._start_frontend("stale frontend", model, FOREIGN_TOKENIZER)
        for request in plan.requests:
            dice.later(request.at, self._ask, request)
        for at in plan.strangers:
            dice.later(at, self._stranger)
        for at, happening in plan.happenings:
            dice.later(at, getattr(self, f"_{happening}"))
        await self._until_over()
        self._must_be_empty()

    async def _until_over(self) -> None:
        """Until every client has its answer, and nothing is left of it."""
        last = max(request.at for request in self.plan.requests)
        last = max([last, *(at for at, _ in self.plan.happenings)])
        await asyncio.sleep(last + 0.01)
        limit = max(self.loop.time(), FAULTS_END if self.plan.faulty else 0.0) + PATIENCE
        # In virtual time looking costs nothing.
        while self._open() and self.loop.time() < limit:  # noqa: ASYNC110
            await asyncio.sleep(0.25)
        if waiting := self._open():
            raise BrokenRule(f"still open {PATIENCE:g} s after the last fault: {waiting}")

    # --- what is there ---

    def _start_worker(self, *specs: WorkerSpec) -> WorkerProcess:
        """One process, of one phase or both."""
        self._lives += 1
        started: WorkerProcess | None = None
        for spec in specs:
            worker = WorkerProcess(
                self.dice,
                self.network,
                replace(spec, lease_seconds=self.plan.lease_seconds),
                self._lives,
                self.fabric,
                self.requests,
                self.plan.most_held,
                proves=bool(self.plan.bounds.canary_seconds),
                twin=started,
            )
            worker.engine.on_poison = partial(self._poisoned, worker)
            self.workers[worker.name] = self._faces[worker.process, spec.address] = worker
            worker.start()
            self._listing[spec.address] = worker.spec
            started = started or worker
        self._tell()
        assert started is not None, "a process has a phase"
        return started

    def _start_router(self) -> None:
        self.routers_made += 1
        made = RouterProcess(
            self.dice,
            self.network,
            f"router-{self.routers_made}",
            self.plan.bounds,
            self.frontend_rules.begun,
            policy=self.plan.policy,
            division=self.plan.division,
        )
        if self.plan.division.decode_routers:
            made.on_unlisted = self._tell
        self.routers.append(made)
        made.start()
        self._tell()

    def _start_fickle_router(self) -> None:
        model, begun = self.plan.models[0], self.frontend_rules.begun
        FickleRouter(self.dice, self.network, model, begun).start()

    def _stranger(self) -> None:
        model = self.plan.models[0]
        Stranger(self.dice, model, self._task(model)).start()
        if living := self._living():
            worker = self.dice.random.choice(living)
            StrangeRouter(self.dice, worker.spec.address, self._task(worker.spec.model)).start()

    def _task(self, model: str) -> bytes:
        """Of some request, as its frontend would make it. None that ends workers: those that it
        ended for a stranger would be counted as the request's own.
        """
        mine = [each for each in self.plan.requests if each.model == model and not each.poison]
        if not mine:
            return b""
        made = submission(mine[0], ANY_TOKENIZER)
        common = made.common_task()
        return made.to_submit(0, 1, common=common, seconds=1.0, parent_span=0).task

    def _start_frontend(self, name: str, model: str, tokenizer: int) -> None:
        made = FrontendProcess(
            self.dice,
            self.network,
            name,
            model,
            tokenizer,
            others=[each for each in self.plan.models if each != model],
            most_routers=self.plan.most_routers,
        )
        self.frontends.append(made)
        made.on_over = self._over
        made.start()

    def _listed_now(self) -> Listing:
        workers = (
            Listed(each.address, each.listed_as or each.phase) for each in self._listing.values()
        )
        routers = (each.name for each in self.routers if each.listed)
        divided = self.plan.division.decode_routers
        return Listing(tuple(workers), frozenset(routers if divided else ()))

    def _tell(self) -> None:
        listing = self._listed_now()
        for each in self.routers:
            if not each.process.dead:
                each.discovery.tell(listing)

    def _over(self, frontend: FrontendProcess, answer: Answer) -> None:
        """A client has its answer; one whose request left KV goes on from there."""
        self.frontend_rules.over(frontend, answer)
        end = answer.ends.get(0)
        if answer.half is None and end is not None and end.voucher:
            for half in answer.request.seconds:
                self._halves_due += 1
                made = replace(half, voucher=end.voucher)
                self.dice.later(half.after, self._ask_half, answer.request, made)

    def _ask_half(self, request: Request, half: Half) -> None:
        self._halves_due -= 1
        self._ask(request, half)

    def _ask(self, request: Request, half: Half | None = None) -> None:
        """Most clients reach a frontend that is ready, where there is one."""
        mine = [
            each for each in self.frontends if each.model == request.model and not each.process.dead
        ]
        ready = [each for each in mine if each.ready]
        one = self.dice.random.choice(mine)
        if ready and not one.ready and self.dice.random.random() < 0.9:
            one = self.dice.random.choice(ready)
        one.serve(request, half)

    # --- what happens ---

    def _living(self) -> list[WorkerProcess]:
        return [
            each for each in self.workers.values() if not each.process.dead and not each.draining
        ]

    def _living_processes(self) -> list[WorkerProcess]:
        return [each for each in self._living() if each is each.faces[0]]

    def _roll_worker(self) -> None:
        """Replace one worker by another of its kind, at another address."""
        if living := self._living_processes():
            self._replace(self.dice.random.choice(living), None)

    def _roll_model(self) -> None:
        """Replace all workers of a model by a new revision of it."""
        model = self.dice.random.choice(self.plan.models)
        revision = f"r{self._lives}"
        for worker in self._living_processes():
            if worker.spec.model == model:
                self._replace(worker, revision)

    def _roll_tokenizer(self) -> None:
        """Replace a model's workers by those of another tokenizer, and put frontends of it beside
        the old ones, which some clients go on to reach.
        """
        model = self.dice.random.choice(self.plan.models)
        tokenizer = 1 + max(each.tokenizer for each in self.frontends if each.model == model)
        for number in range(self.plan.frontends):
            self._start_frontend(f"frontend-{model}-{number}-{tokenizer}", model, tokenizer)
        revision = f"r{self._lives}"
        for worker in self._living_processes():
            if worker.spec.model == model:
                self._replace(worker, revision, tokenizer)

    def _replace(
        self, worker: WorkerProcess, revision: str | None, tokenizer: int | None = None
    ) -> None:
        another = []
        for spec in worker.specs:
            kind = "whole" if spec.whole else spec.phase.value
            new = f"{kind}-{spec.model}-n{self._lives}:1"
            another.append(
                replace(
                    spec,
                    address=faces.key(new, spec.phase.value) if spec.whole else new,
                    whole=new if spec.whole else "",
                    revision=revision or spec.revision,
                    tokenizer=tokenizer or spec.tokenizer,
                )
            )
        ready = self._start_worker(*another)
        self.dice.later(RETIRE_SECONDS, self._retire_after, worker, ready)

    def _retire_after(self, worker: WorkerProcess, another: WorkerProcess, looks: int = 20) -> None:
        """Once the other is ready, or has not become so in time."""
        if all(face.paired for face in another.faces) or not looks:
            self._retire(worker)
        else:
            self.dice.later(0.5, self._retire_after, worker, another, looks - 1)

    def _retire(self, worker: WorkerProcess) -> None:
        if not worker.process.dead:
            self.dice.later(self.dice.random.random(), self._unlist, worker.specs)
            drain = self.dice.random.choice((0.1, 60.0)) if self.plan.faulty else 60.0
            worker.shut_down(drain)

    def _unlist(self, specs: list[WorkerSpec]) -> None:
        for spec in specs:
            self._listing.pop(spec.address, None)
        self._tell()

    def _roll_router(self) -> None:
        going = [each for each in self.routers if not each.stopped]
        if going:
            self._start_router()
            drain = 60.0 if not self.plan.faulty else self.dice.random.choice((0.1, 60.0))
            self.dice.later(
                RETIRE_SECONDS, self._retire_router, self.dice.random.choice(going), drain
            )

    def _retire_router(self, router: RouterProcess, seconds: float) -> None:
        if not router.stopped:
            router.shut_down(seconds)

    def _cut_stream(self) -> None:
        if calls := list(self.network.calls):
            self.dice.random.choice(calls).break_off()

    def _cut_frontend(self) -> None:
        frontends = [each.process for each in self.frontends]
        if calls := [call for call in self.network.calls if call.client in frontends]:
            self.dice.random.choice(calls).break_off()

    def _cut_worker(self) -> None:
        workers = {each.process for each in self.workers.values()}
        if calls := [call for call in self.network.calls if call.server in workers]:
            self.dice.random.choice(calls).break_off()

    def _crash_frontend(self) -> None:
        """Its clients are lost with it; those to come use another, or the next one."""
        going = [each for each in self.frontends if not each.process.dead]
        crashed = self.dice.random.choice(going)
        crashed.die(self.network)
        self._start_frontend(f"{crashed.name}'", crashed.model, crashed.tokenizer)

    def _crash_phase(self) -> None:
        """All workers of one kind; some come back soon, some late."""
        if living := self._living():
            kind = self.dice.random.choice(living).spec
            back = self.dice.random.choice((0.3, 0.3, 0.3, 0.3, 7.0))
            for worker in living:
                if (worker.spec.model, worker.spec.phase) == (kind.model, kind.phase):
                    self._crash_one(worker, back)

    def _crash_longest(self) -> None:
        """All workers of one phase that take the longest requests; they come back late."""
        if living := self._living():
            longest = max(each.spec.context for each in living)
            phase = self.dice.random.choice((Phase.PREFILL, Phase.DECODE))
            for worker in living:
                if (worker.spec.context, worker.spec.phase) == (longest, phase):
                    self._crash_one(worker, 7.0)

    def _crash_prefill(self, tries: int = 300) -> None:
        """Once one has handed over and is not done with it; decode may have begun by then."""
        for worker in self._living():
            done = [each.fetched for each in worker.engine.open.values()]
            if worker.spec.phase is Phase.PREFILL and (any(done) or worker.waits_for_hooks):
                self.dice.later(self.dice.random.choice((0.0, 0.05, 0.3)), self._crash_one, worker)
                return
        if tries:
            self.dice.later(0.005, self._crash_prefill, tries - 1)

    def _crash_decode(self) -> None:
        if living := [each for each in self._living() if each.spec.phase is Phase.DECODE]:
            self._crash_one(self.dice.random.choice(living))

    def _crash_worker(self) -> None:
        if living := self._living():
            self._crash_one(self.dice.random.choice(living))

    def _crash_one(self, worker: WorkerProcess, back: float | None = None) -> None:
        """It comes back after so many seconds; None: soon."""
        if not worker.process.dead:
            worker.die()
            seconds = back or self.dice.random.choice((0.1, 1.0))
            self.dice.later(seconds, self._start_worker, *worker.specs)

    def _kill_engine(self) -> None:
        if living := self._living():
            worker = self.dice.random.choice(living)
            worker.get_stuck()
            stuck = self.dice.random.choice((0.3, 3.0))
            worker.later(stuck, worker.engine_dies)
            self.dice.later(stuck + 1.2, self._start_worker, *worker.specs)

    def _stall_engine(self) -> None:
        """It stands for a while, and goes on."""
        phase = self.plan.stalls
        living = [each for each in self._living() if phase in (None, each.spec.phase)]
        if living:
            worker = self.dice.random.choice(living)
            worker.get_stuck()
            worker.later(self.plan.stall_seconds, worker.go_on)

    def _poisoned(self, worker: WorkerProcess, request: Request) -> None:
        if request.poison == "worker":
            self._crash_one(worker)
        else:
            worker.engine_dies()
            self.dice.later(1.2, self._start_worker, *worker.specs)
        alone = request.prompts * request.n == 1
        if alone and request.killed > MOST_KILLED:
            self.dice.fault(f"request {request.number} has ended {request.killed} workers")

    def _crash_router(self) -> None:
        going = [each for each in self.routers if not each.stopped]
        if going:
            self._crash_this_router(self.dice.random.choice(going))

    def _crash_this_router(self, router: RouterProcess) -> None:
        if not router.process.dead:
            router.die()
            back = self.dice.random.choice((0.1, 0.1, 1.0, 1.0, 7.0))
            self.dice.later(back, self._start_router)

    def _pause_and_crash_router(self) -> None:
        """It takes nothing any more for a while, and then is gone: much has not left by then."""
        going = [each for each in self.routers if not each.stopped and not each.process.paused]
        if going:
            router = self.dice.random.choice(going)
            self.loop.pause(router.process)
            self.dice.later(self.dice.random.choice((0.2, 1.0)), self._crash_this_router, router)

    def _pause(self) -> None:
        processes = [
            *(each.process for each in self._living()),
            *(each.process for each in self.routers if not each.stopped),
            *(each.process for each in self.frontends if not each.process.dead),
        ]
        self._pause_one(processes)

    def _pause_router(self) -> None:
        self._pause_one([each.process for each in self.routers if not each.stopped])

    def _pause_one(self, processes: list[Process]) -> None:
        going = [each for each in processes if not each.paused]
        if going:
            process = self.dice.random.choice(going)
            seconds = self.dice.random.choice((0.2, 1.0, MOST_PAUSE - 0.1))
            self.loop.pause(process)
            self.dice.later(seconds, self.loop.resume, process)

    # --- rules ---

    def _at_rest(self) -> None:
        """Before time goes on: nothing waits for a stream that could take it."""
        for each in self.routers:
            if not each.process.stopped:
                each.wire.at_rest(partial(self._calls_of, each.process))
        for worker in self.workers.values():
            if not worker.process.stopped:
                worker.at_rest(self.network.calls)
        self.frontend_rules.at_rest(self.frontends, self.network.calls)

    def _calls_of(self, process: Process) -> dict[str, Call]:
        return {call.address: call for call in self.network.calls if call.client is process}

    def _show(self, by: str, to: str, said: object) -> None:
        if self._messages is not None:
            one_line = partial(text_format.MessageToString, as_one_line=True)
            text = one_line(said) if isinstance(said, Message) else said or "the end"
            self._messages(f"{self.loop.time():9.4f} {by} to {to}: {text}")

    def _sent_by_client(self, call: Call, message: Message) -> None:
        self._show(call.client.name, call.address, message)
        if isinstance(message, worker_pb2.WorkerCommand):
            for each in self.routers:
                if each.process is call.client:
                    each.wire.to_worker(call.address, message)

        elif isinstance(message, router_pb2.FrontendMessage):
            for each in self.frontends:
                if each.process is call.client:
                    self.frontend_rules.sent(each, call, message)
        else:
            raise TypeError(f"no rule would see {type(message)}")

    def _read_by_client(self, call: Call, message: object) -> None:
        if isinstance(message, router_pb2.RouterMessage):
            for each in self.frontends:
                if each.process is call.client:
                    self.frontend_rules.arrived(each, call, message)

    def _sent_by_server(self, call: Call, message: Message) -> None:
        self._show(call.address, call.client.name, message)
        if isinstance(message, worker_pb2.WorkerFrame):
            worker = self._faces[call.server, call.address]
            if call.client.name == STRANGE_ROUTER:
                return  # it uses its numbers twice
            worker.rules.sent(worker.links[call], message)
        elif isinstance(message, router_pb2.RouterMessage):
            for each in self.routers:
                if each.process is call.server:
                    each.wire.to_frontend(call, message)
        else:
            raise TypeError(f"no rule would see {type(message)}")

    def _open(self) -> str:
        """What is still open, for people; empty: nothing."""
        answers = [each for frontend in self.frontends for each in frontend.answers]
        if asked := [
            each.request.number for each in answers if each.over is None and not each.lost
        ]:
            return f"requests {asked} have no end"
        if len(answers) < len(self.requests) or self._halves_due:
            return "not every request was made"
        for each in self.frontends:
            if not each.process.dead and each.demultiplexer.open_requests:
                return f"{each.name} has open requests"
        for each in self.routers:
            if not each.process.dead and (each.stopped or not each.core.idle):
                return f"{each.name} has something open, or drains"
            if not each.process.dead and (unproved := each.rules.canaries.unproved()):
                return f"{each.name} has not proved {unproved}"
        for fault in self._uneven():
            return fault
        for worker in self.workers.values():
            engine = worker.engine
            holds = worker.draining or len(worker.core) or engine.open or engine.parked
            if not worker.process.dead and holds:
                return f"{worker.name} has something open, or drains"
        for name, process, budget in self._budgets():
            if not process.dead and budget.held:
                return f"{name} holds {budget.held} bytes of nothing"
        return ""

    def _uneven(self) -> Iterator[str]:
        routers = [each for each in self.routers if each.listed]
        division, calm = self.plan.division, not self.plan.faulty
        return dividing.uneven(division, self._listed_now(), routers, calm=calm)

    def _budgets(self) -> Iterator[tuple[str, Process, ByteBudget]]:
        yield from ((each.name, each.process, each.budget) for each in self.frontends)
        cores = (*self.routers, *self.workers.values())
        yield from ((each.name, each.process, each.core.budget) for each in cores)

    def _must_be_empty(self) -> None:
        if self.fabric.held:
            raise BrokenRule(f"KV is left: {list(self.fabric.held)}")
        for worker in self.workers.values():
            if not worker.process.dead and worker.core._state.groups:
                raise BrokenRule(f"{worker.name} keeps groups of legs that are closed")
            if not worker.process.dead and worker.hooks and worker.hooks.open_sequences:
                raise BrokenRule(f"hooks of {worker.name} still wait for an end")
        for each in self.frontends:
            if not each.process.dead and each.waiting:
                raise BrokenRule(f"{each.name} says that {each.waiting:g} requests wait")
        if self._watches_garbage and (left := _router_requests() - self._others):
            raise BrokenRule(f"{left} requests that have ended are left to the garbage collector")
        strandings = [each.share_rules.stranded for each in self.routers]
        begun = {trace_id for trace_id, _ in self.frontend_rules.begun}
        hasty = any(each.spec.quirk == "hasty" for each in self.workers.values())
        for each in self.frontends:
            for answer in each.answers:
                number = answer.request.number
                if number in self.dice.deceived:
                    continue
                misled = number in self.dice.misled
                if answer.request.seconds and answer.half is None:
                    halves.judge_first(answer)
                    continue
                judge_answer(answer, hasty=hasty, faulty=self.plan.faulty, misled=misled)
                unreadable = "output cannot be read" in str(answer.error)
                if unreadable and number not in self.dice.spoilt:
                    raise BrokenRule(f"request {answer.request.number} pays for another's output")
                by_itself = answer.half is None
                if answer.error is not None and by_itself and not self.plan.faulty:
                    stranded = any(answer.trace_id in each for each in strandings)
                    excuse = "stranded" if stranded and answer.trace_id in begun else ""
                    self.dice.fault(f"{answer.error.code} without a fault: {answer.error}", excuse)
        self._judge_halves()
        self._most_must_have_finished()

    def _judge_halves(self) -> None:
        calm = not self.plan.faulty and not self.plan.happenings
        answers = [each for frontend in self.frontends for each in frontend.answers]
        for request in self.plan.requests:
            mine = [each for each in answers if each.request is request and each.half is not None]
            halves.judge_seconds(mine, lease=self.plan.lease_seconds, calm=calm)

    def _most_must_have_finished(self) -> None:
        most, ends = self.plan.most_failed, self.ends()
        if most is not None and ends.total() - ends["finished"] > most:
            raise BrokenRule(f"more than {most} requests have failed: {dict(ends)}")
        for frontend in self.frontends:
            for answer in frontend.answers:
                took = (answer.over or 0.0) - answer.asked
                if took > self.plan.longest:
                    raise BrokenRule(f"request {answer.request.number} took {took:g} s")

    def ends(self) -> Counter[str]:
        """What its requests came to: finished, or an error's code."""
        return Counter(
            "finished" if answer.error is None else answer.error.code
            for frontend in self.frontends
            for answer in frontend.answers
            if answer.over is not None and not answer.lost
        )

    # --- the frame around it ---

    @contextmanager
    def _patched(self) -> Iterator[None]:
        """Channels are the network's."""
        modules = (tandem_router.connection, tandem.upstream.router_link, simulated.stranger)
        with ExitStack() as stack:
            within = self.plan.fault_seconds
            trust = tandem_router.core.trust
            stack.enter_context(patch.object(trust, "FAULTS_SECONDS", within))
            if self.plan.small_messages:
                for module, name, size in SMALL:
                    stack.enter_context(patch.object(module, name, size))
            for module, name in BLOCKS:
                stack.enter_context(patch.object(module, name, BLOCK))
            for module in modules:
                stack.enter_context(patch.object(module, "open_channel", self.network.open_channel))
            yield

    def _bury(self) -> None:
        """Cancel what is left, silently."""
        for process in self._processes():
            process.dead = False
            self.loop.resume(process)
        self.loop.abandon()
        self.loop.close()

    def _processes(self) -> list[Process]:
        parts = [*self.workers.values(), *self.routers, *self.frontends]
        return [part.process for part in parts]


def _router_requests() -> int:
    """How many there are in the memory of this process, those that have ended included."""
    return sum(type(each) is RouterRequest for each in gc.get_objects())
