"""A stack's file is a part of the chart's values: it installs the chart and says the same there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import chart_renders
import pytest
import yaml
from chart_renders import CHART

from tandem import stack_file
from tandem.cli import schema
from tandem.cli.init import EXAMPLE
from tandem.stack_file import SECTIONS
from tandem_vllm import options as vllm_options

SGLANG = """\
model: {uri: "file:///models/q", name: q}
engine:
  type: sglang
  device: cpu
  options: {page_size: 32}
  tensorParallel: 2
  decodeTensorParallel: 4
  dataParallel: 2
  decodeDataParallel: 1
  pipelineParallel: 2
  decodePipelineParallel: 1
loraAdapters: [{name: sql, path: /adapters/sql}]
"""
VLLM = """\
model: {uri: "file:///models/q", name: q}
engine: {type: vllm, device: cpu, tensorParallel: 2, options: {page_size: 32, enforce_eager: true}}
prefill: {engineOptions: {max_batched_tokens: 4096}}
decode: {engineOptions: {decode_prefix_cache: true}}
worker: {enabled: true}
"""
SIM = """\
engine: {type: sim, options: {step_ms: 5, page_size: 32}}
hooks: {workers: 1, chain: [secrets, {path: banned_phrases, config: {phrases: [x]}}]}
classifiers: {hold_back: window, entries: ["a:B"]}
logitsProcessors: {ban: {use: "a:C", always: true}}
logs: {format: console, level: debug}
tracing: {otlpEndpoint: "http://c:4318", sampleRatio: 0.5}
frontend:
  config: {max_open_requests: 9, allow_reports: true, client_logits_processors: [ban]}
  apiKeysFile: {path: /keys.jsonl}
  service: {port: 8123}
router: {replicas: 2, config: {max_queue: 7}}
prefill: {replicas: 3, config: {max_sequences: 3}, engineOptions: {step_ms: 6}}
decode: {replicas: 2, config: {max_sequences: 4}}
worker: {enabled: true, replicas: 1, config: {max_sequences: 5}, engineOptions: {step_ms: 7}}
"""
OF_THE_CHART = {"global": {"podSecurity": "privileged"}}
"""What a folder of the node asks for there."""


def schemas(section: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every value of a schema, by its path; what stands in a `config` and the like is one value."""
    found: dict[tuple[str, ...], Any] = {}
    for name, each in section.get("properties", {}).items():
        found[*path, name] = each
        if name not in ("config", "options", "engineOptions", "hooks", "classifiers"):
            found |= schemas(each, (*path, name))
    return found


@pytest.mark.promise("S5-709")
def test_every_value_of_a_stack_is_one_of_the_chart_and_takes_no_more() -> None:
    chart = schemas(json.loads((CHART / "values.schema.json").read_text()))
    for path, own in schemas(schema.of_stack()).items():
        theirs = chart[path]
        types = theirs["type"] if isinstance(theirs["type"], list) else [theirs["type"]]
        assert own.get("type", "string") in types, path
        for bound in ("minimum", "exclusiveMinimum"):
            assert own.get(bound, 0) >= theirs.get(bound, 0), path
        for bound in ("maximum", "maxItems"):
            assert own.get(bound) == theirs.get(bound), path
        assert set(own.get("enum", ())) <= set(theirs.get("enum", own.get("enum", ()))), path
        for settings in ("properties", "additionalProperties"):
            if path[-1] in ("config", "options", "engineOptions", "hooks", "classifiers"):
                assert own[settings] == theirs[settings], path


@pytest.mark.promise("S5-709")
@pytest.mark.parametrize(
    "text", [EXAMPLE, SIM, SGLANG, VLLM], ids=["example", "sim", "sglang", "vllm"]
)
def test_components_are_told_the_same_on_a_machine_and_by_the_chart(
    text: str, tmp_path: Path
) -> None:
    path = tmp_path / "stack.yaml"
    path.write_text(text)
    values = yaml.safe_load(text) | OF_THE_CHART
    told = {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: yaml.safe_load(
            each["spec"]["template"]["metadata"]["annotations"]["tandem/settings"]
        )
        for each in chart_renders.manifests(values)
        if each["kind"] == "Deployment"
        if "tandem/settings" in each["spec"]["template"]["metadata"].get("annotations", {})
    }
    wanted = set(SECTIONS.values())
    if not values.get("worker", {}).get("enabled"):
        wanted.remove("worker")
    assert set(told) == wanted
    for component, section in SECTIONS.items():
        if section not in told:
            continue
        part = dict(stack_file.part(str(path), component).content)
        part.pop("model_path", None)  # where a pod finds the folder is the chart's own
        options = part.pop("engine_options", {})
        assert {name: told[section][name] for name in part} == part, section
        theirs = told[section].get("engine_options", {})
        # 1 group, and as many as prefill has, are what the engine does unasked.
        assert {name: theirs.get(name, each) for name, each in options.items()} == options, section
        if part.get("engine") == "vllm":
            assert vllm_options.parse(options).tensor_parallel == 2
            assert vllm_options.parse(theirs).tensor_parallel == 2
