"""A pair of workers on one GPU: how long its first requests take once it is ready, and whether
answers hold alone and among neighbours.

Starts `tandem up`'s processes, asks ten requests one after the other, then some with seeds at
temperature 1, with a logits processor and with log-probabilities of the prompt, each alone and then
among 32 neighbours of every kind. Exits with 1 where the first request is slow, or an answer
another one than alone.

    python benchmarks/gpu/serving.py --engine-option mem_fraction_static=0.2
    python benchmarks/gpu/serving.py --device cpu --engine-option dtype=float32 --requests 8
    python benchmarks/gpu/serving.py --engine sim
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gpu

from tandem.cli.client import ApiError, Client
from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack
from tandem.logits.spec import FORCED_SEQUENCE

MODEL = Path(__file__).resolve().parents[2] / "model" / "tandem-tiny"
TENTH, FACTOR = 10, 1.5
"""The first of ten requests may take so many times what the tenth takes: a worker is ready, by
default, only after requests of its own."""
READY_SECONDS = 600.0
TEXT = "The assert statement of Python is used where a program wants to be sure of something, and"
KINDS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 1, "seed": 11},
    "seeded, top_p": {"temperature": 1, "seed": 12, "top_p": 0.8},
    "seeded, top_k": {"temperature": 1, "seed": 13, "top_k": 20},
    "seeded, min_p": {"temperature": 1, "seed": 14, "min_p": 0.1},
    "processor": {
        "temperature": 1,
        "seed": 15,
        "logits_processors": [{"name": "repetition_penalty", "args": {"penalty": 1.3}}],
    },
    "prompt's log-probabilities": {"temperature": 0, "prompt_logprobs": 1},
}
NEIGHBOURS, STREAMS = 32, 64
FAILED = "failed: "


def first_requests(client: Client, model: str) -> list[dict[str, float]]:
    """Milliseconds to the first token and to the last, of ten requests one after the other."""
    found = []
    for number in range(TENTH):
        body = {"model": model, "prompt": f"{number} {TEXT}", "max_tokens": 32, "temperature": 1}
        began, first = time.perf_counter(), 0.0
        for event in client.stream("/v1/completions", body):
            if not first and event.get("choices"):
                first = time.perf_counter() - began
        found.append({"ttft_ms": first * 1e3, "ms": (time.perf_counter() - began) * 1e3})
    return found


def answer(client: Client, model: str, kind: str) -> str:
    """The text of an answer, or how it failed."""
    body = {"model": model, "prompt": TEXT, "max_tokens": 32, **KINDS[kind]}
    try:
        choice = client.post("/v1/completions", body)["choices"][0]
    except ApiError as error:
        return f"{FAILED}{error}"
    return str(choice["text"])


def alone_and_together(client: Client, model: str) -> list[list[object]]:
    """For each kind: how many answers it gave among neighbours, and how many of them are the one
    that it gave alone; none, where that failed.
    """
    alone = {kind: answer(client, model, kind) for kind in KINDS}
    asked = [kind for kind in KINDS for _ in range(NEIGHBOURS // len(KINDS) + 1)]
    with ThreadPoolExecutor(len(asked)) as pool:
        together = list(pool.map(lambda kind: answer(client, model, kind), asked))
    cells: list[list[object]] = []
    for kind in KINDS:
        others = [text for each, text in zip(asked, together, strict=True) if each == kind]
        if alone[kind].startswith(FAILED):
            cells.append([kind, len(others), 0, alone[kind]])
        else:
            same = sum(text == alone[kind] for text in others)
            cells.append([kind, len(others), same, repr(alone[kind][:30])])
    return cells


def load(url: str, model: str, requests: int) -> str:
    """What benchmarks/load.py says of many streams at once."""
    script = Path(__file__).resolve().parents[1] / "load.py"
    given = ["--address", url.partition("//")[2], "--model", model, "--requests", str(requests)]
    command = [sys.executable, str(script), "--streams", str(STREAMS), *given]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


def verdict(
    found: Sequence[Mapping[str, float]], cells: Sequence[Sequence[object]], factor: float
) -> tuple[bool, str]:
    """Whether all held, and what did: readiness, which must not come too early, and answers, which
    must not depend on their neighbours.
    """
    first, tenth = found[0], found[-1]
    ratio = first["ms"] / tenth["ms"]
    early = ratio > factor
    other = [f"{kind} ({same} of {count})" for kind, count, same, _text in cells if same != count]
    return not early and not other, (
        f"Verdict: the first request took {first['ms']:.0f} ms, {first['ttft_ms']:.0f} to its "
        f"first token, and the tenth {tenth['ms']:.0f}, {tenth['ttft_ms']:.0f}: {ratio:.2f} times, "
        f"where {factor:g} may be: {'MISSED' if early else 'held'}. Answers among neighbours are "
        f"those given alone: {'MISSED by ' + ', '.join(other) if other else 'held'}."
    )


def main() -> None:
    parser = gpu.parser(__doc__)
    parser.add_argument("--engine", choices=("sglang", "sim"), default="sglang")
    parser.add_argument("--engine-option", action="append", default=[])
    parser.add_argument("--run-dir", type=Path, help="folder for the logs")
    parser.add_argument(
        "--factor",
        type=float,
        default=FACTOR,
        help="largest ratio of the first request's time to the tenth's",
    )
    parser.add_argument(
        "--requests", type=int, default=512, help="streams of the load that comes last"
    )
    asked = parser.parse_args()
    chosen = asked.engine_option
    if asked.engine == "sglang":
        chosen = [f"device={asked.device}", *chosen]
    options = StackOptions(
        engine=asked.engine,
        model_path=MODEL,
        engine_options=tuple(chosen),
        flags={"frontend": (f"--client-logits-processors=repetition_penalty,{FORCED_SEQUENCE}",)},
    )
    where = gpu.describe(asked.device, "sglang", "nixl-cu13")
    print(f"Measured on {where}; {asked.engine} {' '.join(chosen)}.\n", flush=True)
    with Stack(options, run_dir=asked.run_dir or Path(tempfile.mkdtemp())) as stack:
        ready = stack.wait_ready(timeout_seconds=READY_SECONDS)
        client = Client(stack.url)
        model = client.get("/v1/models")["data"][0]["id"]
        found = first_requests(client, model)
        sys.stderr.write(f"ready after {ready:.1f} s; {found}\n")
        cells = alone_and_together(client, model)
        loaded = load(stack.url, model, asked.requests)
    rows = [[number + 1, each["ttft_ms"], each["ms"]] for number, each in enumerate(found)]
    print(f"Ready after {ready:.1f} s.\n")
    print(gpu.table(["request", "to its first token, ms", "to its last, ms"], rows), end="\n\n")
    print(gpu.table(["kind", "among neighbours", "as alone", "text"], cells), end="\n\n")
    print(f"{STREAMS} streams of 128 tokens: {loaded}\n")
    held, said = verdict(found, cells, asked.factor)
    print(said)
    gpu.report(asked.json, machine=where, ready_seconds=ready, first=found, together=cells)
    sys.exit(not held)


if __name__ == "__main__":
    main()
