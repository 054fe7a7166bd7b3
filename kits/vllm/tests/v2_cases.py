"""Run by test_vllm_runner_v2.py, in Triton's interpreter: vLLM's V2 model runner without a model.
Requests come, are computed, put out and ended by the runner's own methods and kernels. Prints what
was wrong, by case, as JSON.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy
import torch
import vllm.v1.worker.cpu.shm  # noqa: F401 - as vLLM's worker for CPUs does, before the runner
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.worker.gpu.input_batch import InputBuffers
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.sample.logits_processor import build_custom_logits_processors
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.states import RequestState
from vllm_stand_ins import EOS, VOCABULARY, request

from tandem.engine.base import Role
from tandem.logits.history import TokenHistory
from tandem.logits.registry import Registry
from tandem.logits.spec import LogitsProcessorEntry, forced_token_sequence
from tandem_vllm import requests
from tandem_vllm.notes import NoteReader

SLOTS, LONGEST = 4, 64
FORCED = forced_token_sequence([30, 31, 32, 33], EOS)
PROMPT = [5, 6, 7]


class Raising:
    needs = frozenset()  # type: ignore[var-annotated]

    def __call__(self, history: TokenHistory, logits: Any) -> None:
        if history.position == 1:
            raise RuntimeError("secret of a prompt")


class Nothing:
    """The parts of a runner that are not looked at: they take everything and do nothing."""

    num_new_sampled_tokens_per_step = 1

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_, **__: None


class Runner:
    """vLLM's GPUModelRunner, whose model always says the same: token 0 is likeliest, then 1."""

    add_requests = GPUModelRunner.add_requests
    finish_requests = GPUModelRunner.finish_requests
    gather_batch_req_state = GPUModelRunner.gather_batch_req_state
    postprocess_sampled = GPUModelRunner.postprocess_sampled
    prepare_inputs = GPUModelRunner.prepare_inputs
    update_requests = GPUModelRunner.update_requests
    _remove_request = GPUModelRunner._remove_request

    is_last_pp_rank, use_pp = True, False
    max_num_reqs, decode_query_len = SLOTS, 1
    adaptive_verification = encoder_cache = fast_prefill = None
    pcp_manager = pooling_runner = pp_handler = None

    def __init__(self, registry: Registry) -> None:
        self.device = torch.device("cpu")
        self.model_state = self.block_tables = self.lora_state = Nothing()
        self.prompt_logprobs_worker = Nothing()
        self.model_config = SimpleNamespace(rswa_window=None)
        self.notes = NoteReader()
        steering = {
            "registry": registry.portable(),
            "model": {"vocabulary": VOCABULARY, "eos_token_ids": [EOS]},
            "notes": self.notes.address,
        }
        config: Any = SimpleNamespace(
            reasoning_config=None, additional_config={requests.STEERING: steering}
        )
        given = (SLOTS, LONGEST, LONGEST, 0, VOCABULARY, self.device)
        self.req_states = RequestState(*given)
        self.input_buffers = InputBuffers(SLOTS, LONGEST, self.device)
        processors = build_custom_logits_processors(
            config, self.req_states, False, ["tandem_vllm.processor_v2:TandemLogitsProcessorV2"]
        )
        self.sampler = Sampler(
            config,
            SLOTS,
            VOCABULARY,
            self.device,
            self.req_states,
            custom_logits_processors=processors,
        )
        self.drawn: list[int] = []
        """What the last step drew, also where nobody gets that."""
        self._new: list[NewRequestData] = []
        self._left: dict[str, int] = {}
        """By name, how many tokens of a request are not computed."""
        self._tokens: dict[str, list[int]] = {}

    def add(self, number: int, spec: Any = (), first: int | None = None, **given: Any) -> None:
        asked = request(number, **{"token_ids": PROMPT, "ignore_eos": True, **given})
        params = SamplingParams(
            **requests.sampling(
                asked, role=Role.DECODE, eos_token_ids=frozenset(), spec=spec, first=first
            )
        )
        self._enter(requests.name(number), asked.context, asked.context, params)

    def _enter(
        self, name: str, prompt: Sequence[int], tokens: Sequence[int], params: SamplingParams
    ) -> None:
        self._tokens[name] = list(tokens)
        self._left[name] = len(tokens)
        self._new.append(
            NewRequestData(
                req_id=name,
                prompt_token_ids=list(prompt),
                mm_features=[],
                sampling_params=params,
                pooling_params=None,
                block_ids=([],),
                num_computed_tokens=0,
                lora_request=None,
                prefill_token_ids=list(tokens),
            )
        )

    def put_out(self, number: int) -> None:
        """For want of memory; and back, with what it has."""
        name = requests.name(number)
        given = self._given[name]
        self.end(number, preempted=True)
        self._enter(name, given.prompt_token_ids, self._tokens[name], given.sampling_params)

    def end(self, number: int, *, preempted: bool = False) -> None:
        output = SchedulerOutput.make_empty()
        names = {requests.name(number)}
        output.preempted_req_ids = names if preempted else set()
        output.finished_req_ids = set() if preempted else names
        self.finish_requests(output)

    def step(self, *numbers: int, tokens: int = LONGEST) -> dict[int, int]:
        """Compute so many tokens of each of these at most. Returns what each was given."""
        output = SchedulerOutput.make_empty()
        output.scheduled_new_reqs, self._new = self._new, []
        self._given = getattr(self, "_given", {}) | {
            each.req_id: each for each in output.scheduled_new_reqs
        }
        fresh = {each.req_id for each in output.scheduled_new_reqs}
        names = [requests.name(number) for number in numbers]
        output.num_scheduled_tokens = {name: min(self._left[name], tokens) for name in names}
        output.total_num_scheduled_tokens = sum(output.num_scheduled_tokens.values())
        cached = output.scheduled_cached_reqs
        cached.req_ids = [name for name in names if name not in fresh]
        cached.num_computed_tokens = [
            len(self._tokens[name]) - self._left[name] for name in cached.req_ids
        ]
        cached.new_block_ids = [None for _ in cached.req_ids]
        self.add_requests(output)
        self.update_requests(output)
        return self._draw(output)

    def _draw(self, output: SchedulerOutput) -> dict[int, int]:
        batch_state, _ = self.gather_batch_req_state(output, False)
        shape: Any = SimpleNamespace(num_tokens=0, num_reqs=None)
        batch = self.prepare_inputs(output, batch_state, shape, 0)
        row = -torch.arange(VOCABULARY, dtype=torch.float32)
        made = self.sampler(row.repeat(batch.num_reqs, 1), batch)
        self.postprocess_sampled(
            batch.idx_mapping,
            made.sampled_token_ids,
            made.num_sampled,
            made.num_rejected,
            batch.query_start_loc,
        )
        self.drawn = made.sampled_token_ids[:, 0].tolist()
        found = {}
        for name, token, count in zip(batch.req_ids, self.drawn, made.num_sampled, strict=True):
            self._left[name] -= output.num_scheduled_tokens[name]
            if count:
                found[int(name.partition("-")[2])] = token
                self._tokens[name].append(token)
                self._left[name] += 1
        return found


def test_prefills_token_comes_first_and_no_other_row_knows(runner: Runner) -> None:
    runner.add(1, first=42)
    runner.add(2)
    runner.add(3, first=43, spec=[FORCED], frequency_penalty=1.0)
    assert runner.step(1, 2, 3) == {1: 42, 2: 0, 3: 43}
    assert runner.step(1, 2, 3) == {1: 0, 2: 0, 3: 31}
    alone = [runner.req_states.req_id_to_index[requests.name(number)] for number in (1, 2)]
    assert runner.sampler.needs_logits_processing[alone].tolist() == [True, False]


def test_a_request_is_steered_wherever_its_row_is(runner: Runner) -> None:
    runner.add(1, spec=[FORCED])
    assert runner.step(1) == {1: 30}
    runner.add(2, token_ids=[9] * 20, spec=[forced_token_sequence([60, 61], EOS)])
    runner.add(3, first=44)
    assert runner.step(2, 3) == {2: 60, 3: 44}
    assert runner.step(3, 2, 1) == {1: 31, 2: 61, 3: 0}
    runner.end(3)
    runner.add(4, first=45)
    assert runner.step(4, 1) == {1: 32, 4: 45}


def test_a_slot_forgets_whose_it_was(runner: Runner) -> None:
    for number in range(1, SLOTS + 1):
        runner.add(number, spec=[FORCED])
    every = range(1, SLOTS + 1)
    assert set(runner.step(*every).values()) == {30}
    assert set(runner.step(*every).values()) == {31}
    for number in (1, 2):
        runner.end(number)
    runner.add(8)
    runner.add(9, spec=[FORCED])
    assert runner.step(8, 9, 3) == {8: 0, 9: 30, 3: 32}


def test_a_request_that_was_put_out_goes_on_where_it_was(runner: Runner) -> None:
    runner.add(1, spec=[FORCED])
    runner.add(2, first=42)
    runner.step(1, 2)
    assert runner.step(1, 2) == {1: 31, 2: 0}
    for number in (1, 2):
        runner.put_out(number)
    assert runner.step(1, 2) == {1: 32, 2: 0}
    assert runner.step(1, 2) == {1: 33, 2: 0}


def test_a_row_of_half_a_prompt_is_nobodys(runner: Runner) -> None:
    runner.add(1, spec=[FORCED])
    assert runner.step(1, tokens=2) == {}
    assert runner.drawn == [0]
    assert runner.step(1, tokens=2) == {1: 30}
    assert runner.step(1, tokens=2) == {1: 31}


def test_a_processor_that_raises_ends_its_own_request_once(runner: Runner) -> None:
    runner.add(1, spec=[LogitsProcessorEntry("raising")])
    runner.add(2, spec=[FORCED])
    runner.step(1, 2)
    assert runner.notes.read() == {}
    assert runner.step(1, 2)[2] == 31
    ((name, error),) = runner.notes.read().items()
    assert (name, type(error).__name__) == ("tandem-1", "ProcessorError")
    assert "secret" not in error.message
    assert runner.step(1, 2)[2] == 32
    assert runner.notes.read() == {}


def test_penalties_come_behind_the_bias_and_count_what_another_engine_made(
    runner: Runner,
) -> None:
    runner.add(1, frequency_penalty=1.5)
    runner.add(2, frequency_penalty=1.5, made=[0])
    runner.add(3, repetition_penalty=2.0, logit_bias={5: 9.0})  # 4.0 of 5, which the prompt has
    drawn = [runner.step(1, 2, 3) for _ in range(4)]
    assert [each[1] for each in drawn] == [0, 1, 0, 2]
    assert [each[2] for each in drawn] == [1, 0, 2, 1]
    assert [each[3] for each in drawn] == [5] * 4


def test_a_seed_draws_behind_what_was_made_as_if_nothing_had_happened(runner: Runner) -> None:
    drawn = {"temperature": 2.0, "seed": 7, "max_tokens": 20}
    runner.add(1, **drawn)
    whole = [runner.step(1)[1] for _ in range(12)]
    assert len(set(whole)) > 3
    runner.add(2, made=whole[:5], **drawn)
    assert [runner.step(2)[2] for _ in range(7)] == whole[5:]


def main() -> None:
    registry = Registry.builtin()
    registry.register("raising", Raising)
    wrong = {}
    for name, case in list(globals().items()):
        if name.startswith("test_"):
            try:
                case(Runner(registry))
                wrong[name] = ""
            except Exception:  # noqa: BLE001 - whatever it is, it is told
                wrong[name] = traceback.format_exc()
    json.dump(wrong, sys.stdout)


numpy.seterr(all="ignore")  # what a GPU's arithmetic does not say
