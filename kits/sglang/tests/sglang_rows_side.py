"""Run in a process of its own by test_sglang_rows.py: how rows are drawn and penalised in SGLang's
scheduler, on SGLang's classes and torch. Prints JSON."""

from __future__ import annotations

import json
import random
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.logprob_processor import OutputLogprobProcessor
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.sampling import sampling_batch_info
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang_units import DEFAULT

from tandem_sglang import penalties, seeds
from tandem_sglang.requests import MADE_KEY
from tandem_sglang.sampler import OwnSampler

VOCABULARY = 203
STEPS = 400
GOOD_SHARE = 0.06
"""That so many draws miss a token of this share has a probability of 2e-11."""


@dataclass
class Asked:
    """A row: its logits, what it samples with, and how many tokens are before it."""

    logits: Any
    params: SamplingParams
    position: int


def a_row(random_: random.Random, generator: torch.Generator, dtype: Any) -> Asked:
    """Any mixture of filters, also neutral ones and those that let in one token or all."""
    params: dict[str, Any] = {"sampling_seed": random_.getrandbits(63)}
    params["temperature"] = random_.choice([0, 0.3, 1, 1, 1.7])
    if random_.random() < 0.4:
        params["top_k"] = random_.choice([1, 2, 7, VOCABULARY, VOCABULARY + 5])
    if random_.random() < 0.4:
        params["top_p"] = random_.choice([1e-6, 0.5, 0.9, 0.999])
    if random_.random() < 0.3:
        params["min_p"] = random_.choice([0.01, 0.2, 0.99])
    logits = torch.randn(VOCABULARY, generator=generator) * random_.choice([0.1, 1, 4])
    logits = logits.to(dtype).to(torch.float32)
    if random_.random() < 0.3:  # a form or a processor allows few tokens
        logits[torch.rand(VOCABULARY, generator=generator) < 0.95] = -torch.inf
        logits[random_.randrange(VOCABULARY)] = 0.5
    return Asked(logits, SamplingParams(**params), random_.randrange(4096))


def request(params: SamplingParams, **more: Any) -> dict[str, Any]:
    """What a batch asks of a request of SGLang's."""
    given = {"sampling_params": params, "custom_logit_processor": None}
    return {**given, "return_sampling_mask": False, "sampling_logprobs_mode": None, **more}


def planned(params: Sequence[SamplingParams]) -> Any:
    """SGLang's SamplingBatchInfo."""
    return Batch([SimpleNamespace(**request(each)) for each in params]).info


def sampled(asked: Sequence[Asked], return_logprob: bool = False) -> Any:
    """Token ids of a batch, and what was written of its log-probabilities, by SGLang's classes."""
    info = planned([each.params for each in asked])
    sampler: Any = OwnSampler.__new__(OwnSampler)
    torch.nn.Module.__init__(sampler)
    sampler._multinomial, sampler._shares = seeds.multinomial_with_seed, False
    sampler.output_logprob_processor = OutputLogprobProcessor()
    output = LogitsProcessorOutput(next_token_logits=torch.stack([each.logits for each in asked]))
    positions = torch.tensor([each.position for each in asked])
    counts = [2] * len(asked)
    token_ids = sampler(output, info, return_logprob, counts, [None] * len(asked), positions)
    return token_ids.tolist(), output


def alone_and_together(dtype: Any) -> Any:
    """How many rows were drawn, and how many otherwise among neighbours than by themselves."""
    random_, generator = random.Random(3), torch.Generator().manual_seed(3)
    rows = others = 0
    for _ in range(60):
        asked = [a_row(random_, generator, dtype) for _ in range(random_.randint(2, 12))]
        together, _ = sampled(asked)
        alone = [sampled([each])[0][0] for each in asked]
        rows += len(asked)
        others += sum(one != other for one, other in zip(together, alone, strict=True))
    return [rows, others]


def rows_do_not_depend_on_neighbours() -> Any:
    return alone_and_together(torch.float32)


def ties_do_not_depend_on_neighbours() -> Any:
    """Of logits that bfloat16 rounds, most are as large as some other."""
    return alone_and_together(torch.bfloat16)


def admitted(asked: Asked) -> set[int]:
    """By the rules in docs/api.md, in float64."""
    params, logits = asked.params, asked.logits.double() / asked.params.temperature
    probabilities = torch.softmax(logits, -1).tolist()
    order = sorted(range(VOCABULARY), key=lambda token: -probabilities[token])
    kept, before = [], 0.0
    for rank, token in enumerate(order):
        if rank >= params.top_k or before > params.top_p + 1e-6:
            break
        if probabilities[token] < params.min_p * probabilities[order[0]] * (1 - 1e-6):
            break
        kept.append(token)
        before += probabilities[token]
    least = asked.logits[kept[-1]].item()
    return {token for token in range(VOCABULARY) if asked.logits[token].item() >= least}


def what_filters_let_in() -> Any:
    """Rows whose draws were outside of what their filters let in, those in which no draw came to a
    token that was let in with a good share, and greedy rows that did not take the first of their
    largest.
    """
    random_, generator = random.Random(5), torch.Generator().manual_seed(5)
    outside = missed = greedy = 0
    for _ in range(40):
        asked = a_row(random_, generator, torch.bfloat16)
        draws = [Asked(asked.logits, asked.params, place) for place in range(STEPS)]
        found = set(sampled(draws)[0])
        if asked.params.top_k == 1:
            greedy += found != {asked.logits.tolist().index(max(asked.logits.tolist()))}
            continue
        allowed = admitted(asked)
        outside += not found <= allowed
        weights = torch.softmax(asked.logits.double() / asked.params.temperature, -1)
        whole = sum(weights[token].item() for token in allowed)
        likely = {token for token in allowed if weights[token].item() > GOOD_SHARE * whole}
        missed += not likely <= found
    return [outside, missed, greedy]


def greedy_rows_are_not_sorted() -> Any:
    """Which filters a batch needs for a greedy row, and for one that draws, beside a plain one."""

    def needed(**params: Any) -> list[bool]:
        info = planned([SamplingParams(**params), SamplingParams()])
        return [info.need_top_k_sampling, info.need_top_p_sampling, info.need_min_p_sampling]

    filters = {"top_k": 5, "top_p": 0.9, "min_p": 0.1}
    return [needed(temperature=0, top_p=0.9, min_p=0.1), needed(**filters)]


def log_probabilities_are_the_logits_own() -> Any:
    """Largest difference to those of the logits, before the temperature, in two kinds of batches;
    and whether the alternatives are the likeliest.
    """
    random_, generator = random.Random(7), torch.Generator().manual_seed(7)
    worst, alternatives = 0.0, True
    greedy = [Asked(torch.randn(VOCABULARY), SamplingParams(temperature=0), 1) for _ in range(3)]
    mixed = [a_row(random_, generator, torch.float32) for _ in range(9)]
    for asked in (greedy, mixed):
        token_ids, output = sampled(asked, return_logprob=True)
        for row, each in enumerate(asked):
            expected = torch.log_softmax(each.logits, -1)
            given = output.next_token_logprobs[row].item()
            worst = max(worst, abs(given - expected[token_ids[row]].item()))
            likeliest = expected.topk(2).values.tolist()
            alternatives &= output.next_token_top_logprobs_val[row].tolist() == likeliest
    return [worst, alternatives]


class Sequence_(SimpleNamespace):
    """As SGLang's request, which plans know before its tokens."""

    @classmethod
    def begun(cls, random_: random.Random) -> Sequence_:
        made = [random_.randrange(VOCABULARY) for _ in range(random_.choice([0, 0, 3]))]
        names = ("frequency_penalty", "presence_penalty")
        params: dict[str, Any] = {name: random_.choice([0, 0.4, -1]) for name in names}
        params["repetition_penalty"] = random_.choice([1, 1.3, 0.8])
        if random_.random() < 0.3:
            params = {}
        if made:
            params["custom_params"] = {MADE_KEY: len(made)}
        given = request(
            SamplingParams(**params),
            origin_input_ids=array("q", [5, 6, 7, *made]),
            output_ids=array("q", []),
            kv=SimpleNamespace(kv_committed_len=0),
        )
        return cls(**given, true=list(made), late=[])

    def sample(self, token: int) -> None:
        """What the engine has drawn, which the scheduler does not know yet."""
        self.true.append(token)
        self.late.append(token)

    def learn(self) -> None:
        self.output_ids.extend(self.late)
        self.late.clear()


@dataclass
class Batch:
    """As SGLang's, as far as penalties are concerned."""

    reqs: list[Any]
    device: str = "cpu"
    spec_algorithm: Any = SpeculativeAlgorithm.NONE
    info: Any = field(init=False)
    overlaps: ClassVar[bool] = True
    """SGLang takes a copy of `info` into each step."""

    def __post_init__(self) -> None:
        self.info = SamplingBatchInfo.from_schedule_batch(self, VOCABULARY)

    def penalised(self, *, decodes: bool) -> Any:
        """What a step makes of rows of logits."""
        rows = torch.linspace(-2, 2, VOCABULARY).repeat(len(self.reqs), 1)
        last = torch.tensor([each.true[-1] if each.true else 0 for each in self.reqs])
        forward = SimpleNamespace(
            sampling_info=self.info.copy_for_forward() if self.overlaps else self.info,
            forward_mode=SimpleNamespace(is_decode=lambda: decodes),
            input_ids=torch.cat([last, last.new_full((len(last) % 3,), 7)]),  # padding behind
        )
        ModelRunner.sample(None, rows, forward)
        return rows


def expected_row(sequence: Sequence_) -> Any:
    params, row = sequence.sampling_params, torch.linspace(-2, 2, VOCABULARY)
    for token, count in Counter(sequence.true).items():
        value = row[token].item() - params.frequency_penalty * count - params.presence_penalty
        penalty = params.repetition_penalty
        row[token] = value * penalty if value < 0 else value / penalty
    return row


def penalties_count_what_was_put_out() -> Any:
    """Steps, and the largest difference of a logit: sequences begin here, in another engine or in
    prefill, join and leave, and what they put out is known late or at once.
    """
    random_, worst, steps = random.Random(11), 0.0, 0
    ModelRunner.sample = _applies
    penalties.count_outputs(DEFAULT)
    for scenario in range(30):
        Batch.overlaps = scenario % 2 == 0
        running: Batch | None = None
        for _ in range(12):
            if random_.random() < 0.5 or running is None:
                joining = [Sequence_.begun(random_) for _ in range(random_.randint(1, 3))]
                running, error = _begin(joining, running, random_)
                worst = max(worst, error)
            if random_.random() < 0.3:
                _leave(running, random_)
            worst = max(worst, _decode(running, random_))
            steps += 1
    return [steps, worst]


def _applies(self: Any, rows: Any, forward: Any) -> None:
    """SGLang's ModelRunner.sample, up to the logits."""
    forward.sampling_info.apply_logits_bias(rows)


def _begin(joining: list[Any], running: Batch | None, random_: random.Random) -> Any:
    """Their first tokens come of a prefill here, or of another worker's."""
    worst = 0.0
    here = random_.random() < 0.5
    for each in joining:
        each.kv.kv_committed_len = len(each.origin_input_ids)
        if not here:
            each.sample(random_.randrange(VOCABULARY))
            each.learn()
    batch = Batch(joining)
    if here:
        worst = _difference(batch, decodes=False)
        for each in joining:
            each.sample(random_.randrange(VOCABULARY))
    if running is None:
        return batch, worst
    running.info.merge_batch(batch.info)
    running.reqs += batch.reqs
    return running, worst


def _leave(running: Batch, random_: random.Random) -> None:
    kept = [place for place in range(len(running.reqs)) if random_.random() < 0.7]
    if not kept or len(kept) == len(running.reqs):
        return
    running.reqs = [running.reqs[place] for place in kept]
    running.info.filter_batch(kept, torch.tensor(kept))


def _decode(running: Batch, random_: random.Random) -> float:
    if random_.random() < 0.5:  # the result before is known already
        for each in running.reqs:
            each.learn()
    if running.info.penalizer_orchestrator.is_required:
        running.info.penalizer_orchestrator.cumulate_output_tokens(None)
    for each in running.reqs:
        each.kv.kv_committed_len += 1
        each.learn()
    worst = _difference(running, decodes=True)
    for each in running.reqs:
        each.sample(random_.randrange(20))
    return worst


def _difference(batch: Batch, *, decodes: bool) -> float:
    found = batch.penalised(decodes=decodes)
    wanted = torch.stack([expected_row(each) for each in batch.reqs])
    return float((found - wanted).abs().max())


CHECKS: tuple[Callable[[], Any], ...] = (
    rows_do_not_depend_on_neighbours,
    ties_do_not_depend_on_neighbours,
    what_filters_let_in,
    greedy_rows_are_not_sorted,
    log_probabilities_are_the_logits_own,
    penalties_count_what_was_put_out,
)


def _settings() -> Any:
    """What SGLang's sampler asks of a server."""
    off = SimpleNamespace(enable_deterministic_inference=False, enable_custom_logit_processor=False)
    return SimpleNamespace(deterministic=off, features=off)


if __name__ == "__main__":
    sampling_batch_info.get_exec = _settings
    seeds.seed_every_row(DEFAULT)
    answers = {check.__name__: check() for check in CHECKS}
    sys.stdout.write("\n" + json.dumps(answers))
