"""Engines are found by the entry points of their kits, and one that is missing is named."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import product_packages
import pytest

from tandem.engine import factory
from tandem.engine.base import EngineSettings, Role
from tandem.errors import ConfigError, LoadError
from tandem.logits.registry import Registry


@pytest.fixture
def settings(model_path: Path) -> EngineSettings:
    return EngineSettings(
        model_path=model_path,
        model_name="m",
        max_sequences=8,
        host="127.0.0.1",
        options={},
        registry=Registry(),
    )


def test_kits_offer_the_engines_that_the_setting_names_and_no_others() -> None:
    assert product_packages.offered(factory.GROUP) == sorted(get_args(factory.EngineName))


@pytest.mark.parametrize(
    ("name", "brought_by"), [("sim", "tandem-sim"), ("sglang", "'tandem-serving[sglang]'")]
)
def test_an_engine_whose_kit_is_not_installed_says_what_brings_it(
    monkeypatch: pytest.MonkeyPatch,
    settings: EngineSettings,
    name: factory.EngineName,
    brought_by: str,
) -> None:
    monkeypatch.setattr(factory, "GROUP", "tandem.no_such_group")
    with pytest.raises(factory.NotInstalledError) as refused:
        factory.create(name, Role.DECODE, settings)
    assert str(refused.value) == (
        f"engine '{name}' is not installed:"
        f" `make full` in a checkout, else pip install {brought_by}"
    )


def test_a_library_that_an_engine_lacks_is_named(
    monkeypatch: pytest.MonkeyPatch, settings: EngineSettings
) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == "tandem_sim"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(factory.NotInstalledError) as refused:
        factory.plan_forms("sim", settings)
    assert "'tokenizers', which is not installed" in str(refused.value)
    assert str(refused.value).endswith("pip install tandem-sim")


def test_a_kit_that_breaks_is_not_said_to_be_missing(
    monkeypatch: pytest.MonkeyPatch, settings: EngineSettings
) -> None:
    monkeypatch.delattr("tandem_sim.ENGINE")
    with pytest.raises(LoadError, match="has no 'ENGINE'"):
        factory.create("sim", Role.DECODE, settings)


@pytest.mark.promise("S5-450")
def test_only_an_engine_that_can_be_shared_has_several_processes(settings: EngineSettings) -> None:
    with pytest.raises(ConfigError, match="engine 'sim' serves one process: leave the setting"):
        factory.create("sim", Role.DECODE, replace(settings, token_processes=2))
