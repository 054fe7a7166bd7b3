"""What a deployment's configuration makes of logits processors, and what it leaves to clients."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tandem.engine.base import EngineDescription
from tandem.errors import ConfigError, InvalidRequestError, LoadError, UnsupportedError
from tandem.logits import Model
from tandem.logits.processor import EVERYTHING
from tandem.logits.ready import READY
from tandem.logits.registry import Registry
from tandem.logits.settings import parse
from tandem.logits.spec import LogitsProcessorEntry, LogitsProcessorSpec
from tandem.text.tokenizer import Tokenizer
from tandem.usercode import loader
from tandem.usercode.deadline import WATCH, Watch
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker.config import WorkerConfig
from tandem.worker.startup import forced_entries, load_registry

MODEL = Model(vocabulary=50, eos_token_ids=[2])
MODULE = """
from tandem.logits import BaseLogitsProcessor


class Style(BaseLogitsProcessor):
    def __init__(self, strength: float, words: list[str] = []) -> None:
        self.strength, self.words = strength, words

    def __call__(self, input_ids, logits):
        logits[3] += self.strength


class Unfinished(BaseLogitsProcessor):
    pass
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution that declares an entry point."""
    (tmp_path / "their_processors.py").write_text(MODULE, encoding="utf-8")
    folder = tmp_path / "theirs-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[tandem.logits_processors]\nstyle = their_processors:Style\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("their_processors", None)


def from_client(*given: tuple[str, dict[str, Any]]) -> LogitsProcessorSpec:
    """As it arrives over the wire."""
    sent = LogitsProcessorSpec(tuple(LogitsProcessorEntry(name, args) for name, args in given))
    received = LogitsProcessorSpec.from_proto(
        common_pb2.LogitsSpec.FromString(sent.to_proto().SerializeToString())
    )
    assert received is not None
    return received


def check(registry: Registry, spec: LogitsProcessorSpec) -> tuple[Any, ...]:
    return registry.check(spec, available=EVERYTHING, model=MODEL)


@pytest.mark.promise("S1-054")
def test_an_installed_entry_point_is_loaded_by_its_name(installed: None) -> None:
    registry = Registry.from_settings(parse({"style": {"args": {"strength": 2.0}}}))
    (built,) = check(registry, from_client(("style", {})))
    assert (type(built).__module__, built.strength) == ("their_processors", 2.0)
    renamed = Registry.from_settings(parse({"house": "style"}))
    (built,) = check(renamed, from_client(("house", {"strength": 1.5})))
    assert built.strength == 1.5


def test_an_entry_point_that_nobody_named_is_not_offered(installed: None) -> None:
    assert "style" not in Registry.builtin().names()


def test_a_word_that_means_nothing_is_refused_with_all_that_would(installed: None) -> None:
    with pytest.raises(LoadError) as refusal:
        Registry.from_settings(parse({"mine": "stile"}))
    for part in ("'mine'", "'stile'", "forced_sequence", "entry point", "there is style"):
        assert part in str(refusal.value)


def test_two_distributions_with_one_name_are_refused(
    installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [
        metadata.EntryPoint("style", f"{module}:Style", "tandem.logits_processors")
        for module in ("one", "two")
    ]
    monkeypatch.setattr(loader, "entry_points", lambda _: points)
    with pytest.raises(LoadError, match="several installed packages"):
        Registry.from_settings(parse({"style": {}}))


def test_a_class_that_lacks_its_call_is_refused(installed: None) -> None:
    with pytest.raises(LoadError, match="has no __call__"):
        Registry.from_settings(parse({"mine": "their_processors:Unfinished"}))


def test_default_arguments_lie_under_those_of_a_request(installed: None) -> None:
    registry = Registry.from_settings(parse({"style": {"args": {"strength": 2.0, "words": ["a"]}}}))
    plain, own = check(registry, from_client(("style", {}), ("style", {"strength": 5})))
    assert (plain.strength, plain.words) == (2.0, ["a"])
    assert (own.strength, own.words) == (5.0, ["a"])


@pytest.mark.parametrize(
    ("args", "says"),
    [({"strenght": 1.0}, "no argument 'strenght'"), ({"strength": "x"}, "argument 'strength'")],
)
def test_default_arguments_that_do_not_fit_are_refused_at_start(
    installed: None, args: dict[str, Any], says: str
) -> None:
    with pytest.raises(LoadError, match=says):
        Registry.from_settings(parse({"style": {"args": args}}))


def test_a_ready_made_processor_can_be_given_defaults_and_closed_to_clients() -> None:
    registry = Registry.from_settings(
        parse({"watermark": {"args": {"key": "k"}, "clients": "none", "always": True}})
    )
    with pytest.raises(UnsupportedError, match="'watermark' is not for requests to name"):
        check(registry, from_client(("watermark", {})))
    assert set(registry.names()) - set(registry.offered()) == {"watermark"}
    assert registry.always() == (LogitsProcessorEntry("watermark"),)
    assert len(check(registry, LogitsProcessorSpec(registry.always()))) == 1


def test_a_deployment_may_give_a_ready_made_name_to_a_class_of_its_own(installed: None) -> None:
    registry = Registry.from_settings(parse({"bias": "their_processors:Style"}))
    assert registry.import_paths()["bias"] == "their_processors:Style"
    with pytest.raises(LoadError, match="registered already"):
        registry.load("bias", READY["bias"])


@pytest.mark.parametrize(
    ("args", "says"),
    [({}, "missing a required argument: 'count'"), ({"count": 3}, "no end-of-sequence token")],
)
def test_what_is_always_applied_and_cannot_be_built_is_refused_at_start(
    args: dict[str, Any], says: str
) -> None:
    registry = Registry.from_settings(parse({"max_new_tokens": {"args": args, "always": True}}))
    with pytest.raises(LoadError, match=says):
        registry.check_always(Model(vocabulary=50))


def test_clients_that_may_select_cannot_parametrise() -> None:
    registry = Registry.from_settings(
        parse({"max_new_tokens": {"args": {"count": 5}, "clients": "select"}})
    )
    assert len(check(registry, from_client(("max_new_tokens", {})))) == 1
    with pytest.raises(UnsupportedError, match="takes no arguments from requests"):
        check(registry, from_client(("max_new_tokens", {"count": 500})))


def test_more_processors_than_allowed_are_refused_but_the_deployments_own_do_not_count() -> None:
    registry = Registry.from_settings({}, most=2)
    wanted = ("banned_tokens", {"token_ids": [3]})
    check(registry, from_client(wanted, wanted))
    with pytest.raises(InvalidRequestError, match=r"3 logits processors: .* at most 2"):
        check(registry, from_client(wanted, wanted, wanted))
    check(registry, LogitsProcessorSpec((LogitsProcessorEntry(*wanted),) * 5))


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"a": 3}, "logits_processors.a: Expected `object`, got `int`"),
        ({"a": {"arg": {}}}, "a: Object contains unknown field `arg`; did you mean args?"),
        ({"a": {"use": 3}}, "logits_processors.a.use: Expected `str`"),
        ({"a": {"args": [1]}}, "logits_processors.a.args: Expected `object`"),
        ({"a": {"clients": "all"}}, "logits_processors.a.clients: Invalid enum value"),
        ({"a": {"always": "yes"}}, "logits_processors.a.always: Expected `bool`"),
    ],
)
def test_malformed_settings_are_refused_naming_processor_and_field(
    raw: dict[str, Any], says: str, model_path: Path
) -> None:
    with pytest.raises(ConfigError) as refusal:
        WorkerConfig(model_path=model_path, logits_processors=raw)
    assert says in str(refusal.value)


@pytest.fixture
def installed_watches(monkeypatch: pytest.MonkeyPatch) -> list[Watch]:
    """Those whose interrupts were switched on; here they stay off, for the sake of pytest's own."""
    watches: list[Watch] = []
    monkeypatch.setattr(Watch, "install", lambda watch: watches.append(watch))
    return watches


def test_a_workers_settings_reach_its_registry(
    model_path: Path, installed_watches: list[Watch]
) -> None:
    config = WorkerConfig(
        model_path=model_path,
        logits_processors={"brief": {"use": "max_new_tokens", "args": {"count": 3}}},
        max_logits_processors=1,
        logits_timeout_ms=250.0,
    )
    registry = load_registry(config)
    assert registry.names() == tuple(sorted(("brief", *READY)))
    assert (registry.most, registry.seconds) == (1, 0.25)
    assert installed_watches == [WATCH]  # calls of its own code can be interrupted


def test_what_is_always_applied_comes_before_the_test_switch(
    model_path: Path, installed_watches: list[Watch]
) -> None:
    config = WorkerConfig(
        model_path=model_path,
        logits_processors={"bias": {"args": {"bias": {3: 1.0}}, "always": True}},
        test_logits_processor=True,
    )
    engine = EngineDescription(
        fingerprint=common_pb2.Fingerprint(),
        limits=worker_pb2.Limits(),
        eos_token_ids=frozenset({1}),
    )
    entries = forced_entries(config, load_registry(config), Tokenizer.load(model_path), engine)
    assert [entry.name for entry in entries] == ["bias", "forced_sequence"]
    assert not any(entry.from_client for entry in entries)


@pytest.mark.parametrize("change", [{"max_logits_processors": -1}, {"logits_timeout_ms": 0.0}])
def test_bounds_that_make_no_sense_are_refused(change: dict[str, Any], model_path: Path) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        WorkerConfig(model_path=model_path, **change)
