"""Settings: four sources in order, checked, and shown with where they came from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from frontend.config import FrontendConfig
from tandem.config import REQUIRED, load, setting
from tandem.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a test."""

    listen: str = setting("127.0.0.1:1", "Where to listen.")
    workers: tuple[str, ...] = setting((), "Addresses.")
    seconds: float = setting(1.5, "How long, in seconds.")
    limit: int = setting(3, "How many.")
    quiet: bool = setting(False, "Say less.")
    policy: Literal["a", "b"] = setting("a", "Which.")
    options: dict[str, Any] = setting({}, "More.")
    model_path: Path | None = setting(None, "A folder.")
    keys: tuple[str, ...] = setting((), "Secrets.", secret=True)


@dataclass(frozen=True, kw_only=True)
class Needy:
    """Needs something."""

    model_path: str = setting(REQUIRED, "A folder.")


def _load(argv: list[str] | None = None, environ: dict[str, str] | None = None) -> Settings:
    return load(Settings, prog="test", argv=argv or [], environ=environ or {})


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("listen: file\nseconds: 7\nlimit: 9\n")
    settings = _load(
        ["--config", str(file), "--listen", "flag"],
        {"TANDEM_LISTEN": "environment", "TANDEM_SECONDS": "8"},
    )
    assert (settings.listen, settings.seconds, settings.limit) == ("flag", 8.0, 9)
    assert settings.policy == "a"


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("TANDEM_API_KEY", "TANDEM_API_KEYS"),
        ("TANDEM_LISTN", "TANDEM_LISTEN"),
        ("TANDEM_WHATEVER_ELSE", ""),
    ],
)
def test_a_variable_that_is_no_setting_is_refused(variable: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"the variable {variable} is no setting") as caught:
        _load([], {variable: "secret"})
    assert ("did you mean" in str(caught.value)) == bool(meant)
    assert str(caught.value).endswith(meant + "?" if meant else "setting")
    assert "secret" not in str(caught.value)


def test_variables_of_other_components_and_of_services_are_let_be() -> None:
    others = {"TANDEM_MAX_QUEUE": "5", "TANDEM_CONFIG": "", "TANDEM_SLO_TTFT_SECONDS": "x"}
    services = {
        "TANDEM_ROUTER_SERVICE_HOST": "10.0.0.1",
        "TANDEM_ROUTER_SERVICE_PORT": "7000",
        "TANDEM_ROUTER_SERVICE_PORT_GRPC": "7000",
        "TANDEM_ROUTER_PORT": "tcp://10.0.0.1:7000",
        "TANDEM_ROUTER_PORT_7000_TCP_ADDR": "10.0.0.1",
    }
    assert _load([], others | services).seconds == _load().seconds


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("a=1,b=2,a=3", {"a": "3", "b": "2"}),
        (
            'a=1,more={"c": {"d": [3, 4]}, "b": 2},e=5',
            {"a": "1", "more": '{"c": {"d": [3, 4]}, "b": 2}', "e": "5"},
        ),
        ("a=},b={c,d}", {"a": "}", "b": "{c,d}"}),
        ("a={b,c=2", {"a": "{b,c=2"}),
    ],
)
def test_commas_within_braces_divide_nothing(text: str, options: dict[str, str]) -> None:
    assert _load(["--options", text]).options == options
    assert _load(environ={"TANDEM_OPTIONS": text}).options == options


def test_text_becomes_the_settings_type() -> None:
    settings = _load(
        ["--workers", "a:1, b:2", "--quiet", "--options", "x=1,y=two", "--model-path", "m"]
    )
    assert settings.workers == ("a:1", "b:2")
    assert settings.quiet is True
    assert settings.options == {"x": "1", "y": "two"}
    assert settings.model_path == Path("m")
    assert _load(["--no-quiet"], {"TANDEM_QUIET": "yes"}).quiet is False


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("nonsense: 1\n", "nonsense"),
        ("limit: many\n", "limit"),
        ("limit: true\n", "limit"),
        ("seconds: [1]\n", "seconds"),
        ("quiet: maybe\n", "quiet"),
        ("policy: c\n", "policy"),
        ("workers: 3\n", "workers"),
        ("options: [1]\n", "options"),
        ("- a list\n", "mapping"),
        ("a: [\n", "c.yaml"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, content: str, names: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=names):
        _load(["--config", str(file)])


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no-such\.yaml"):
        _load(["--config", "no-such.yaml"])


def test_a_missing_required_setting_is_named_by_its_flag() -> None:
    with pytest.raises(ConfigError, match="--model-path"):
        load(Needy, prog="test", argv=[], environ={})


def test_an_unknown_flag_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        _load(["--lissen", "x"])
    assert stopped.value.code == 2
    assert "--lissen" in capsys.readouterr().err


def test_print_config_shows_every_value_with_its_source_and_no_secret(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stopped:
        _load(["--print-config", "--limit", "4"], {"TANDEM_KEYS": "hush", "TANDEM_LISTEN": "e"})
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert "limit: 4  # flag" in out
    assert "listen: e  # environment" in out
    assert "seconds: 1.5  # default" in out
    assert "keys: '********'  # environment" in out
    assert "hush" not in out


EMPTY = ["", ",", "\n", " , ,\n", " "]


@pytest.mark.promise("S6-151")
@pytest.mark.parametrize("given", EMPTY)
@pytest.mark.parametrize("source", ["flag", "environment", "file"])
def test_a_secret_that_is_given_and_empty_stops_the_start(
    tmp_path: Path, given: str, source: str
) -> None:
    """Its file was empty: nobody asked for a process without it."""
    file = tmp_path / "c.yaml"
    file.write_text(json.dumps({"keys": given}))
    argv = {"flag": [f"--keys={given}"], "file": ["--config", str(file)]}.get(source, [])
    environ = {"TANDEM_KEYS": given} if source == "environment" else {}
    with pytest.raises(ConfigError, match="keys is given and holds nothing"):
        _load(argv, environ)


@pytest.mark.parametrize("written", ["keys:\n", "keys: []\n", "keys: null\n"])
def test_a_secret_that_a_file_names_without_a_value_stops_the_start(
    tmp_path: Path, written: str
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(written)
    with pytest.raises(ConfigError, match="keys is given and holds nothing"):
        _load(["--config", str(file)])


def test_a_secret_that_is_not_given_is_its_default_and_one_that_is_is_used() -> None:
    assert _load().keys == ()
    assert _load([], {"TANDEM_KEYS": "a,,\nb\n"}).keys == ("a", "b")


@pytest.mark.parametrize("keys", [("",), (" ",), ("", "\n")])
def test_keys_without_one_that_can_be_used_stop_the_start(keys: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="api_keys"):
        FrontendConfig(model_path="x", api_keys=keys)
