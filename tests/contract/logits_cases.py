"""What every engine must generate, in both modes, and how to know it without an engine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import logits_probe
import numpy

from tandem.engine import model_files
from tandem.logits import Model, TokenHistory
from tandem.logits.registry import Registry
from tandem.logits.settings import parse
from tandem.logits.spec import LogitsProcessorEntry, LogitsProcessorSpec
from tandem.logits.state import RequestLogits
from tandem.v1 import common_pb2

PROMPT = tuple(range(100, 250))
LENGTH = 24
HERE = Path(__file__).parent
ENGINE_SECONDS = 400
Given = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A request's processors, the first of which stands for the model."""

    name: str
    given: tuple[Given, ...]

    @property
    def spec(self) -> LogitsProcessorSpec:
        return LogitsProcessorSpec(
            tuple(LogitsProcessorEntry(name, args) for name, args in self.given)
        )


def case(name: str, /, seed: int = 1, **args: Any) -> Case:
    return Case(name, (("probe", {"seed": seed}), (name, args)))


CASES: tuple[Case, ...] = (
    Case("probe", (("probe", {"seed": 5}),)),
    case("forced_sequence", text="Prefill made the first token."),
    case("forced_prefix", text="Sure, here it is:"),
    case("allowed_tokens", token_ids=[70, 71, 72, 300, 301], with_eos=False),
    case("banned_tokens", token_ids=list(range(50, 1800))),
    case("banned_sequences", sequences=[[300], [70, 71], [72]]),
    case("bias", bias={"500": 9.0, "501": 9.5, "502": 10.0}),
    Case(
        "min_new_tokens",
        (
            ("probe", {}),
            ("bias", {"bias": {"1": 50.0, "70": 49.0}}),
            ("min_new_tokens", {"count": 9, "stop_token_ids": [70]}),
        ),
    ),
    case("max_new_tokens", count=6),
    case("repetition_penalty", penalty=1.8),
    Case(
        "no_repeat_ngram",
        (
            ("probe", {}),
            ("allowed_tokens", {"token_ids": [70, 71, 72], "with_eos": False}),
            ("no_repeat_ngram", {"size": 3}),
        ),
    ),
    case("temperature_schedule", points=[[0, 1.0], [10, 0.2]]),
    case("thinking_budget", budget=5, end_text="</think>"),
    case("stop_at_sentence", after=4, marks="aeiou"),
    case("watermark", key="contract", delta=3.0, width=2),
    case("choice", texts=["yes", "no", "not at all", "perhaps tomorrow"]),
    case("counted", token_ids=[400, 401, 402, 403, 404, 405, 406]),
)


@dataclass(frozen=True)
class Grammar:
    """A formal language; what the model says in it is the model's."""

    name: str
    given: Given
    fits: Callable[[str], object]


ARGUMENTS: dict[str, Any] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
CALLS: dict[str, Any] = {
    "calls": [{"begin": "<f>", "schema": ARGUMENTS, "end": "</f>"}],
    "begin": "<|im_start|>",
    "several": False,
}
"""One call, behind a special token."""
GRAMMARS: tuple[Grammar, ...] = (
    Grammar(
        "regex",
        ("regex", {"pattern": "(yes|no), [0-9]{3}"}),
        re.compile("(yes|no), [0-9]{3}").fullmatch,
    ),
    Grammar(
        "ebnf",
        ("ebnf", {"grammar": 'root ::= "go " dir (" and " dir)?\ndir ::= "left" | "right"'}),
        re.compile("go (left|right)( and (left|right))?").fullmatch,
    ),
    Grammar(
        "json_schema",
        ("json_schema", {"schema": {"enum": ["red", "green", 7]}}),
        {'"red"', '"green"', "7"}.__contains__,
    ),
    Grammar("tagged", ("tagged", CALLS), re.compile(r'<f>\{"ok": (true|false)\}</f>').fullmatch),
)


def engine_answers(
    engine: str,
    model_path: Path,
    named: dict[str, dict[str, Any]],
    *,
    variables: Any = (),
    **more: Any,
) -> tuple[dict[str, Any], str]:
    """What logits_engine.py writes of these requests, its lists by their names; and its log."""
    path = os.pathsep.join([str(HERE.parents[1]), str(HERE), os.environ.get("PYTHONPATH", "")])
    asked = {"engine": engine, "model_path": str(model_path), "requests": [*named.values()], **more}
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "logits_engine.py")],
        input=json.dumps(asked),
        env={**os.environ, "PYTHONPATH": path, **dict(variables)},
        capture_output=True,
        text=True,
        timeout=ENGINE_SECONDS,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    result: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    for each in ("answers", "cached", "scores"):
        result[each] = dict(zip(named, result[each], strict=True))
    return result, finished.stderr


@cache
def model(path: Path) -> Model:
    return Model(**model_files.processor_facts(path))


@cache
def registry() -> Registry:
    return Registry.from_settings(parse(logits_probe.SETTINGS))


def expected(
    asked: Case,
    path: Path,
    prompt: Sequence[int] = PROMPT,
    bias: common_pb2.EmbeddingBias | None = None,
) -> list[int]:
    """Greedily, in one process, with the history as it is."""
    facts = model(path)
    state = RequestLogits.create(registry(), asked.spec, facts, bias=bias)
    generated: list[int] = []
    while len(generated) < LENGTH:
        row = numpy.zeros(facts.vocabulary, dtype=numpy.float32)
        error = state.apply(TokenHistory(prompt, generated), row)
        assert error is None, error
        generated.append(int(row.argmax()))
        if generated[-1] in facts.eos_token_ids:
            break
    return generated
