"""A pair of SGLang workers whose SGLang lacks what some units need, or what all need."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from stacks import HERE, MODEL, SGLANG_READY_SECONDS, options
from units_taken_away import MISSING

from tandem.cli import demo, run_state
from tandem.cli.answer import StreamedAnswer
from tandem.cli.client import ApiError
from tandem.cli.console import Console
from tandem.cli.stack import Stack
from tandem_sglang.units import UNITS
from tandem_tools import doctor

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(3 * SGLANG_READY_SECONDS)]
PROMPT: dict[str, Any] = {"model": MODEL, "prompt": "The assert statement", "max_tokens": 4}
SEVERAL = ("outputs", "pages", "hand-over tags", "prefill layouts", "failures", "penalties")
ASKED = {"messages of Mooncake peers", "forms of drafts", "tokens of ranks"}
"""Units of engines with other options."""
EVERY = {unit.name for unit in UNITS} - ASKED - {"data-parallel requests"}
FORM = {"response_format": {"type": "json_object"}}
FIELDS: dict[str, dict[str, Any]] = {
    "seed": {"seed": 1},
    "frequency_penalty": {"frequency_penalty": 1.0},
    "presence_penalty": {"presence_penalty": 1.0},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "no_repeat_ngram": {"logits_processors": [{"name": "no_repeat_ngram", "args": {"size": 2}}]},
    "response_format": FORM,
}
PENALTIES = {"frequency_penalty", "presence_penalty", "repetition_penalty"}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("every", EVERY, set(FIELDS)), id="every"),
        pytest.param(
            (",".join(SEVERAL), {*SEVERAL, "forms"}, {*PENALTIES, "response_format"}),
            id="several",
            marks=pytest.mark.long,
        ),
    ],
)
def lacking(request: pytest.FixtureRequest) -> tuple[str, set[str], set[str]]:
    """What is taken away, the units that are lacking, and the fields that are refused."""
    found: tuple[str, set[str], set[str]] = request.param
    return found


@pytest.fixture(scope="module")
def stack(
    lacking: tuple[str, set[str], set[str]],
    model_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    processors = ("--logits-processors=taken=units_taken_away:Loads",)
    frontend = ("--allow-reports", "--client-logits-processors=forced_sequence,no_repeat_ngram")
    router = ("--client-logits-processors=forced_sequence,no_repeat_ngram",)
    made = options(
        "sglang",
        model_path,
        hook_prefill=demo.PREFILL_HOOK,
        hook_decode=demo.DECODE_HOOK,
        engine_options=("dtype=float32",),
        flags={
            "frontend": frontend,
            "router": router,
            "prefill_worker": processors,
            "decode_worker": processors,
        },
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("LACKING_UNITS", lacking[0])
        patched.setenv("PYTHONPATH", str(HERE), prepend=":")
        with Stack(made, run_dir=tmp_path_factory.mktemp("units")) as running:
            running.wait_ready(timeout_seconds=SGLANG_READY_SECONDS)
            yield running


@pytest.mark.promise("S5-807")
def test_the_demo_the_hooks_forced_sequences_and_greedy_tokens_hold_without_units(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[list[str]] = []
    problems = StreamedAnswer.problems

    def but_for_bytes(answer: StreamedAnswer) -> list[str]:
        """Hand-overs are not measured without the unit `outputs`."""
        measured.append(problems(answer))
        return [each for each in measured[-1] if each != "no KV bytes were moved"]

    monkeypatch.setattr(StreamedAnswer, "problems", but_for_bytes)
    failed = []
    for claim in demo.Claims(stack, Console()).in_order():
        try:
            claim()
        except (demo.ClaimError, ApiError) as error:
            failed.append(f"{claim.__name__}: {error}")
    assert failed == []
    assert measured == [["no KV bytes were moved"]]


@pytest.mark.promise("S5-804")
def test_what_a_unit_would_keep_is_refused_by_name_and_all_else_is_answered(
    stack: Stack, lacking: tuple[str, set[str], set[str]]
) -> None:
    said = {}
    with httpx.Client(base_url=stack.url, timeout=60) as client:
        for name, fields in FIELDS.items():
            body = {**PROMPT, "temperature": 1.0, **fields}
            answer = client.post("/v1/completions", json=body)
            said[name] = answer.status_code
            if name in lacking[2]:
                error = answer.json()["error"]
                assert error["code"] == "unsupported_parameter", error
                assert name in error["message"] + str(error["param"]), error
        plain = client.post("/v1/completions", json=PROMPT)
    assert plain.status_code == 200
    assert said == {name: 400 if name in lacking[2] else 200 for name in FIELDS}


@pytest.mark.promise("S5-805")
def test_the_log_the_metric_the_page_and_the_doctor_say_which(
    stack: Stack, lacking: tuple[str, set[str], set[str]]
) -> None:
    workers = [name for name in stack.components if "_worker" in name]
    assert len(workers) == 2, stack.components
    for worker in workers:
        component = stack.components[worker]
        log = (stack.run_dir / f"{worker}.log").read_text()
        warned = [each for each in log.splitlines() if "SGLang lacks what a unit needs" in each]
        assert len(warned) == len(lacking[1]), warned
        unsaid = {name for name in lacking[1] if not any(name in line for line in warned)}
        assert unsaid == set()
        at = f"http://{component.launch.metrics}"
        units = json.loads(_get(f"{at}/debug/units"))
        states = {each["name"]: each["state"] for each in units}
        assert {name for name, state in states.items() if state == "lacking"} == lacking[1]
        assert all(each["promise"] for each in units)
        counted = Counter(states.values())
        for line in _get(f"{at}/metrics").splitlines():
            if line.startswith("tandem_engine_unit{"):
                counted[line.partition('state="')[2].partition('"')[0]] -= 1
                assert line.endswith(" 1.0")
        assert set(counted.values()) == {0}, "each unit has one series"
    run_state.write(stack.run_dir, run_state.of(stack, owner=None))  # as `tandem up` does
    found = doctor.examine(stack.run_dir).findings
    told = [each for each in found if each.about == "engine unit"]
    assert len(told) == 2 * len(lacking[1])
    assert all(each.level == "note" and each.advice for each in told)
    assert sum(MISSING in each.said for each in told) >= 2


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())
