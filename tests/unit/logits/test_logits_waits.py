"""On a GPU no host waits for a step's rows: what came of them is read with the step's tokens."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from logits_bench import MODEL, generate, rows, state_of
from test_logits_ready import EXAMPLES

from tandem.logits import BaseLogitsProcessor, Row, TokenHistory
from tandem.logits.registry import Registry
from tandem.logits.spec import LogitsProcessorEntry, write_entries
from tandem_sglang.requests import SPEC_KEY
from tandem_sglang.rows import RowEditor, Verdicts

_OF_A_TENSOR = (
    "item",
    "tolist",
    "cpu",
    "numpy",
    "nonzero",
    "unique",
    "equal",
    "allclose",
    "masked_select",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "__contains__",
    "__array__",
)
WAITS = {getattr(torch.Tensor, name) for name in _OF_A_TENSOR}
WAITS |= {torch.nonzero, torch.equal, torch.allclose, torch.masked_select, torch.unique}


class OnDevice(torch.Tensor):
    """As a tensor on a GPU: what its host would wait for raises."""

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        waits = func in WAITS or (func is torch.Tensor.__getitem__ and _is_mask(args[1]))
        assert not waits, f"the host waits in {func}"
        return super().__torch_function__(func, types, args, kwargs or {})


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype == torch.bool


class Spoils(BaseLogitsProcessor):
    def __init__(self, value: float | None = None) -> None:
        self._value = value

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        if self._value is None:
            raise KeyError("secret")
        logits[:] = self._value


SPOILED: dict[str, dict[str, float | None]] = {
    "nan": {"value": math.nan},
    "infinite": {"value": math.inf},
    "all": {"value": -math.inf},
    "raise": {},
}


def registry() -> Registry:
    made = Registry.builtin()
    made.register("spoils", Spoils)
    return made


class Request(SimpleNamespace):
    """What of SGLang's is read; it can be referred to weakly."""


def request(name: str, args: dict[str, Any], generated: Sequence[int] = ()) -> Request:
    made = Request(
        kv=SimpleNamespace(kv_committed_len=3 + len(generated)),
        sampling_params=SimpleNamespace(custom_params=None),
        origin_input_ids=array("q", (5, 6, 7)),
        output_ids=array("q", generated),
        to_finish=None,
        finished=lambda: False,
    )
    entry = LogitsProcessorEntry(name, args)
    made.params = {SPEC_KEY: write_entries((entry,)), "__req__": made}
    return made


def errors_of(verdicts: Verdicts | None) -> dict[int, str]:
    """As where a step's tokens are taken in, by the number of the request."""
    found: dict[int, str] = {}
    if verdicts is not None:
        copied = replace(verdicts, codes=verdicts.codes.as_subclass(torch.Tensor))
        copied.tell(lambda req, error: found.update({req.number: error.message}))
    return found


@pytest.mark.promise("S5-392")
@pytest.mark.parametrize("name", EXAMPLES)
def test_no_kind_makes_the_host_wait_in_a_step_and_no_bad_row_does(name: str) -> None:
    generated = generate(state_of((name, EXAMPLES[name])), "torch")
    good = [request(name, EXAMPLES[name], generated[:count]) for count in (0, 1, 2)]
    bad = [request("spoils", args) for args in SPOILED.values()]
    idle = request(name, EXAMPLES[name])
    idle.to_finish = "ended"  # it has no part in the step, so rows are gathered
    asked = [good[0], *bad, idle, *good[1:]]
    for number, each in enumerate(asked):
        each.number = number
    before = rows("torch", len(asked))
    batch = before.clone().as_subclass(OnDevice)
    verdicts = RowEditor(registry(), MODEL).edit(batch, [each.params for each in asked])
    found = batch.as_subclass(torch.Tensor)
    spoiled = range(1, 1 + len(bad))
    assert (found[list(spoiled)] == 0).all()
    assert torch.equal(found[len(bad) + 1], before[len(bad) + 1])
    for place in (0, *range(len(bad) + 2, len(asked))):
        assert found[place].max().isfinite()
        assert found[place].any()
    errors = errors_of(verdicts)
    assert list(errors) == list(spoiled)
    assert [error.split("'")[2].split(":")[0] for error in errors.values()] == [
        " left no token to sample",
        " left no token to sample",
        " left no token to sample",
        " raised KeyError",
    ]


@pytest.mark.promise("S5-392")
def test_what_another_rank_found_ends_a_request_here_too() -> None:
    """In a step in which nothing can have failed here."""

    def found_elsewhere(codes: Any) -> None:
        theirs = torch.tensor([0, 2, 1], dtype=torch.int32)
        codes.copy_(torch.maximum(codes.as_subclass(torch.Tensor), theirs))

    asked = [request("forced_sequence", {"token_ids": [9] * 9}) for _ in range(3)]
    for number, each in enumerate(asked):
        each.number = number
    batch = rows("torch", 3).as_subclass(OnDevice)
    editor = RowEditor(registry(), MODEL, found_elsewhere)
    verdicts = editor.edit(batch, [each.params for each in asked])
    found = batch.as_subclass(torch.Tensor)
    assert found[0].argmax() == 9
    assert (found[1:] == 0).all()
    errors = errors_of(verdicts)
    assert errors == {
        1: "logits processor 'forced_sequence' failed on another rank of its engine, whose log "
        "says how",
        2: "logits processor 'forced_sequence' left no token to sample: the row's maximum is not "
        "finite",
    }


def test_a_request_that_ended_meanwhile_is_not_ended_again() -> None:
    asked = request("spoils", {})
    asked.number = 0
    batch = rows("torch", 1)
    verdicts = RowEditor(registry(), MODEL).edit(batch, [asked.params])
    assert not batch.any()
    asked.finished = lambda: True
    assert errors_of(verdicts) == {}
