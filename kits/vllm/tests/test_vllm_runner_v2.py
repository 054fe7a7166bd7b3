"""The class for vLLM's V2 model runner: with a stand-in for that runner, and in the runner itself,
whose kernels Triton's interpreter runs in a process of its own.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy
import pytest
from vllm_stand_ins import EOS, VOCABULARY, request

from tandem.errors import StartError
from tandem.logits.registry import Registry
from tandem.logits.spec import forced_token_sequence
from tandem_vllm import launch, requests, rows
from tandem_vllm.options import ModelRunner

HERE = Path(__file__).parent
INTERPRETER = HERE.parents[1] / "vllm-cpu" / "interpreter"
INTERFACE = "vllm.v1.worker.gpu.sample.logits_processor.interface"
SLOTS, LONGEST = 4, 32
FORCED = forced_token_sequence([30, 31, 32, 33], EOS)
CASES = [
    each.name
    for each in ast.parse((HERE / "v2_cases.py").read_text()).body
    if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")
]


class Runner:
    """What the class sees of vLLM's runner: slots, and the tokens that they hold."""

    def __init__(self, made: Any) -> None:
        self.tokens = numpy.zeros((SLOTS, LONGEST), dtype=numpy.int32)
        self.prompts = numpy.zeros(SLOTS, dtype=numpy.int32)
        self.prefills = numpy.zeros(SLOTS, dtype=numpy.int32)
        self.lengths = numpy.zeros(SLOTS, dtype=numpy.int32)
        steering = {
            "registry": Registry.builtin().portable(),
            "model": {"vocabulary": VOCABULARY, "eos_token_ids": [EOS]},
            "notes": "nowhere",
        }
        config = SimpleNamespace(additional_config={requests.STEERING: steering})
        states = SimpleNamespace(
            all_token_ids=SimpleNamespace(gpu=self.tokens),
            prompt_len=SimpleNamespace(np=self.prompts),
            prefill_len=SimpleNamespace(np=self.prefills),
        )
        self.processor = made(config, states)

    def add(self, slot: int, *, outputs: Any = (), spec: Any = (), first: int | None = None) -> Any:
        asked = request(slot + 1)
        tokens = [*asked.context, *outputs]
        self.tokens[slot, : len(tokens)] = tokens
        self.prompts[slot], self.prefills[slot] = len(asked.context), len(tokens)
        self.lengths[slot] = len(tokens)
        given = requests.steering(asked, spec=spec, first=first)
        extra = {} if given is None else {requests.STEERING: given}
        return self.processor.add_request(slot, SimpleNamespace(extra_args=extra or None))

    def step(self, *slots: int, computed: int = LONGEST) -> list[int]:
        """Which token each row would draw. A sequence then has it, where its prompt is complete."""
        lengths = numpy.minimum(self.lengths[list(slots)], computed)
        context = SimpleNamespace(
            idx_mapping_np=numpy.array(slots),
            seq_lens_upper_bound_np=numpy.append(lengths, 0),  # vLLM's has places to spare
            input_ids=self.tokens[list(slots), lengths - 1],
        )
        logits = numpy.tile(-numpy.arange(VOCABULARY, dtype=numpy.float32), (len(slots), 1))
        drawn = self.processor.apply(logits, context).argmax(axis=1).tolist()
        for slot, token in zip(slots, drawn, strict=True):
            if self.lengths[slot] <= computed:
                self.tokens[slot, self.lengths[slot]] = token
                self.lengths[slot] += 1
        return list(drawn)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    interface: Any = ModuleType(INTERFACE)
    interface.LogitsProcessor = object
    monkeypatch.setitem(sys.modules, INTERFACE, interface)
    monkeypatch.delitem(sys.modules, "tandem_vllm.processor_v2", raising=False)
    module = importlib.import_module("tandem_vllm.processor_v2")
    notes = SimpleNamespace(failed=lambda *_: None)
    monkeypatch.setattr(rows, "NoteWriter", lambda _: notes)
    yield Runner(module.TandemLogitsProcessorV2)
    del sys.modules["tandem_vllm.processor_v2"]


@pytest.mark.promise("S5-880")
def test_a_row_is_steered_as_its_slot_wants(runner: Runner) -> None:
    assert runner.add(2, spec=[FORCED]) is True
    assert runner.add(0) is False
    runner.add(1, first=42)
    assert runner.step(0, 2, 1) == [0, 30, 42]
    assert runner.step(1, 2) == [0, 31]
    assert runner.step(2) == [32]


@pytest.mark.promise("S5-880")
def test_a_slot_that_is_given_on_keeps_nothing(runner: Runner) -> None:
    runner.add(0, spec=[FORCED])
    runner.add(1, spec=[FORCED])
    assert runner.step(0, 1) == [30, 30]
    runner.add(0)
    runner.add(1, spec=[FORCED])
    assert runner.step(0, 1) == [0, 30]
    runner.add(1, spec=[FORCED], outputs=[30])
    assert runner.step(0, 1) == [0, 31]


@pytest.mark.promise("S5-880")
def test_a_request_that_comes_back_has_what_it_had_generated(runner: Runner) -> None:
    runner.add(0, spec=[FORCED], outputs=[30, 31])
    runner.add(1, first=42, outputs=[42])
    assert runner.step(0, 1) == [32, 0]


@pytest.mark.promise("S5-880")
def test_a_row_whose_prompt_is_not_complete_is_nobodys(runner: Runner) -> None:
    runner.add(0, spec=[FORCED])
    assert runner.step(0, computed=2) == [0]
    assert runner.step(0) == [30]


@pytest.mark.promise("S5-880")
def test_a_sequence_that_grew_unseen_is_read_anew(runner: Runner) -> None:
    runner.add(0, spec=[FORCED])
    assert runner.step(0) == [30]
    runner.tokens[0, runner.lengths[0]] = 31
    runner.lengths[0] += 1
    assert runner.step(0) == [32]


@pytest.mark.promise("S5-882")
def test_a_release_without_processors_of_the_runner_is_refused_by_the_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, INTERFACE.rpartition(".")[0], None)
    assert launch._of_runner(ModelRunner.V1) == []
    with pytest.raises(StartError, match="engine option model_runner"):
        launch._of_runner(ModelRunner.V2)


@pytest.fixture(scope="module")
def said() -> Mapping[str, str]:
    """What was wrong in each case with vLLM's own runner."""
    path = os.pathsep.join([str(INTERPRETER), str(HERE), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", "import v2_cases; v2_cases.main()"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: Mapping[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.vllm
@pytest.mark.promise("S5-880")
@pytest.mark.promise("S5-881")
@pytest.mark.parametrize("case", CASES)
def test_in_vllms_own_runner(case: str, said: Mapping[str, str]) -> None:
    assert said[case] == ""
