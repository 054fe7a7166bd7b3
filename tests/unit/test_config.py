"""Settings: four sources in order, checked, and shown with where they came from."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from tandem.config import REQUIRED, exported, load, setting, written
from tandem.errors import ConfigError
from tandem.worker.config import WorkerConfig
from tandem_frontend.config import FrontendConfig
from tandem_router.config import RouterConfig


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
        ('{"a": [1, {"b": 1e-6}], "c": "x,y"}', {"a": [1, {"b": 1e-6}], "c": "x,y"}),
        ("{a: [1, two], c: true}", {"a": [1, "two"], "c": True}),
        ("{}", {}),
    ],
)
def test_a_mapping_is_pairs_in_which_braces_may_hold_commas_or_what_a_file_says_in_a_line(
    text: str, options: dict[str, str]
) -> None:
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


@pytest.mark.parametrize("text", ['["a:1", "b,2"]', "[a:1, 'b,2']"])
def test_a_list_may_be_written_as_json(text: str) -> None:
    assert _load(["--workers", text]).workers == ("a:1", "b,2")
    assert _load([], {"TANDEM_WORKERS": text}).workers == ("a:1", "b,2")
    assert _load(["--workers", "[::1]:7000,b:2"]).workers == ("[::1]:7000", "b:2")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1, "a": 2}', "options says 'a' twice"),
        ("{a: 1, a: 2}", "a is there already"),
        ('{"a": ', "options, line 1"),
        ("[1]", "written key=value,key=value, or as JSON"),
        ('{"a": ' * 3000, "nested too deep"),
    ],
)
def test_json_that_is_none_is_refused_by_the_name_of_its_setting(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        _load([], {"TANDEM_OPTIONS": text})


ODD = "a # b: 'c' \"d\" ü {x}\n second: line\t"
VALUES: dict[Any, Any] = {
    str: ODD,
    bool: True,
    int: 7,
    float: 1e-06,
    Path: Path("a folder/of # mine"),
    Path | None: Path("~"),
    tuple[str, ...]: ("no", "1", ODD, ""),
    dict[str, str]: {"yes": "null", ODD: "3"},
    dict[str, Any]: {"chain": [{"path": "x:Y", "config": {"n": 1.5, "of": [None, True]}}]},
}


@pytest.mark.promise("S6-523")
@pytest.mark.parametrize("model", [FrontendConfig, RouterConfig, WorkerConfig, Settings])
def test_what_is_printed_of_any_setting_can_be_read_back(
    tmp_path: Path, model: type[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever it holds, whether the component would take it or not; but no secret."""

    def printed(file: Path) -> str:
        with pytest.raises((SystemExit, ConfigError)):
            load(model, prog="test", argv=["--config", str(file), "--print-config"], environ={})
        return capsys.readouterr().out

    hints = typing.get_type_hints(model)
    given = {}
    for name in (field.name for field in dataclasses.fields(model)):
        literal = typing.get_origin(hints[name]) is Literal
        given[name] = typing.get_args(hints[name])[-1] if literal else VALUES[hints[name]]
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(f"{{{', '.join(f'{name}: {written(each)}' for name, each in given.items())}}}")
    second.write_text(printed(first))
    secrets = {each.name for each in dataclasses.fields(model) if each.metadata["secret"]}
    shown = {name: each for name, each in given.items() if name not in secrets}
    read_back = yaml.safe_load(second.read_text())
    assert read_back == {name: yaml.safe_load(written(each)) for name, each in shown.items()}
    again = [line for line in printed(second).splitlines() if line.endswith("# file")]
    assert again == [line for line in second.read_text().splitlines() if not line.startswith("#")]


@pytest.mark.promise("S6-522")
@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        ("limit: 1\n\nlimt: 3\n", 3, "unknown settings: limt; did you mean limit?"),
        ("limit: 1\nseconds: 2\nlimit: 3\n", 3, "limit is there already, at line 1"),
        ("options:\n  a: {b: 1}\n  c: 2\n  a: 3\n", 4, "options.a is there already"),
        ("options:\n  a: [{b: 1,\n  b: 2}]\n", 3, r"options.a\[0\].b is there already"),
        ("# here\nseconds: soon\n", 2, "seconds must be a number"),
        ("limit: 1\noptions: [\n", 3, ""),
        ("limit: 1\n\tquiet: true\n", 2, ""),
        ("base: &b {x: 1}\noptions: {<<: *b, x: 2}\n", 1, "unknown settings: base"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(
    tmp_path: Path, content: str, line: int, says: str
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=f"{re.escape(str(file))}, line {line}: .*{says}"):
        _load(["--config", str(file)])


@pytest.mark.parametrize(
    ("model", "given", "status"),
    [
        (FrontendConfig, [], 0),
        (RouterConfig, [], 0),
        (WorkerConfig, [], 0),
        (WorkerConfig, ["--model-path=m"], 0),
        (RouterConfig, ["--max-queue=-3"], 2),
    ],
)
def test_settings_are_printed_whatever_is_missing_and_what_is_wrong_is_refused_then(
    capsys: pytest.CaptureFixture[str], model: type[Any], given: list[str], status: int
) -> None:
    with pytest.raises((SystemExit, ConfigError)) as ended:
        load(model, prog="t", argv=["--print-config", *given], environ={})
    assert isinstance(ended.value, ConfigError) is bool(status)
    assert capsys.readouterr().out.startswith("listen: ")


def test_a_line_is_not_told_of_a_setting_that_the_file_does_not_decide(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("max_queue: 3\n")
    with pytest.raises(ConfigError, match=r"^max_queue must be at least 1, not 0$"):
        load(RouterConfig, prog="t", argv=["--config", str(file), "--max-queue=0"], environ={})


@pytest.mark.promise("S6-522")
@pytest.mark.parametrize(
    ("model", "content", "line", "says"),
    [
        (RouterConfig, "max_n: 3\nmax_queue: -3\n", 2, "max_queue must be at least 1"),
        (RouterConfig, "listen: nonsense\n", 1, "listen must be HOST:PORT"),
        (RouterConfig, "metrics_listen: a:65536\n", 1, "metrics_listen must be HOST:PORT"),
        (FrontendConfig, "model_path: m\nlisten: ':-1'\n", 2, "listen must be HOST:PORT"),
        (WorkerConfig, "model_path: m\nlisten: a:b\n", 2, "listen must be HOST:PORT"),
        (WorkerConfig, "model_path: m\nmax_sequences: -5\n", 2, "max_sequences must be at least"),
        (
            WorkerConfig,
            "model_path: m\nhooks:\n  workers: 1\n  chains: []\n",
            4,
            "unknown field `chains`; did you mean chain?",
        ),
        (
            WorkerConfig,
            "model_path: m\nhooks:\n  chain:\n  - path: x:Y\n  - path: a:B\n    timeout: 1\n",
            6,
            r"hooks.chain\[1\]: .*did you mean timeout_ms?",
        ),
        (
            WorkerConfig,
            "model_path: m\nclassifiers:\n  hold_back: all\n  regenerate:\n    time: 2\n",
            5,
            "did you mean times?",
        ),
        (
            WorkerConfig,
            "model_path: m\nclassifiers:\n  entries:\n  - path: webhook\n    timeout_ms: fast\n",
            5,
            "Expected",
        ),
        (WorkerConfig, "model_path: m\naudit:\n  paths: x\n", 3, "did you mean path?"),
        (WorkerConfig, "model_path: m\naudit: {path: x, files: 0}\n", 2, "audit.files"),
        (
            WorkerConfig,
            "model_path: m\nlogits_processors:\n  ban:\n    usee: x:Y\n",
            4,
            "did you mean use?",
        ),
    ],
)
def test_what_a_component_cannot_start_with_is_refused_with_its_line(
    tmp_path: Path, model: type[Any], content: str, line: int, says: str
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=f"line {line}: .*{says}"):
        load(model, prog="t", argv=["--config", str(file)], environ={})


def test_variables_for_a_while_are_as_they_were_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A_LIBRARYS", "own")
    monkeypatch.delenv("ANOTHER_ONE", raising=False)
    with exported({"A_LIBRARYS": "ours", "ANOTHER_ONE": "x"}):
        assert (os.environ["A_LIBRARYS"], os.environ["ANOTHER_ONE"]) == ("ours", "x")
    assert os.environ["A_LIBRARYS"] == "own"
    assert "ANOTHER_ONE" not in os.environ
