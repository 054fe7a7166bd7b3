"""Which processors a worker knows, and what it answers to requests that name them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from one_case import one_case

from tandem.errors import (
    InvalidRequestError,
    LoadError,
    ProcessorError,
    StartError,
    UnsupportedError,
)
from tandem.logits import Model, Need, Row, TokenHistory
from tandem.logits.processor import EVERYTHING, needs_of
from tandem.logits.ready import READY
from tandem.logits.ready.forced import ForcedSequence
from tandem.logits.registry import Registry
from tandem.logits.settings import parse
from tandem.logits.spec import (
    FORCED_SEQUENCE,
    LogitsProcessorEntry,
    LogitsProcessorSpec,
    PythonProcessorSpec,
    forced_token_sequence,
)
from tandem.v1 import common_pb2

MODEL = Model(vocabulary=50, eos_token_ids=[2])
MODULE = """
import math
from tandem.logits import Need

class Ban:
    needs = frozenset({Need.VOCABULARY})

    def __init__(self, token_id: int, strength: float = math.inf) -> None:
        self.token_id = token_id
        self.strength = strength

    def __call__(self, input_ids, logits):
        logits[self.token_id] -= self.strength

class Newer(Ban):
    interface_version = 2

class NoCall:
    pass

class TakesAnObject(Ban):
    def __init__(self, tokens: "Ban") -> None: ...

class TakesAnything(Ban):
    def __init__(self, **kwargs) -> None: ...

class StrangeNeed(Ban):
    needs = frozenset({"position"})

def a_function(input_ids, logits): ...
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An importable module of a deployment's own processors."""
    (tmp_path / "own_processors.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "broken_module.py").write_text("1 / 0\n", encoding="utf-8")
    (tmp_path / "needs_more.py").write_text("import not_installed_at_all\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("own_processors", "broken_module", "needs_more"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "own_processors"


class Undeclared:
    def __call__(self, input_ids: TokenHistory, logits: Row) -> None: ...


class BreaksWhenBuilt(Undeclared):
    def __init__(self) -> None:
        raise RuntimeError("no model file")


class Typed(Undeclared):
    needs: ClassVar[frozenset[Need]] = frozenset({Need.HISTORY})

    def __init__(self, words: Sequence[str], limit: int = 3) -> None:
        if limit < 1:
            raise ValueError("limit must be at least 1")
        self.words, self.limit = words, limit


def entry(name: str, **args: object) -> LogitsProcessorEntry:
    return LogitsProcessorEntry(name, args)


@pytest.mark.promise("S1-054")
def test_a_processor_named_by_import_path_is_loaded_and_built(module: str) -> None:
    registry = Registry.builtin()
    registry.load("ban", f"{module}:Ban")
    built: Any = registry.create(entry("ban", token_id=7), MODEL)
    assert (type(built).__name__, built.token_id) == ("Ban", 7)
    assert registry.names() == tuple(sorted(("ban", *READY)))


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("own_processors", "is not an import path"),
        ("no_such_module_here:Ban", "no_such_module_here"),
        ("needs_more:Ban", "not_installed_at_all"),
        ("broken_module:Ban", "ZeroDivisionError"),
        ("own_processors:Missing", "has no 'Missing'"),
        ("own_processors:a_function", "is not a class"),
        ("own_processors:NoCall", "no __call__"),
        ("own_processors:TakesAnObject", "'tokens'"),
        ("own_processors:TakesAnything", "must name every argument"),
        ("own_processors:StrangeNeed", "no Need"),
    ],
)
def test_what_cannot_be_loaded_is_refused_at_start_with_its_own_message(
    module: str, path: str, says: str
) -> None:
    with pytest.raises(LoadError) as refusal:
        Registry().load("ban", path)
    assert says in str(refusal.value)


@pytest.mark.promise("S1-055")
def test_a_class_written_for_another_interface_version_is_refused_at_load(module: str) -> None:
    with pytest.raises(LoadError, match="interface version 2; this worker has version 1"):
        Registry().load("newer", f"{module}:Newer")


def test_a_name_is_taken_once_and_has_the_form_of_an_identifier() -> None:
    registry = Registry.builtin()
    registry.register(FORCED_SEQUENCE, ForcedSequence)
    with pytest.raises(LoadError, match="already"):
        registry.register(FORCED_SEQUENCE, Undeclared)
    with pytest.raises(LoadError, match="cannot name"):
        registry.register("Not A Name", Undeclared)


@one_case(
    ("wrong", "says"),
    [
        (entry("unknown"), "unknown logits processor 'unknown'"),
        (entry("typed"), "missing a required argument: 'words'; it takes words (required), limit"),
        (entry(FORCED_SEQUENCE), "give either token_ids or text"),
        (entry(FORCED_SEQUENCE, token_ids=[1], eos_token_id=2, extra=1), "'extra'"),
        (entry(FORCED_SEQUENCE, token_ids="abc", eos_token_id=2), "argument 'token_ids'"),
        (entry(FORCED_SEQUENCE, token_ids=[1, "2"], eos_token_id=2), "argument 'token_ids'"),
        (entry(FORCED_SEQUENCE, token_ids=[1.5], eos_token_id=2), "argument 'token_ids'"),
        (entry(FORCED_SEQUENCE, token_ids=[True], eos_token_id=2), "argument 'token_ids'"),
        (entry(FORCED_SEQUENCE, token_ids=[1], eos_token_id="2"), "argument 'eos_token_id'"),
        (entry(FORCED_SEQUENCE, token_ids=[-1], eos_token_id=2), "Expected `int` >= 0 - at `$[0]`"),
        (entry(FORCED_SEQUENCE, token_ids=[99], eos_token_id=2), "99 is outside the vocabulary"),
        (entry("typed", words=["a"], limit=0), "limit must be at least 1"),
        (entry("typed", words=["a", 3]), "argument 'words'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_at_admission_naming_processor_and_argument(
    wrong: LogitsProcessorEntry, says: str
) -> None:
    registry = Registry.builtin()
    registry.register("typed", Typed)
    with pytest.raises(InvalidRequestError) as refusal:
        registry.check(LogitsProcessorSpec((wrong,)), available=EVERYTHING, model=MODEL)
    assert says in refusal.value.message
    assert wrong.name in refusal.value.message
    assert refusal.value.param == "logits_processors[0]"


def test_good_arguments_pass_admission() -> None:
    registry = Registry.builtin()
    registry.register("typed", Typed)
    spec = LogitsProcessorSpec(
        (forced_token_sequence([49], 2), entry("typed", words=["a"], limit=1))
    )
    registry.check(spec, available=EVERYTHING, model=MODEL)


def test_a_constructor_that_breaks_ends_the_request_and_hides_its_text() -> None:
    registry = Registry()
    registry.register("breaks", BreaksWhenBuilt)
    with pytest.raises(ProcessorError, match="RuntimeError") as failure:
        registry.create(entry("breaks"), MODEL)
    assert "no model file" not in failure.value.message


@pytest.mark.promise("S3-092")
@pytest.mark.parametrize("cls", [Typed, Undeclared])
def test_a_processor_that_needs_history_is_refused_where_the_engine_gives_none(
    cls: type[Undeclared],
) -> None:
    registry = Registry()
    registry.register("reader", cls)
    spec = LogitsProcessorSpec((entry("reader", **({"words": []} if cls is Typed else {})),))
    with pytest.raises(UnsupportedError, match="'reader' needs history"):
        registry.check(spec, available={Need.POSITION, Need.VOCABULARY}, model=MODEL)
    registry.check(spec, available=EVERYTHING, model=MODEL)


def test_a_processor_that_declares_nothing_is_taken_to_need_everything() -> None:
    assert needs_of(Undeclared()) == EVERYTHING
    assert needs_of(ForcedSequence) == {Need.POSITION, Need.VOCABULARY}


def test_another_process_builds_the_same_registry_from_json(module: str) -> None:
    registry = Registry.from_settings(
        parse({"ban": {"use": f"{module}:Ban", "args": {"strength": 2.0}}}), seconds=0.5, most=3
    )
    content = json.loads(json.dumps(registry.portable()))
    assert registry.import_paths()["ban"] == f"{module}:Ban"
    rebuilt = Registry.from_portable(content)
    assert (rebuilt.names(), rebuilt.seconds, rebuilt.most) == (registry.names(), 0.5, 3)
    built: Any = rebuilt.create(entry("ban", token_id=1), MODEL)
    assert (type(built).__name__, built.strength) == ("Ban", 2.0)


def test_a_class_that_another_process_cannot_import_is_refused_by_import_paths() -> None:
    class Local(Undeclared): ...

    registry = Registry()
    registry.register("local", Local)
    with pytest.raises(StartError, match="top of a module"):
        registry.portable()


@pytest.mark.promise("S1-048")
def test_entries_survive_the_wire_unchanged() -> None:
    spec = LogitsProcessorSpec(
        (
            forced_token_sequence([1, 2, 3], 4),
            entry("own", text="ünïcode ☃", nested={"a": [1, 2.5, None, True]}),
        ),
        generation_only=True,
    )
    wire = spec.to_proto().SerializeToString()
    received = LogitsProcessorSpec.from_proto(common_pb2.LogitsSpec.FromString(wire))
    assert received == spec
    assert all(each.from_client for each in received.named())


@pytest.mark.promise("S1-049")
def test_a_live_callable_runs_in_this_process_and_is_refused_by_serialisation() -> None:
    live = PythonProcessorSpec(Undeclared)
    assert isinstance(Registry().create(live, MODEL), Undeclared)
    with pytest.raises(UnsupportedError, match="live Python object"):
        LogitsProcessorSpec((live,)).to_proto()


@pytest.mark.promise("S3-094", "S6-144")
def test_arguments_that_are_no_json_object_are_refused_and_code_is_only_a_name() -> None:
    message = common_pb2.LogitsSpec(
        processors=[common_pb2.LogitsProcessor(name="os:system", args_json='"rm"')]
    )
    with pytest.raises(ValueError, match="JSON object"):
        LogitsProcessorSpec.from_proto(message)
    for path in ("os:system", f"{__name__}:{Undeclared.__name__}"):
        with pytest.raises(InvalidRequestError, match=f"unknown logits processor '{path}'"):
            Registry.builtin().create(entry(path), MODEL)
