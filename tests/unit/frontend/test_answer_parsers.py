"""The families of models that packages offer are found by their entry points."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from tandem.errors import ConfigError
from tandem.usercode import loader
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai import answer_parsers, chats
from tandem_frontend.openai.answer_parsers import GROUP, ModelFamilies, Thinking
from tandem_frontend.openai.tokenizer import ModelTokenizer

MODEL = Path(__file__).resolve().parents[3] / "model" / "tandem-tiny"
ANSWERS = metadata.EntryPoint("families", "tandem_answers.parsing.families:OFFERED", GROUP)
OWN = metadata.EntryPoint("another", f"{__name__}:OFFERED", GROUP)
QWEN3 = answer_parsers.named("qwen3")
OFFERED = ModelFamilies(
    names=("own",),
    named={"own": QWEN3}.__getitem__,
    detect=lambda template, architectures, tokens: QWEN3 if "Own" in architectures else None,
)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    cached = (loader.found_on, answer_parsers.offered)
    for each in cached:
        each.cache_clear()
    yield
    for each in cached:
        each.cache_clear()


def installed(monkeypatch: pytest.MonkeyPatch, *points: metadata.EntryPoint) -> None:
    """What installed packages offer."""
    found = metadata.EntryPoints(points)
    monkeypatch.setattr(metadata, "entry_points", lambda **wanted: found.select(**wanted))


def family_of(setting: str) -> str | None:
    config = FrontendConfig(model_path=str(MODEL), model_family=setting)
    found = chats.family_of(config, ModelTokenizer(MODEL), None)
    return None if found is None else found.name


def test_a_package_may_offer_families_beside_those_of_the_kit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed(monkeypatch, ANSWERS, OWN)
    assert {"own", "qwen3", "gpt_oss"} < {*answer_parsers.names()}
    assert (family_of("own"), family_of("hermes")) == ("qwen3", "hermes")
    assert answer_parsers.detect(None, ["Own"], []) is QWEN3
    found = answer_parsers.detect(None, ["GptOssForCausalLM"], [])
    assert found is not None
    assert found.name == "gpt_oss"
    with pytest.raises(ConfigError, match=r"auto, none or one of .* own, .*; not 'nobody'"):
        family_of("nobody")


@pytest.mark.parametrize("setting", ["auto", "qwen3"])
def test_without_a_package_of_families_a_frontend_does_not_take_answers_for_text(
    monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    installed(monkeypatch)
    with pytest.raises(ConfigError, match=r"tandem-answers.*model_family to none"):
        family_of(setting)
    assert family_of("none") is None


def test_a_model_may_think_between_other_markers_than_its_family() -> None:
    marks = Thinking("<hm>", "</hm>")
    assert answer_parsers.written("qwen3", marks).thinking == marks
    assert answer_parsers.written("qwen3", None).thinking is None
    assert answer_parsers.written("qwen3", marks).markers[:2] == marks
