"""One file for a stack: what it may say, what each component is told, and at which line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tandem import stack_file
from tandem.cli import config_command, main, options, plan, schema
from tandem.cli.init import EXAMPLE
from tandem.cli.plan import StackOptions
from tandem.cli.up import offers
from tandem.errors import ConfigError
from tandem.stack_file import OWNED, SECTIONS

WHOLE = """\
model: {uri: "file:///models/q", name: q}
engine:
  type: sim
  options: {step_ms: 5, page_size: 32}
  tensorParallel: 2
  decodeTensorParallel: 4
loraAdapters:
  - {name: sql, path: /adapters/sql}
hooks:
  chain: [secrets]
classifiers: {entries: ["a:B"]}
logitsProcessors: {ban: "a:C"}
logs: {format: console, level: debug}
tracing: {otlpEndpoint: "http://c:4318", sampleRatio: 0}
frontend:
  config: {max_open_requests: 9, allow_reports: true}
  apiKeysFile: {path: /keys.jsonl}
  service: {port: 8123}
router:
  replicas: 2
  config: {max_queue: 7}
prefill:
  config: {max_sequences: 3}
  engineOptions: {step_ms: 6}
decode: {replicas: 2, tokenProcesses: 1, config: {max_sequences: 4}}
worker: {enabled: true, replicas: 3}
"""
LOGS = {"log_format": "console", "log_level": "debug"}
COMMON = {**LOGS, "otlp_endpoint": "http://c:4318", "trace_sample_ratio": 0}
OF_WORKER = {
    **COMMON,
    "model_path": "/models/q",
    "served_model_name": "q",
    "engine": "sim",
    "hooks": {"chain": ["secrets"]},
    "logits_processors": {"ban": "a:C"},
    "lora_adapters": {"sql": "/adapters/sql"},
}
OPTIONS = {"step_ms": 5, "page_size": 32, "tensor_parallel": 2}
TOLD: dict[str, dict[str, Any]] = {
    "frontend": {
        **COMMON,
        "model_path": "/models/q",
        "served_model_name": "q",
        "api_keys_file": "/keys.jsonl",
        "max_open_requests": 9,
        "allow_reports": True,
    },
    "router": {**COMMON, "max_queue": 7, "allow_reports": True},
    "prefill_worker": {
        **OF_WORKER,
        "max_sequences": 3,
        "engine_options": {**OPTIONS, "step_ms": 6, "decode_tensor_parallel": 4},
    },
    "decode_worker": {
        **OF_WORKER,
        "max_sequences": 4,
        "classifiers": {"entries": ["a:B"]},
        "engine_options": {**OPTIONS, "decode_tensor_parallel": 4},
    },
    "aggregated_worker": {
        **OF_WORKER,
        "classifiers": {"entries": ["a:B"]},
        "engine_options": OPTIONS,
    },
}


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "stack.yaml"
        path.write_text(text)
        return str(path)

    return write


def asked(path: str, *flags: str) -> StackOptions:
    parser = argparse.ArgumentParser()
    options.add_stack(parser)
    return options.stack_options(parser.parse_args([f"--config={path}", *flags]))


@pytest.mark.promise("S5-705")
@pytest.mark.parametrize("component", SECTIONS)
def test_each_component_is_told_its_part_and_no_more(
    written: Callable[[str], str], component: str
) -> None:
    told = stack_file.part(written(WHOLE), component)
    assert told.content == TOLD[component]
    assert set(told.texts.values()) <= set(told.lines.values()), "texts of other components"
    lines = WHOLE.splitlines()
    for place, line in told.lines.items():
        if isinstance(name := place[-1], str) and place not in CHANGED:
            assert name in lines[line - 1], (place, line)


CHANGED = {
    (name,)
    for name in (
        *("engine_options", "log_format", "log_level", "otlp_endpoint", "trace_sample_ratio"),
        *("model_path", "served_model_name", "engine", "api_keys_file", "logits_processors"),
        "lora_adapters",
    )
} | {("engine_options", name) for name in ("tensor_parallel", "decode_tensor_parallel")}
"""Places whose names differ from those in the file."""


@pytest.mark.promise("S5-706")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "frontent: {}",
            "line 1: Object contains unknown field `frontent`; did you mean fr",
        ),
        ("router:\n  replica: 2", "line 2: router: Object contains unknown field `replica`; did"),
        ("decode:\n  replicas: two", "line 2: decode.replicas: Expected `int`, got `str`"),
        ("decode:\n  replicas: -1", "line 2: decode.replicas: Expected `int` >= 0"),
        ("decode:\n  replicas: 1\n  replicas: 2", "line 3: decode.replicas is there already, at"),
        (
            "prefill:\n  config:\n    hooks: {}",
            "line 3: prefill.config.hooks is not taken here",
        ),
        (
            "router:\n  config:\n    listen: x",
            "line 3: router.config.listen is not taken here",
        ),
        ("router:\n  config: {allow_reports: true}", "line 2: router.config.allow_reports is not"),
        ("router:\n  config: {allow_kv_hints: true}", "line 2: router.config.allow_kv_hints is"),
        (
            "decode:\n  config:\n    engine: sim",
            "decode.config.engine is not taken here: write",
        ),
        ("engine:\n  options:\n    kv_port: 1", "line 3: engine.options.kv_port is not taken here"),
        ("engine:\n  options:\n    tensor_parallel: 1", "write engine.tensorParallel"),
        ("worker:\n  engineOptions: {kv_port: 1}", "line 2: worker.engineOptions.kv_port is not"),
        ("prefill: {replicas: 0}", "line 1: prefill.replicas and decode.replicas may be 0 togeth"),
        ("prefill: {replicas: 0}\ndecode: {replicas: 0}", "line 1: prefill.replicas and decode."),
        ("model:\n  uri: hf://a/b", "line 2: model.uri must be file:///folder here: `tandem fetch"),
        ("model:\n  uri: file://relative", "line 2: model.uri must be file:///folder here"),
        ("engine: {type: trt}", "line 1: engine.type: Invalid enum value 'trt'"),
        (
            "engine:\n  type: vllm\n  dataParallel: 2",
            "line 3: engine.dataParallel: workers of vLLM know tensorParallel alone",
        ),
        ("engine: {type: vllm, decodeDataParallel: 4}", "line 1: engine.decodeDataParallel: w"),
        ("frontend: {service: {port: 0}}", "line 1: frontend.service.port: Expected `int` >= 1"),
        ("loraAdapters:\n  - {name: 'a b', path: /x}", "line 2: loraAdapters[0].name: Expected"),
        ("- a", "must hold a mapping of settings, not a list"),
        ("a: [", "line 1: "),
    ],
)
def test_what_no_stack_has_is_refused_with_its_line(
    written: Callable[[str], str], text: str, says: str
) -> None:
    path = written(text)
    for reading in (stack_file.read, lambda path: stack_file.part(path, "router")):
        with pytest.raises(ConfigError) as refused:
            reading(path)
        assert str(refused.value).startswith(path)
        assert says in str(refused.value)


def test_an_empty_file_is_a_stack_of_defaults(written: Callable[[str], str]) -> None:
    path = written("hooks:\nfrontend: {}\n")
    assert stack_file.read(path) == stack_file.StackFile()
    assert {name: stack_file.part(path, name).content for name in SECTIONS} == {
        name: {} for name in SECTIONS
    }
    assert asked(path) == asked(path, "--port=8000", "--prefill=1", "--decode=1")


def test_a_name_that_another_section_has_is_not_proposed_for_itself(
    written: Callable[[str], str],
) -> None:
    with pytest.raises(ConfigError) as caught:
        stack_file.read(written("engine: {name: sim}"))
    assert str(caught.value).endswith("unknown field `name`")


@pytest.mark.promise("S5-707")
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), {"port": 8123, "prefill": 1, "decode": 2, "aggregated": 3, "routers": 2}),
        (("--port=0",), {"port": 0, "decode": 2}),
        (("--decode=1", "--prefill=4"), {"prefill": 4, "decode": 1, "aggregated": 3}),
        (("--aggregated=1",), {"prefill": 0, "decode": 0, "aggregated": 1}),
        (("--aggregated", "--prefill=1", "--decode=1"), {"prefill": 1, "aggregated": 1}),
        (("--engine=sglang",), {"engine": "sglang"}),
        (("--token-processes=3",), {"token_processes": 3}),
    ],
)
def test_flags_win_over_the_file(
    written: Callable[[str], str],
    model_path: Path,
    flags: tuple[str, ...],
    expected: dict[str, object],
) -> None:
    path = written(WHOLE.replace("/models/q", str(model_path)))
    made = asked(path, *flags)
    assert {name: getattr(made, name) for name in expected} == expected
    assert made.model_path == model_path.resolve()


def test_a_hook_of_a_flag_takes_the_place_of_the_files_chain(
    written: Callable[[str], str], model_path: Path
) -> None:
    path = written("hooks: {chain: [secrets]}\n")
    made = asked(path, "--engine=sim", "--hook-decode=a:B")
    launches = {each.component: each.flags for each in _planned(made)}
    assert {"--hook=a:B", "--hooks={}"} <= set(launches["decode_worker"])
    assert not [flag for flag in launches["prefill_worker"] if flag.startswith("--hook")]
    assert all(f"--stack={path}" in flags for flags in launches.values())


def _planned(made: StackOptions) -> list[plan.Launch]:
    from contextlib import ExitStack
    from dataclasses import replace

    with ExitStack() as held:
        return plan.plan(replace(made, port=0), held=held)


def test_the_file_decides_what_is_offered_and_that_a_changed_file_is_another_stack(
    written: Callable[[str], str],
) -> None:
    first = asked(written("frontend: {config: {playground: false}}\n"), "--engine=sim")
    assert offers(first.file) == {"frontend": ("--allow-reports",)}
    second = asked(written("router: {config: {max_queue: 1}}\n"), "--engine=sim")
    assert first != second
    assert str(first.file) != str(second.file)


def test_a_component_takes_one_file(written: Callable[[str], str], tmp_path: Path) -> None:
    from tandem.config import read
    from tandem_router.config import RouterConfig

    path = written("router: {config: {max_queue: 7}}\n")
    told = read(RouterConfig, prog="tandem-router", argv=[f"--stack={path}"], environ={})
    assert told.settings.max_queue == 7
    assert told.from_file == {"max_queue"}
    with pytest.raises(ConfigError, match="give one"):
        read(
            RouterConfig,
            prog="tandem-router",
            argv=[f"--stack={path}"],
            environ={"TANDEM_CONFIG": path},
        )


# --- the command ---------------------------------------------------------------------------------


@pytest.mark.promise("S5-708")
def test_the_example_is_a_stack_by_the_schema_and_by_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    assert main(["config", "check", "stack.yaml"]) == 0
    assert capfd.readouterr().out.endswith("ok: tandem up --config stack.yaml would start\n")
    assert main(["init"]) == 2
    assert "is there already" in capfd.readouterr().err
    assert Path("stack.yaml").read_text() == EXAMPLE


@pytest.mark.promise("S5-708")
def test_what_a_component_refuses_is_told_once_with_the_line_of_the_stacks_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text("router:\n  config:\n    max_queue: -3\nhooks:\n  chain: [no:No]\n")
    assert main(["config", "check", "s.yaml"]) == 2
    said = capfd.readouterr()
    assert said.out == ""
    # On a slow machine a line of progress comes too.
    assert sorted(line for line in said.err.splitlines() if " checking " not in line) == [
        "tandem prefill_worker: s.yaml, line 5: 'no:No': there is no module 'no'; install it, or"
        " put its folder on PYTHONPATH",
        "tandem router: s.yaml, line 3: max_queue must be at least 1, not -3",
    ]


def test_a_check_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config_command, "CHECK_SECONDS", 0.2)
    Path("s.yaml").write_text("router: {}\n")
    assert main(["config", "check", "s.yaml"]) == 2
    assert "took longer than" in capfd.readouterr().err


def test_a_check_whose_component_ends_without_an_answer_waits_for_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("odd_hooks.py").write_text(
        "import os, sys, time\n"
        "if any('prefill' in word for word in sys.argv):\n"
        "    os._exit(0)\n"
        "time.sleep(3600)\n"
    )
    Path("s.yaml").write_text("engine: {type: sim}\nhooks: {chain: ['odd_hooks:Odd']}\n")
    assert main(["config", "check", "s.yaml"]) == 2
    assert "ended without an answer" in capfd.readouterr().err


@pytest.mark.promise("S5-708")
def test_the_schema_is_that_of_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == schema.of_stack()
    validator = jsonschema.Draft7Validator(shown)
    validator.check_schema(shown)
    validator.validate(yaml.safe_load(EXAMPLE))
    validator.validate(yaml.safe_load(WHOLE))
    for text in (
        "frontent: {}",
        "router: {config: {max_queue: 0}}",
        "router: {config: {listen: x}}",
        "decode: {config: {max_sequence: 1}}",
        "hooks: {chain: [{path: secrets, on_eror: open}]}",
        "hooks: {chain: [no_such_name]}",
        "classifiers: {hold_backs: all}",
        "engine: {options: {step_mss: 1}}",
        "prefill: {engineOptions: {step_mss: 1}}",
        "model: {uri: hf://a/b}",
    ):
        assert not validator.is_valid(yaml.safe_load(text)), text
    for section in SECTIONS.values():
        known = shown["properties"][section]["properties"]["config"]["properties"]
        assert not known.keys() & OWNED[section]
        assert len(known) > 10
