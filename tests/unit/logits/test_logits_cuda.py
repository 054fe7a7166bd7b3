"""On a GPU: the very rows of a CPU, and nothing that the host waits for in a step."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from logits_bench import Given, generate, plain, rows, state_of
from test_logits_ready import EXAMPLES

from tandem.logits import TokenHistory, arrays
from tandem.logits.rows import blank, edit_rows
from tandem.logits.state import RequestLogits
from tandem.usercode.deadline import WATCH

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

BUSY_CYCLES = 200_000_000
"""Of the GPU's clock: about 0.1 s."""


def step_of(given: Given, count: int, generated: list[int]) -> tuple[Callable[[Any], Any], Any]:
    """A step with `count` rows of a kind, each some tokens further, and its rows on the GPU."""
    states = [state_of(given) for _ in range(count)]
    histories = [
        TokenHistory((5, 6, 7), generated[: index % len(generated)]) for index in range(count)
    ]

    def step(batch: Any) -> Any:
        codes = edit_rows(states, histories, batch)
        if codes is not None:
            blank(batch, codes)
        return codes

    return step, rows("cuda", count)


def succeeded(codes: Any) -> bool:
    return codes is None or not codes.any()


def waits(function: Callable[[], object]) -> int:
    """How often `function` made the host wait for the GPU."""
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            function()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(each.message) for each in seen)


@pytest.mark.parametrize("count", [1, 8, 64])
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_gpu_edits_rows_bit_by_bit_as_a_cpu_does(name: str, count: int) -> None:
    given = (name, EXAMPLES[name])
    generated = generate(state_of(given), "torch")
    step, batch = step_of(given, count, generated)
    assert succeeded(step(batch))
    on_cpu, expected = step_of(given, count, generated)[0], rows("torch", count)
    assert succeeded(on_cpu(expected))
    assert numpy.array_equal(plain(batch), plain(expected))


@pytest.mark.parametrize("count", [1, 8, 64])
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_host_waits_for_no_step(name: str, count: int) -> None:
    given = (name, EXAMPLES[name])
    step, batch = step_of(given, count, generate(state_of(given), "torch"))
    assert succeeded(step(batch))  # and is warm
    assert waits(lambda: step(batch)) == 0


@pytest.mark.parametrize("count", [1, 8, 64])
@pytest.mark.parametrize("name", EXAMPLES)
def test_no_step_waits_for_what_the_gpu_has_to_do_before(name: str, count: int) -> None:
    """As where the forward pass still runs when its sampling is queued."""
    given = (name, EXAMPLES[name])
    step, batch = step_of(given, count, generate(state_of(given), "torch"))
    step(batch)
    busy(lambda: step(batch))


@pytest.mark.parametrize("size", [8, 1 << 12, 1 << 17, 1 << 20])
def test_an_array_goes_to_a_busy_gpu_without_waiting_and_may_change_at_once(size: int) -> None:
    there = torch.zeros(1, device="cuda")
    array = numpy.arange(size, dtype=numpy.int64)
    moved: list[Any] = [arrays.like(there, array)]  # warm

    def send() -> None:
        moved.append(arrays.like(there, array))
        array[:] = -1

    busy(send)
    assert torch.equal(moved[1].cpu(), torch.arange(size))


@pytest.mark.parametrize("size", [1 << 10, 1 << 13, 25_600, 1 << 15])
def test_the_arrays_of_a_step_go_to_a_busy_gpu_without_waiting(size: int) -> None:
    """Eight, as the places and values of 256 rows: CUDA's own staging has not room for all."""
    there = torch.zeros(1, device="cuda")
    array = numpy.arange(size, dtype=numpy.int64)
    warm = [arrays.like(there, array) for _ in range(8)]
    torch.cuda.synchronize()
    del warm
    busy(lambda: [arrays.like(there, array) for _ in range(8)])


def own_kernel(row: Any) -> None:
    torch.cuda._sleep(BUSY_CYCLES)
    row[0].item()


def own_python(_row: Any) -> None:
    until = time.perf_counter() + 0.1
    while time.perf_counter() < until:
        pass


@pytest.mark.promise("S5-430")
@pytest.mark.parametrize(
    ("does", "blamed"), [(lambda row: row[0].item(), False), (own_kernel, True), (own_python, True)]
)
def test_a_limit_counts_a_processors_own_time(does: Callable[[Any], object], blamed: bool) -> None:
    """Behind what the GPU has to do for the engine, which takes two limits."""
    WATCH.install()

    def edit(_history: Any, row: Any) -> None:
        does(row)

    state = RequestLogits([("mine", lambda: edit)], seconds=0.05)
    batch = rows("cuda", 1)
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY_CYCLES)
    edit_rows([state], [TokenHistory((5, 6, 7), ())], batch)
    assert (state.error is not None) == blamed


def busy(function: Callable[[], object]) -> None:
    """Call it while the GPU is busy, and assert that it did not wait for that."""
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    torch.cuda._sleep(BUSY_CYCLES)
    done.record()
    began = time.perf_counter()
    function()
    took = time.perf_counter() - began
    assert not done.query(), f"it took {took * 1e3:.1f} ms, and the GPU had ended before"
    torch.cuda.synchronize()
