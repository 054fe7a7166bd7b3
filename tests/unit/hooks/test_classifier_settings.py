"""Classifiers come from the settings file, or from a package that it names; or no worker starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from one_case import one_case

from tandem.errors import ConfigError, LoadError
from tandem.hooks.classifiers.classifier_set import ClassifierSet
from tandem.hooks.classifiers.contract import ScoringContext
from tandem.hooks.classifiers.loader import load_classifier
from tandem.hooks.classifiers.settings import ClassifierEntry, RegenerateSettings, parse

HERE = "classifier_settings_sample"


class Sample:
    """Says everything about itself."""

    name = "sample"
    blocking = True
    timeout_ms = 250

    def __init__(self, *, threshold: float = 0.5) -> None:
        self.threshold = threshold

    async def score(self, ctx: ScoringContext) -> dict[str, Any]:
        return {"threshold": self.threshold}


class Terse:
    """Leaves the rest to its entry."""

    async def score(self, ctx: ScoringContext) -> dict[str, Any]:
        return {}


class Fixed(Terse):
    __slots__ = ()
    name = "fixed"
    blocking = False


class Broken:
    def __init__(self) -> None:
        raise RuntimeError("no model file")


def register(classifiers: ClassifierSet) -> None:
    """A plugin."""
    if classifiers.model == "m":
        classifiers.register_external_classifier_hook(Sample(threshold=0.75))


def register_badly(classifiers: ClassifierSet) -> None:
    raise OSError("no network")


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, HERE, sys.modules[__name__])


# --- parsing -------------------------------------------------------------------------------------


def test_nothing_set_is_no_classifier() -> None:
    settings = parse({})
    assert settings.hold_back == "none"
    assert settings.regenerate is None


def test_everything_set_is_read() -> None:
    settings = parse(
        {
            "hold_back": "all",
            "window_tokens": 32,
            "refusal": "no",
            "max_concurrency": 16,
            "regenerate": {
                "times": 2,
                "temperature": 0,
                "top_k": 40,
                "when": "asked",
                "may_set": {"temperature": [0, 1], "seed": None},
            },
            "logprobs": True,
            "plugins": ["acme"],
            "entries": [
                "my_pkg.a:A",
                {
                    "path": "my_pkg.b:B",
                    "name": "b",
                    "blocking": False,
                    "timeout_ms": 500,
                    "config": {"x": 1},
                    "models": ["m"],
                },
            ],
        }
    )
    assert settings.regenerate == RegenerateSettings(
        times=2,
        temperature=0,
        top_k=40,
        when="asked",
        may_set={"temperature": (0, 1), "seed": None},
    )
    assert settings.logprobs
    assert settings.entries == (
        ClassifierEntry(path="my_pkg.a:A"),
        ClassifierEntry(
            path="my_pkg.b:B",
            name="b",
            blocking=False,
            timeout_ms=500,
            config={"x": 1},
            models=("m",),
        ),
    )


@one_case(
    ("given", "says"),
    [
        ({"holdback": "all"}, "classifiers: .*unknown field `holdback`"),
        ({"hold_back": "some"}, r"classifiers\.hold_back: Invalid enum value"),
        ({"window_tokens": 0}, r"classifiers\.window_tokens: Expected `int` >= 1"),
        ({"window_tokens": True}, r"classifiers\.window_tokens"),
        ({"refusal": ""}, r"classifiers\.refusal"),
        ({"max_concurrency": 0}, r"classifiers\.max_concurrency"),
        ({"plugins": "acme"}, r"classifiers\.plugins: Expected `array`"),
        ({"entries": {}}, r"classifiers\.entries: Expected `array`"),
        ({"entries": [7]}, r"classifiers\.entries\[0\]: Expected `object`"),
        ({"entries": ["a:B", {}]}, r"classifiers\.entries\[1\]: .*missing required field `path`"),
        (
            {"entries": [{"path": "a:B", "block": True}]},
            r"entries\[0\]: .*unknown field `block`",
        ),
        ({"entries": [{"path": "a:B", "name": ""}]}, r"entries\[0\]\.name"),
        ({"entries": [{"path": "a:B", "blocking": "yes"}]}, r"entries\[0\]\.blocking"),
        ({"entries": [{"path": "a:B", "timeout_ms": 0}]}, r"entries\[0\]\.timeout_ms"),
        ({"entries": [{"path": "a:B", "config": ["x"]}]}, r"entries\[0\]\.config"),
        ({"entries": [{"path": "a:B", "models": "m"}]}, r"entries\[0\]\.models"),
        ({"regenerate": []}, r"classifiers\.regenerate: Expected `object"),
        ({"regenerate": {"times": 1}}, "regenerate needs hold_back: all"),
        (
            {"hold_back": "all", "regenerate": {"times": 4}},
            r"times: Expected `int` <= 3",
        ),
        ({"hold_back": "all", "regenerate": {"temperature": 3}}, r"regenerate\.temperature"),
        ({"hold_back": "all", "regenerate": {"stop": ""}}, "regenerate: .*unknown field `stop`"),
        (
            {"hold_back": "all", "regenerate": {"may_set": {"stop": None}}},
            r"regenerate\.may_set\.stop: no such parameter; there are temperature, ",
        ),
        (
            {"hold_back": "all", "regenerate": {"may_set": {"temperature": [1, 0]}}},
            r"regenerate\.may_set\.temperature: the lowest value comes first",
        ),
        ({"hold_back": "all", "regenerate": {"when": "never"}}, r"regenerate\.when"),
        ({"logprobs": 1}, r"classifiers\.logprobs"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse(given)


def test_an_entrys_config_is_never_in_a_message() -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"entries": [{"path": "a:B", "config": "api_key=hunter2"}]})
    assert "hunter2" not in str(caught.value)


# --- loading -------------------------------------------------------------------------------------


async def test_a_class_named_by_path_is_built_with_its_config() -> None:
    settings = parse({"entries": [{"path": f"{HERE}:Sample", "config": {"threshold": 0.9}}]})
    classifiers = ClassifierSet.build(settings, model="m")
    (runner,) = classifiers.runners
    assert (runner.name, runner.blocking, runner.caller.seconds) == ("sample", True, 0.25)
    judgement = await classifiers.judge(
        ScoringContext(request_id="r", prompt="", generated_text="")
    )
    assert judgement.scores == {"sample": {"threshold": 0.9}}


def test_what_the_entry_says_of_a_classifier_counts_before_what_its_class_says() -> None:
    entry = {"path": f"{HERE}:Sample", "name": "mine", "blocking": False, "timeout_ms": 80}
    (runner,) = ClassifierSet.build(parse({"entries": [entry]}), model="m").runners
    assert (runner.name, runner.blocking, runner.caller.seconds) == ("mine", False, 0.08)


def test_a_class_that_says_nothing_of_itself_is_named_after_its_path() -> None:
    settings = parse({"entries": [{"path": f"{HERE}:Terse", "blocking": True}]})
    (runner,) = ClassifierSet.build(settings, model="m").runners
    assert (runner.name, runner.caller.seconds) == (f"{HERE}:Terse", 1.0)


def test_whether_it_blocks_must_be_said_by_the_entry_or_the_class() -> None:
    with pytest.raises(LoadError, match="blocking must be true or false"):
        ClassifierSet.build(parse({"entries": [f"{HERE}:Terse"]}), model="m")


def test_an_entry_for_other_models_is_not_loaded() -> None:
    settings = parse({"entries": [{"path": "no.such:Thing", "models": ["other"]}]})
    assert len(ClassifierSet.build(settings, model="m")) == 0


@pytest.mark.promise("S4-108")
def test_two_entries_of_one_name_are_refused() -> None:
    settings = parse({"entries": [f"{HERE}:Sample", f"{HERE}:Sample"]})
    with pytest.raises(LoadError, match="two classifiers named 'sample'"):
        ClassifierSet.build(settings, model="m")


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"path": "no.such.module:Thing"}, "there is no module"),
        ({"path": f"{HERE}:Missing"}, "has no 'Missing'"),
        ({"path": f"{HERE}:register"}, "is a function, not a class"),
        ({"path": f"{HERE}:Sample", "config": {"treshold": 1}}, r"from config \['treshold'\]"),
        ({"path": f"{HERE}:Broken"}, "constructor raised RuntimeError: no model file"),
    ],
)
def test_what_cannot_be_loaded_stops_the_worker(entry: dict[str, Any], says: str) -> None:
    with pytest.raises(LoadError, match=says):
        ClassifierSet.build(parse({"entries": [entry]}), model="m")


def test_a_class_whose_attribute_cannot_be_set_says_so() -> None:
    class Closed(Terse):
        @property
        def timeout_ms(self) -> float:
            return 5

    sys.modules[HERE].Closed = Closed  # type: ignore[attr-defined]
    entry = ClassifierEntry(path=f"{HERE}:Closed", blocking=True, timeout_ms=7)
    with pytest.raises(LoadError, match="does not let its timeout_ms be set"):
        load_classifier(entry)


# --- plugins -------------------------------------------------------------------------------------


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that offers a class and two plugins, as an installer leaves it."""
    info = tmp_path / "acme_safety-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-safety\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[tandem.classifiers]\nacme = {HERE}:register\nbroken = {HERE}:register_badly\n"
        f"terse = {HERE}:Terse\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("installed")
def test_an_entry_names_a_class_that_a_package_offers() -> None:
    assert type(load_classifier(ClassifierEntry(path="terse"))).__name__ == "Terse"
    with pytest.raises(LoadError, match="classifier 'acme' is a function, not a class"):
        load_classifier(ClassifierEntry(path="acme"))


@pytest.mark.usefixtures("installed")
def test_a_package_registers_its_classifiers_after_those_of_the_settings() -> None:
    settings = parse(
        {"plugins": ["acme"], "entries": [{"path": f"{HERE}:Terse", "blocking": False}]}
    )
    runners = ClassifierSet.build(settings, model="m").runners
    assert [runner.name for runner in runners] == [f"{HERE}:Terse", "sample"]
    assert len(ClassifierSet.build(settings, model="other")) == 1


@pytest.mark.usefixtures("installed")
def test_a_package_that_is_not_named_registers_nothing() -> None:
    assert len(ClassifierSet.build(parse({}), model="m")) == 0


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "absent",
            "no installed package offers 'absent' as an entry point .*; there is acme",
        ),
        ("broken", "classifier plugin 'broken' raised OSError: no network"),
        ("terse", "classifier plugin 'terse' is a type, no function"),
    ],
)
def test_a_plugin_that_cannot_register_stops_the_worker(name: str, says: str) -> None:
    with pytest.raises(LoadError, match=says):
        ClassifierSet.build(parse({"plugins": [name]}), model="m")
