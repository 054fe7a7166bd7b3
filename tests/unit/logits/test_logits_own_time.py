"""A processor's limit counts its own time: not what a GPU has to do for others before it answers.

The machine here is made up, with its clock, so that nothing depends on how fast the real one is.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import current_thread, main_thread
from time import perf_counter
from typing import Any

import pytest
import torch
from logits_bench import Library, plain, rows

from tandem.errors import ProcessorError
from tandem.logits import BaseLogitsProcessor, Row, TokenHistory, backlog, building
from tandem.logits.backlog import DeviceBacklog
from tandem.logits.rows import apply_rows
from tandem.logits.state import RequestLogits
from tandem.usercode import call, deadline

LIMIT = 1.0
"""Seconds."""
FORWARD = 5.0
"""Seconds that the GPU has to compute for the engine when processors are called."""
PAST = TokenHistory([1, 2], [3])
SLOW = "logits processor 'mine' took longer than 1000 ms"

pytestmark = pytest.mark.promise("S5-430")


class Machine:
    """A host and a GPU. All seconds of the host count as CPU time: CUDA waits in a loop."""

    def __init__(self, *, interrupts: bool) -> None:
        self.now = 100.0
        self.free_at = 0.0
        """When the GPU has done all that it was given."""
        self.asked = 0
        """How often it was asked for anything but to remember a moment."""
        self.interrupts = interrupts
        self.watch = deadline.Watch()

    def compute(self, seconds: float) -> None:
        """Python code runs."""
        self.now += seconds
        if self.interrupts:
            self.watch._interrupt(0, None)  # as the signal would

    def queue(self, seconds: float) -> None:
        """The GPU is given a kernel."""
        self.free_at = max(self.free_at, self.now) + seconds

    def wait(self) -> None:
        """As `.item()` does."""
        self.compute(max(0.0, self.free_at - self.now))


class MomentOfDevice:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.at = 0.0

    def record(self, stream: Any = None) -> None:
        machine = self._machine
        self.at = machine.now if stream else max(machine.now, machine.free_at)

    def query(self) -> bool:
        self._machine.asked += 1
        return self._machine.now >= self.at

    def synchronize(self) -> None:
        self._machine.asked += 1
        self._machine.now = max(self._machine.now, self.at)

    def elapsed_time(self, end_event: Any) -> float:
        assert self.query()
        return (end_event.at - self.at) * 1000


class OnGpu(torch.Tensor):
    is_cpu = False  # type: ignore[assignment]
    is_cuda = True  # type: ignore[assignment]


Act = Callable[[Machine], None]


class Mine(BaseLogitsProcessor):
    keeps_state = False

    def __init__(self, machine: Machine, act: Act) -> None:
        self._machine = machine
        self._act = act

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        self._act(self._machine)
        logits[7] = 100.0


@pytest.fixture(params=[True, False], ids=["interrupted", "found out when it returns"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(interrupts=request.param)

    def clock() -> float:
        """The thread that watches other tests' calls goes on by the real one: by the clock of this
        machine it would sleep for hours, and never interrupt a call that hangs.
        """
        return made.now if current_thread() is main_thread() else perf_counter()

    for module in (call, deadline, backlog):
        monkeypatch.setattr(module, "perf_counter", clock)
    monkeypatch.setattr(call, "thread_time", lambda: made.now)
    monkeypatch.setattr(call, "WATCH", made.watch)
    before, now = MomentOfDevice(made), MomentOfDevice(made)
    monkeypatch.setattr(
        backlog, "_of_device", lambda _: DeviceBacklog(before, now, "a stream of its own")
    )
    return made


def step(machine: Machine, *acts: Act, library: Library | None = None) -> list[str | None]:
    """What became of each row of a step, on the GPU where no library is given."""

    def state(act: Act) -> RequestLogits:
        return RequestLogits([("mine", lambda: Mine(machine, act))], seconds=LIMIT)

    states = [state(act) for act in acts]
    batch = rows(library or "torch", len(acts))
    if library is None:
        batch = batch.as_subclass(OnGpu)
    errors: list[ProcessorError | None] = apply_rows(states, [PAST] * len(acts), batch)
    if library is None:
        batch = batch.as_subclass(torch.Tensor)
    assert [row[7] == 100.0 for row in plain(batch)] == [error is None for error in errors]
    return [None if error is None else error.message for error in errors]


def waits(machine: Machine) -> None:
    machine.wait()
    machine.compute(0.1)


def test_waiting_for_the_engines_work_is_not_the_processors_time(machine: Machine) -> None:
    machine.queue(FORWARD)
    assert step(machine, waits) == [None]
    assert machine.now == pytest.approx(100.0 + FORWARD + 0.1)


def test_a_kernel_of_its_own_is(machine: Machine) -> None:
    def queues(machine: Machine) -> None:
        machine.queue(LIMIT * 1.2)
        machine.wait()

    machine.queue(FORWARD)
    assert step(machine, queues, waits) == [SLOW, None]
    machine.wait()
    assert step(machine, queues, waits) == [SLOW, None]


def test_python_of_its_own_is_before_and_after_it_waits_and_where_it_does_not(
    machine: Machine,
) -> None:
    def after(machine: Machine) -> None:
        machine.wait()
        machine.compute(LIMIT * 0.6)
        machine.compute(LIMIT * 0.6)

    machine.queue(FORWARD)
    assert step(machine, after) == [SLOW]
    assert machine.now <= 100.0 + FORWARD + LIMIT * 1.3
    machine.queue(FORWARD)
    assert step(machine, lambda machine: machine.compute(LIMIT * 1.2)) == [SLOW]
    assert machine.now < machine.free_at


def test_it_is_cut_off_as_soon_as_its_own_time_is_over(machine: Machine) -> None:
    """Not a whole limit after the first interrupt, and without waiting for its own kernels."""

    def after(machine: Machine) -> None:
        machine.now = machine.free_at + LIMIT / 2  # in C, where nothing interrupts
        machine.queue(LIMIT * 4)
        for _ in range(100):
            machine.compute(0.05)

    machine.queue(FORWARD)
    assert step(machine, after) == [SLOW]
    if machine.interrupts:
        assert machine.now == pytest.approx(100.0 + FORWARD + LIMIT, abs=0.06)


def test_waiting_for_another_processors_kernel_is_not_either(machine: Machine) -> None:
    machine.queue(FORWARD)
    assert step(machine, waits, lambda machine: machine.queue(LIMIT * 3), waits) == [None] * 3


def test_a_constructor_may_wait_for_the_engine_too(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(act: Act) -> None:
        def make() -> Mine:
            return act(machine) or Mine(machine, act)

        building.build("mine", make, {}, None, seconds=LIMIT)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    machine.queue(FORWARD * 3)
    build(waits)
    with pytest.raises(ProcessorError, match="it took longer than 5000 ms"):
        build(lambda machine: machine.compute(6.0))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_on_a_cpu_all_time_is_the_processors_own(machine: Machine, library: Library) -> None:
    machine.queue(FORWARD)
    assert step(machine, waits, lambda machine: None, library=library) == [SLOW, None]
    assert machine.asked == 0


def test_a_step_within_its_limits_asks_the_gpu_for_nothing(machine: Machine) -> None:
    machine.queue(FORWARD)
    assert step(machine, *[lambda machine: machine.compute(LIMIT / 2)] * 8) == [None] * 8
    assert machine.asked == 0


def test_the_watch_of_real_calls_goes_by_the_real_clock(machine: Machine) -> None:
    before = perf_counter()
    with ThreadPoolExecutor(1) as thread:
        seen = thread.submit(lambda: deadline.perf_counter()).result(10)
    assert before <= seen <= perf_counter()
    assert deadline.perf_counter() == machine.now
