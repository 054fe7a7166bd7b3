"""Named callbacks are logits processors: called as TensorRT-LLM calls them, limited and failed as
processors are.
"""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from logits_bench import EOS, MODEL, Library, plain, rows

from tandem.errors import InvalidRequestError, LoadError, ProcessorError
from tandem.logits import TokenHistory, arrays
from tandem.logits.callbacks import Batched, Single, batched_callback, callback
from tandem.logits.processor import EVERYTHING
from tandem.logits.registry import Registry
from tandem.logits.rows import apply_rows
from tandem.logits.spec import LogitsProcessorEntry, LogitsProcessorSpec
from tandem.logits.state import RequestLogits
from tandem_sglang import options
from tandem_sglang.processors import Processors

PAST = TokenHistory([5, 6, 7], [8, 9])
Calls = list[Any]


@callback
def found_by_path(
    req_id: int, logits: Any, token_ids: Any, stream_ptr: int | None, client_id: int | None
) -> None:
    """Forces the request's own number."""
    logits[:] = -math.inf
    logits[..., req_id] = 0.0


def not_decorated(*_: Any) -> None: ...


class Caller:
    def __call__(self, *_: Any) -> None: ...


def single(calls: Calls) -> Single:
    def force(
        req_id: int, logits: Any, token_ids: Any, stream_ptr: int | None, client_id: int | None
    ) -> None:
        calls.append((req_id, tuple(logits.shape), token_ids, stream_ptr, client_id))
        logits[:] = -math.inf
        logits[..., 100 + req_id] = 0.0

    return force


def batched(calls: Calls, guilty: int | None = None) -> Batched:
    def force(
        req_ids: list[int],
        logits: list[Any],
        token_ids: list[list[list[int]]],
        stream_ptr: int | None,
        client_ids: list[int | None],
    ) -> None:
        calls.append((req_ids, token_ids, stream_ptr, client_ids))
        for number, row in zip(req_ids, logits, strict=True):
            assert row.shape == (1, 1, MODEL.vocabulary)
            row[:] = -math.inf
            row[..., 200 + number] = 0.0
            if number == guilty:
                raise KeyError("secret")

    return force


def registry_of(**made: Any) -> Registry:
    registry = Registry.builtin()
    for name, cls in made.items():
        registry.register(name, cls)
    return registry


def state(registry: Registry, name: str, **args: Any) -> RequestLogits:
    spec = LogitsProcessorSpec((LogitsProcessorEntry(name, args),))
    registry.check(spec, available=EVERYTHING, model=MODEL)
    return RequestLogits.create(registry, spec, MODEL)


@pytest.mark.promise("S2-071")
def test_a_callback_edits_the_rows_of_the_requests_that_name_it_and_no_other(
    library: Library,
) -> None:
    calls: Calls = []
    registry = registry_of(mine=callback(single(calls)))
    states = [
        state(registry, "mine", request_id=3, client_id=70),
        state(registry, "bias", bias={"4": 1.0}),
        state(registry, "mine", request_id=5),
    ]
    batch = rows(library, 3)
    expected = plain(batch)[1]
    expected[4] += 1.0
    assert apply_rows(states, [PAST, PAST, PAST], batch) == [None] * 3
    assert (int(batch[0].argmax()), int(batch[2].argmax())) == (103, 105)
    assert plain(batch)[1].tobytes() == expected.tobytes()
    shape = (1, 1, MODEL.vocabulary)
    tokens, stream = [[5, 6, 7, 8, 9]], arrays.stream_of(batch)
    assert (stream is None) is (library != "cuda")
    assert calls == [(3, shape, tokens, stream, 70), (5, shape, tokens, stream, None)]


class Four:
    """Each form in which a function of four arguments may come; they note their arguments."""

    def __init__(self) -> None:
        self.calls: Calls = []

    def __call__(self, req_id: Any, logits: Any, token_ids: Any, stream_ptr: Any) -> None:
        self.calls.append((req_id, token_ids, stream_ptr))

    def method(self, req_id: Any, logits: Any, token_ids: Any, stream_ptr: Any) -> None:
        self(req_id, logits, token_ids, stream_ptr)

    def forms(self) -> dict[str, Any]:
        @functools.wraps(self.method)
        def wrapped(*given: Any) -> None:
            self(*given)

        def keyword(a: Any, b: Any, c: Any, d: Any, *, client_id: Any = None) -> None:
            self(a, b, c, d)

        @functools.wraps(keyword)
        def narrower(a: Any, b: Any, c: Any, d: Any) -> None:
            self(a, b, c, d)

        partial = functools.partial(lambda _, *given: self(*given), None)
        return {
            "object": self,
            "method": self.method,
            "wrapped": wrapped,
            "keyword": keyword,
            "narrower": narrower,
            "lambda": lambda a, b, c, d: self(a, b, c, d),
            "partial": functools.partial(lambda _, a, b, c, d: self(a, b, c, d), None),
            "of any": lambda *given: self(*given[:4]),
            "of any, in part": functools.partial(lambda _, *given: self(*given[:4]), partial),
        }


@pytest.mark.promise("S2-085")
@pytest.mark.parametrize("kind", Four().forms())
def test_a_callback_of_four_arguments_is_called_without_the_clients_id(kind: str) -> None:
    """The form of the Executor API's page; Python's bindings have the client's id, too."""
    four, together = Four(), Four()
    registry = registry_of(
        mine=callback(four.forms()[kind]), ours=batched_callback(together.forms()[kind])
    )
    states = [
        state(registry, name, request_id=n, client_id=7) for n, name in enumerate(["mine", "ours"])
    ]
    batch = rows("numpy", 2)
    assert apply_rows(states, [PAST, PAST], batch) == [None, None]
    tokens = [[5, 6, 7, 8, 9]]
    assert four.calls == [(0, tokens, None)]
    assert together.calls == [([1], [tokens], None)]


class _Three:
    def __call__(self, a: Any, b: Any, c: Any) -> None: ...

    def method(self, a: Any, b: Any, c: Any) -> None: ...

    async def late(self, a: Any, b: Any, c: Any, d: Any, e: Any) -> None: ...


class _Late:
    async def __call__(self, *_: Any) -> None: ...


@functools.wraps(_Three().method)
def _wraps_three(*_: Any) -> None: ...


def _asks_for_more(a: Any, b: Any, c: Any, d: Any, *, bias: Any) -> None: ...


WRONG: dict[str, tuple[Any, str]] = {
    "<lambda>": (lambda a, b, c: None, r"takes \(a, b, c\): it must"),
    "method": (_Three().method, "takes .*: it must"),
    "_Three": (_Three(), "takes .*: it must"),
    "partial": (functools.partial(lambda a, b, c, d: None, 1), "takes .*: it must"),
    "six": (lambda a, b, c, d, e, f: None, "takes .*: it must"),
    "_asks_for_more": (_asks_for_more, "takes .*bias.*: it must"),
    "wraps": (_wraps_three, "takes .*: it must"),
    "Caller": (Caller, "is a class: give an object"),
    "late": (_Three().late, "is async"),
    "_Late": (_Late(), "is async"),
    "text": ("mine", "'mine' is no callback"),
}


@pytest.mark.promise("S2-086")
@pytest.mark.parametrize("kind", WRONG)
def test_a_function_of_another_form_is_refused_where_it_becomes_a_callback(kind: str) -> None:
    wrong, words = WRONG[kind]
    for made, last in ((callback, "client_id"), (batched_callback, "client_ids")):
        with pytest.raises(LoadError, match=words) as refusal:
            made(wrong)
        if "it must" in words:
            assert "stream_ptr) or (" in str(refusal.value)
            assert str(refusal.value).endswith(f", stream_ptr, {last})")


def test_a_function_that_tells_no_signature_is_given_all_arguments() -> None:
    given: Calls = []
    function = type(
        "Unknown", (), {"__signature__": 3, "__call__": lambda _, *all: given.extend(all)}
    )
    registry = registry_of(mine=callback(function()))
    assert (
        state(registry, "mine", request_id=1, client_id=2).apply(PAST, rows("numpy", 1)[0]) is None
    )
    assert (given[0], given[-1], len(given)) == (1, 2, 5)


def test_a_callback_may_return_other_logits_of_its_shape(library: Library) -> None:
    registry = registry_of(
        doubled=callback(lambda _id, logits, *_rest: logits * 2),
        short=callback(lambda _id, logits, *_rest: logits[..., :1]),
    )
    batch = rows(library, 2)
    before = plain(batch)
    states = [state(registry, name, request_id=1) for name in ("doubled", "short")]
    errors = apply_rows(states, [PAST, PAST], batch)
    assert errors[0] is None
    assert plain(batch)[0].tobytes() == (before[0] * 2).tobytes()
    assert isinstance(errors[1], ProcessorError)
    assert "raised ValueError" in errors[1].message


@pytest.mark.promise("S2-072")
def test_an_unknown_callback_is_a_typed_error() -> None:
    with pytest.raises(InvalidRequestError, match="unknown logits processor 'nobody'") as refusal:
        state(registry_of(), "nobody", request_id=1)
    assert refusal.value.param == "logits_processors[0]"
    with pytest.raises(InvalidRequestError, match="missing a required argument: 'request_id'"):
        state(registry_of(mine=callback(single([]))), "mine")


@pytest.mark.promise("S2-073")
@pytest.mark.parametrize("beside", [False, True], ids=["whole batch", "part of it"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_batched_callback_is_called_once_a_step_with_parallel_lists(
    library: Library, count: int, beside: bool
) -> None:
    calls: Calls = []
    registry = registry_of(ours=batched_callback(batched(calls)))
    states = [state(registry, "ours", request_id=n, client_id=70 + n) for n in range(count)]
    states += [state(registry, "max_new_tokens", count=0)] * beside
    pasts = [TokenHistory([5], [n]) for n in range(len(states))]
    batch = rows(library, len(states))
    assert apply_rows(states, pasts, batch) == [None] * len(states)
    numbers = list(range(count))
    clients = [70 + n for n in numbers]
    assert calls == [(numbers, [[[5, n]] for n in numbers], arrays.stream_of(batch), clients)]
    wanted = [200 + n for n in numbers] + [EOS] * beside
    assert [int(row.argmax()) for row in batch] == wanted


def test_a_decorated_function_travels_by_its_import_path() -> None:
    registry = registry_of(mine=found_by_path)
    content = json.loads(json.dumps(registry.portable()))
    assert content["processors"]["mine"][0] == f"{__name__}:found_by_path"
    rebuilt = Registry.from_portable(content)
    row = rows("torch", 1)[0]
    assert state(rebuilt, "mine", request_id=9).apply(PAST, row) is None
    assert int(row.argmax()) == 9


@pytest.mark.parametrize(
    "live",
    [lambda *_: None, not_decorated, single([]), Caller(), functools.partial(print), print],
    ids=["lambda", "not decorated", "closure", "object", "partial", "built in"],
)
def test_a_live_callback_is_refused_by_an_engine_with_another_process(
    model_path: Path, live: Any
) -> None:
    registry = registry_of(mine=callback(live))
    with pytest.raises(LoadError, match=r"'mine': another process cannot import .*@callback"):
        Processors(registry, options.parse({}), MODEL)


@pytest.mark.promise("S2-075")
def test_callbacks_of_each_form_get_the_stream_of_the_very_rows_that_they_edit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What they put on it comes before the sampling that is put there next."""
    batch, calls = rows("torch", 2), list[Any]()
    monkeypatch.setattr(arrays, "stream_of", lambda rows: (rows.data_ptr(), "a stream"))
    forms = {
        "four": callback(lambda a, b, c, stream: calls.append((b.data_ptr(), stream))),
        "five": callback(lambda a, b, c, stream, e: calls.append((b.data_ptr(), stream))),
        "all": batched_callback(lambda a, b, c, stream: calls.append((b[0].data_ptr(), stream))),
        "all5": batched_callback(
            lambda a, b, c, stream, e: calls.append((b[0].data_ptr(), stream))
        ),
    }
    registry = registry_of(**forms)
    for name in forms:
        states = [state(registry, name, request_id=n) for n in range(2)]
        assert apply_rows(states, [PAST, PAST], batch) == [None, None]
    assert len(calls) == 6
    assert all(stream == (address, "a stream") for address, stream in calls)


@pytest.mark.promise("S2-075")
def test_a_callback_is_given_the_stream_that_its_rows_are_computed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = {"cuda:1": SimpleNamespace(cuda_stream=4711)}
    monkeypatch.setattr(torch.cuda, "current_stream", streams.__getitem__)
    assert arrays.stream_of(SimpleNamespace(is_cuda=True, device="cuda:1")) == 4711
    assert arrays.stream_of(rows("torch", 1)) is None
    assert arrays.stream_of(rows("numpy", 1)) is None
