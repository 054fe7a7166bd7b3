"""Speculative decoding through a pair of workers on one GPU: whether its greedy answers part from
those given without at near ties alone, whether answers keep their form, and how many tokens a step
gives.

Starts `tandem up`'s processes once without drafts, and once for each algorithm: NGRAM, which drafts
from what it has seen, and STANDALONE, for which the model drafts for itself. A step of several
tokens rounds otherwise than one of a single token, so an answer may part from the other where two
tokens are about as likely. Exits with 1 where one parts elsewhere, or does not keep its form.

    python benchmarks/gpu/drafts.py --engine-option mem_fraction_static=0.2
    python benchmarks/gpu/drafts.py --device cpu --drafts none
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpu
from prometheus_client.parser import text_string_to_metric_families

from tandem.cli.client import Client
from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack

MODEL = Path(__file__).resolve().parents[2] / "model" / "tandem-tiny"
READY_SECONDS = 600.0
CASES: Mapping[str, Mapping[str, object]] = {
    "none": {},
    "NGRAM": {"speculative_algorithm": "NGRAM"},
    "STANDALONE": {
        "speculative_algorithm": "STANDALONE",
        "speculative_draft_model_path": str(MODEL),
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
    },
}
TEXT = "The assert statement of Python is used where a program wants to be sure of something, and"
FREE, FORMED = 8, 8
"""Answers, all asked for at once."""
AGES = [3, 21, 108]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"enum": AGES}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TIE = 0.1
"""Two tokens whose log-probabilities are no further apart are about as likely: it is a step of a
logit in bfloat16."""
ACCEPTED = "tandem_engine_accept_length"


@dataclass(frozen=True)
class Answer:
    """The tokens of a free answer, as text, and of each by how much it is likelier than any other,
    in natural logarithms."""

    tokens: Sequence[str]
    leads: Sequence[float]


@dataclass(frozen=True)
class Found:
    """What a stack answered. `accepted`: tokens that a step gave a sequence, as SGLang says."""

    ready_seconds: float
    free: Sequence[Answer]
    formed: Sequence[str]
    accepted: float


def fits(text: str) -> bool:
    """Whether this is what `SCHEMA` asks for."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(value, dict)
        and value.keys() == {"name", "age"}
        and isinstance(value["name"], str)
        and len(value["name"]) <= 12
        and value["age"] in AGES
    )


def answers(client: Client, model: str) -> tuple[list[Answer], list[str]]:
    """The free ones and those with a form, which share their steps."""
    shape = {"model": model, "max_tokens": 64, "temperature": 0}

    def free(number: int) -> Answer:
        body = {**shape, "prompt": f"{number} {TEXT}", "ignore_eos": True, "logprobs": 2}
        said = client.post("/v1/completions", body)["choices"][0]["logprobs"]
        return Answer(said["tokens"], [_lead(each) for each in said["top_logprobs"]])

    def formed(number: int) -> str:
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
        messages = [{"role": "user", "content": f"{number} {TEXT}"}]
        body = {**shape, "messages": messages, "response_format": form}
        return str(client.post("/v1/chat/completions", body)["choices"][0]["message"]["content"])

    with ThreadPoolExecutor(FREE + FORMED) as pool:
        some, others = pool.map(free, range(FREE)), pool.map(formed, range(FORMED))
        return list(some), list(others)


def _lead(likeliest: Mapping[str, float]) -> float:
    first, *others = sorted(likeliest.values(), reverse=True)
    return first - others[0] if others else 0.0


def parted(plain: Answer, drafted: Answer) -> float:
    """How much likelier the first token was that only one of them has; 0 where all are the same."""
    pairs = zip(plain.tokens, drafted.tokens, plain.leads, strict=True)
    return next((lead for one, other, lead in pairs if one != other), 0.0)


def accepted(metrics: str) -> float:
    """What the worker whose metrics are at this address says of it; without drafts 1."""
    families = text_string_to_metric_families(Client(metrics).text("/metrics"))
    samples = (each for family in families for each in family.samples)
    return max((each.value for each in samples if each.name == ACCEPTED), default=1.0)


def run(options: Sequence[str], drafts: Mapping[str, object]) -> Found:
    """A stack with these engine options and drafts, until it has answered."""
    chosen = [*options, *([f"server_args={json.dumps(drafts)}"] if drafts else [])]
    asked = StackOptions(model_path=MODEL, engine_options=tuple(chosen))
    with Stack(asked, run_dir=Path(tempfile.mkdtemp())) as stack:
        ready = stack.wait_ready(timeout_seconds=READY_SECONDS)
        client = Client(stack.url)
        free, formed = answers(client, client.get("/v1/models")["data"][0]["id"])
        return Found(
            ready, free, formed, accepted(stack.components["decode_worker-0"].launch.metrics)
        )


def cells(found: Mapping[str, Found]) -> list[list[object]]:
    """A row of figures for each case."""
    plain = found["none"].free
    rows: list[list[object]] = []
    for name, each in found.items():
        leads = list(map(parted, plain, each.free))
        same = sum(one.tokens == other.tokens for one, other in zip(plain, each.free, strict=True))
        kept = sum(map(fits, each.formed))
        rows.append([name, each.ready_seconds, same, round(max(leads), 3), kept, each.accepted])
    return rows


def verdict(rows: Sequence[Sequence[Any]]) -> tuple[bool, str]:
    """Whether all held, and what did not."""
    missed = [name for name, _, _, lead, kept, _ in rows if lead > TIE or kept != FORMED]
    how = f"MISSED with {', '.join(missed)}" if missed else "held"
    return not missed, (
        f"Verdict: with drafts, answers part from those given without at near ties alone, and keep "
        f"their form: {how}."
    )


def main() -> None:
    parser = gpu.parser(__doc__)
    parser.add_argument("--engine-option", action="append", default=[])
    parser.add_argument("--drafts", choices=list(CASES), action="append", help="only these")
    asked = parser.parse_args()
    options = [f"device={asked.device}", *asked.engine_option]
    where = gpu.describe(asked.device, "sglang", "nixl-cu13")
    print(f"Measured on {where}; {' '.join(options)}.\n", flush=True)
    found = {}
    for name in dict.fromkeys(["none", *(asked.drafts or CASES)]):
        found[name] = run(options, CASES[name])
        sys.stderr.write(f"{name} is done\n")
    rows = cells(found)
    same, form = f"as without, of {FREE}", f"in form, of {FORMED}"
    head = ["drafts", "ready after, s", same, "parted by", form, "tokens a step"]
    print(gpu.table(head, rows), end="\n\n")
    held, said = verdict(rows)
    print(said)
    gpu.report(asked.json, machine=where, drafts=rows)
    sys.exit(not held)


if __name__ == "__main__":
    main()
