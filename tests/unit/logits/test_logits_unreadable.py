"""Whatever SGLang's own objects raise where they are read ends the request that they belong to."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_logits_positions import MODEL, REGISTRY, VOCABULARY, Request, request

from tandem_sglang.rows import RowEditor


class Unreadable(Request):
    """A request of an SGLang whose attributes are called otherwise."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("kv", "finished_reason"):
            raise AttributeError("no such thing in this release")
        return super().__getattribute__(name)


def run(*params: dict[str, Any], step: tuple[Any, ...] = ()) -> tuple[torch.Tensor, dict[str, str]]:
    """The rows of a step after the processors, and how requests ended that failed."""
    logits = torch.zeros(len(params), VOCABULARY)
    verdicts = RowEditor(REGISTRY, MODEL).edit(logits, params)
    failed: dict[str, str] = {}
    if verdicts is not None:
        verdicts.tell(lambda req, error: failed.update({req.name: error.message}), step)
    return logits, failed


def sound() -> Any:
    return request("history", 3, [1, 2], [])


def at_prompts_end(req: Any) -> Any:
    req.kv.kv_committed_len = len(req.origin_input_ids)
    return req


@pytest.mark.promise("S5-680")
def test_a_request_that_cannot_be_read_ends_alone() -> None:
    good, bad = at_prompts_end(sound()), sound()
    bad.name = "bad"
    unreadable = Unreadable(**vars(bad))
    bad.params["__req__"] = unreadable
    logits, failed = run(bad.params, good.params)
    assert failed.keys() == {"bad"}
    assert "no such thing in this release" in failed["bad"]
    assert not logits[0].any(), "its row is safe to sample"
    assert logits[1].max() == 1, "the other's was edited"


@pytest.mark.promise("S5-680")
def test_a_reference_that_is_weak_already_is_no_error() -> None:
    req = at_prompts_end(sound())
    req.params["__req__"] = weakref.proxy(req)
    logits, failed = run(req.params)
    assert failed == {}
    assert logits[0].max() == 1


@pytest.mark.promise("S5-680")
def test_a_strong_reference_is_made_weak() -> None:
    req = at_prompts_end(sound())
    run(req.params)
    assert type(req.params["__req__"]) is weakref.ProxyType


@pytest.mark.promise("S5-680")
def test_a_row_that_names_no_request_ends_that_of_its_step() -> None:
    good, lost = at_prompts_end(sound()), sound()
    lost.name = "lost"
    lost.sampling_params = SimpleNamespace(custom_params=lost.params)
    del lost.params["__req__"]
    _, failed = run(good.params, lost.params, step=(good, lost))
    assert failed.keys() == {"lost"}


@pytest.mark.promise("S5-680")
def test_a_request_that_is_gone_costs_no_other() -> None:
    gone, bad = at_prompts_end(sound()), sound()
    bad.name = "bad"
    bad.kv = None
    gone.params["__req__"] = weakref.proxy(Request(name="gone"))
    _, failed = run(gone.params, bad.params)
    assert failed.keys() == {"bad"}
