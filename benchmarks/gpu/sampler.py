"""What it costs to draw a step's tokens by their seeds, and whether a row draws alone what it draws
among others.

Each way draws for a batch of rows of 128,256 float32 logits at temperature 0.8: as SGLang draws
without seeds, as it draws with them, and as Tandem does. `filtered`: with top_k 50 and top_p 0.95.
Then each row is drawn alone and compared, where neighbours differ in their filters and some are
greedy. Last, rows of one matrix product alone and together: what a model's arithmetic does of that.
Exits with 1 where the figures speak against the default of the engine option seeded_sampling.

    python benchmarks/gpu/sampler.py
    python benchmarks/gpu/sampler.py --device cpu --vocabulary 4096 --rows 2,4

The ways of SGLang and of Tandem need SGLang; without it only PyTorch's own are shown.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import gpu
import torch

from tandem_sglang.options import Options

ROWS = (64, 256)
VOCABULARY = 128_256
HIDDEN = 4096
TOP_K, TOP_P, TEMPERATURE = 50, 0.95, 0.8
TANDEMS = "Tandem, seeded"
FLASHINFERS, PYTORCHS = "SGLang's FlashInfer, unseeded", "SGLang's PyTorch, unseeded"
UNSEEDED = (FLASHINFERS, PYTORCHS)
"""What seeded_sampling=false lets draw: the first of them that is there."""
FACTOR = 1.5
"""A step's draw by seeds may take so many times what it takes without."""
ALONE_STEPS = 4
"""Batches of other seeds that rows are compared in."""
without_gpu = functools.partial(mock.patch, "torch.cuda.is_available", return_value=False)
Way = Callable[[Any, Any], Any]
"""From logits, (rows, vocabulary), and the rows' parameters to token ids, (rows,)."""


def parameters(rows: int, vocabulary: int, device: str, filtered: bool) -> SimpleNamespace:
    """What the samplers read of a batch, with SGLang's names."""
    full = {"device": device}
    top_ks = torch.full((rows,), TOP_K if filtered else vocabulary, dtype=torch.int32, **full)
    return SimpleNamespace(
        temperatures=torch.full((rows, 1), TEMPERATURE, **full),
        top_ks=top_ks,
        top_ps=torch.full((rows,), TOP_P if filtered else 1.0, **full),
        min_ps=torch.zeros(rows, **full),
        need_top_k_sampling=filtered,
        need_top_p_sampling=filtered,
        need_min_p_sampling=False,
        is_all_greedy=False,
        is_any_greedy=False,
        sampling_seed=torch.arange(rows, dtype=torch.int64, **full) * 7919 + 11,
        positions=torch.arange(rows, dtype=torch.int64, **full) + 100,
    )


def mixed(rows: int, vocabulary: int, device: str) -> SimpleNamespace:
    """A batch in which every fourth row is filtered, and every fourth greedy."""
    info = parameters(rows, vocabulary, device, filtered=False)
    info.top_ks[1::4], info.top_ps[1::4] = TOP_K, TOP_P
    info.top_ks[3::4] = 1
    info.need_top_k_sampling = info.need_top_p_sampling = info.is_any_greedy = True
    return info


def alone(info: SimpleNamespace, row: int) -> SimpleNamespace:
    """The parameters of one row of a batch, as a batch of its own."""
    part = {
        name: value[row : row + 1] if isinstance(value, torch.Tensor) else value
        for name, value in vars(info).items()
    }
    filtered = bool(info.top_ps[row] < 1.0)
    greedy = bool(info.top_ks[row] == 1)
    needs = {"need_top_k_sampling": filtered or greedy, "need_top_p_sampling": filtered}
    return SimpleNamespace(**{**part, **needs, "is_all_greedy": greedy, "is_any_greedy": greedy})


def torch_draws(logits: Any, info: Any) -> Any:
    """PyTorch's draw, without seeds and filters."""
    return torch.multinomial(torch.softmax(logits / info.temperatures, dim=-1), 1).view(-1)


def ways(device: str) -> dict[str, Way]:
    """What is there to be compared, by name."""
    found: dict[str, Way] = {"PyTorch, unseeded, unfiltered only": torch_draws}
    try:
        found |= _sglangs(device)
    except (ImportError, OSError, RuntimeError) as error:
        print(f"SGLang's sampler cannot be imported ({error!r}): only PyTorch's own draw.\n")
    return found


def _sglangs(device: str) -> dict[str, Way]:
    kernels = device == "cuda" and all(map(importlib.util.find_spec, ("flashinfer", "sgl_kernel")))
    # Where it sees a GPU, SGLang imports kernels of others. What is PyTorch's needs none of them.
    with contextlib.nullcontext() if kernels else without_gpu():
        from sglang.srt.layers import sampler

        from tandem_sglang import seeds

    # Its murmur hash is a kernel of the GPU; on a CPU Tandem's stands in for it, as in its engine.
    multinomial = sampler.multinomial_with_seed if device == "cuda" else seeds.multinomial_with_seed
    sampler.multinomial_with_seed = multinomial

    def by_rank(logits: Any, info: Any, *, seeded: bool) -> Any:
        seed = info.sampling_seed if seeded else None
        scaled = logits / info.temperatures
        if not (info.need_top_k_sampling or info.need_top_p_sampling):
            if seeded:
                logprobs = torch.log_softmax(scaled, dim=-1)
                return multinomial(logprobs, seed, info.positions).view(-1)
            return sampler.sampling_from_probs_torch(torch.softmax(scaled, dim=-1))
        return sampler.top_k_top_p_min_p_sampling_from_probs_torch(
            torch.softmax(scaled, dim=-1), info.top_ks, info.top_ps, info.min_ps, False,
            seed, info.positions,
        )  # fmt: skip

    found: dict[str, Way] = {
        PYTORCHS: lambda logits, info: by_rank(logits, info, seeded=False),
        "SGLang's PyTorch, seeded": lambda logits, info: by_rank(logits, info, seeded=True),
    }
    if kernels:
        found[FLASHINFERS] = _flashinfers(sampler)
    try:
        from tandem_sglang import drawing
    except ImportError:
        return found
    found[TANDEMS] = lambda logits, info: drawing.draw(logits, info, info.positions, multinomial)
    return found


def _flashinfers(sampler: Any) -> Way:
    def draw(logits: Any, info: Any) -> Any:
        probs = torch.softmax(logits / info.temperatures, dim=-1)
        if not (info.need_top_k_sampling or info.need_top_p_sampling):
            return sampler.sampling_from_probs_torch(probs)
        return sampler.top_k_top_p_sampling_from_probs(
            probs, info.top_ks, info.top_ps, filter_apply_order="joint", check_nan=False
        )

    return draw


def cost(way: Way, logits: Any, info: Any) -> tuple[float, float, int]:
    """What a draw takes: µs, MiB beyond the logits at its highest, and waits of the host; the
    last two are 0 without a GPU.
    """
    device = logits.device.type
    way(logits, info)
    if device == "cpu":
        return gpu.microseconds(device, lambda: way(logits, info), 5), 0.0, 0
    waits = len(gpu.waits(lambda: way(logits, info)))
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    way(logits, info)
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    return gpu.microseconds(device, lambda: way(logits, info)), peak, waits


def differing(way: Way, rows: int, vocabulary: int, device: str, dtype: Any) -> int:
    """Rows whose token is another one alone than in a mixed batch, of `ALONE_STEPS` batches.

    Logits are float32 for every sampler; those that were bfloat16 before have ties.
    """
    count = 0
    for step in range(ALONE_STEPS):
        torch.manual_seed(step)
        logits = (torch.randn(rows, vocabulary, device=device) * 3).to(dtype).float()
        info = mixed(rows, vocabulary, device)
        info.positions += step
        together = way(logits.clone(), info)
        for row in range(rows):
            count += int(way(logits[row : row + 1].clone(), alone(info, row))) != int(together[row])
    return count


def products(rows: int, vocabulary: int, device: str, dtype: Any) -> list[object]:
    """How a matrix product's rows differ alone from together: rows that differ at all, the largest
    difference, and rows whose largest logit is another one.
    """
    torch.manual_seed(1)
    hidden = torch.randn(rows, HIDDEN, device=device).to(dtype)
    head = (torch.randn(HIDDEN, vocabulary, device=device) / HIDDEN**0.5).to(dtype)
    together = (hidden @ head).float()
    each = torch.cat([(hidden[row : row + 1] @ head).float() for row in range(rows)])
    different = int((together != each).any(dim=1).sum())
    largest = float((together - each).abs().max())
    tokens = int((together.argmax(dim=1) != each.argmax(dim=1)).sum())
    return [str(dtype).removeprefix("torch."), rows, different, f"{largest:.2g}", tokens]


def verdict(
    device: str, costs: Mapping[tuple[str, int, str], float], drawn: Sequence[Sequence[Any]]
) -> tuple[bool, str]:
    """Whether the default of the engine option seeded_sampling holds, and why.

    Seeds are worth accepting where rows draw alone what they draw among others, and where no step
    without filters takes more than FACTOR of what it takes without seeds. What filtered rows take
    is said and does not decide: only who knows that nobody sends seeds may do without them.
    """
    counts = [(rows, others) for name, _logits, rows, others in drawn if name == TANDEMS]
    if not counts:
        return True, "No verdict: Tandem's way to draw needs SGLang."
    rows, others = (sum(each) for each in zip(*counts, strict=True))
    right, why = not others, [f"{others} of {rows} rows drew another token alone"]
    if device == "cuda":
        ratio, said = _beside_unseeded(costs, "unfiltered")
        right = right and ratio <= FACTOR
        why += [f"{said}: {ratio:.2f} times at most, where {FACTOR:g} may be"]
        why += [_beside_unseeded(costs, "filtered")[1]]
    else:
        why += ["no GPU, so what seeds cost is not judged"]
    default = Options().seeded_sampling
    held = default == right
    return held, (
        f"Verdict: seeded_sampling={str(default).lower()}, the default: "
        f"{'held' if held else 'MISSED'}; {'; '.join(why)}."
    )


def _beside_unseeded(costs: Mapping[tuple[str, int, str], float], kind: str) -> tuple[float, str]:
    """How many times what it takes without seeds a step of this kind takes with them, at most, and
    what each takes.
    """
    unseeded = next(name for name in UNSEEDED if any(name == each for each, *_step in costs))
    steps = [
        (rows, us, costs[unseeded, rows, of])
        for (name, rows, of), us in costs.items()
        if (name, of) == (TANDEMS, kind)
    ]
    said = ", ".join(
        f"{us:.0f} µs of {rows} rows ({without:.0f} unseeded)" for rows, us, without in steps
    )
    return max(us / without for _rows, us, without in steps), f"{kind} {said}"


def main() -> None:
    parser = gpu.parser(__doc__)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--rows", type=gpu.numbers, default=list(ROWS))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    where = gpu.describe(asked.device, "sglang", "flashinfer-python")
    print(f"Measured on {where}; {asked.vocabulary} tokens.\n")
    found = ways(asked.device)
    costs, cells = {}, []
    for rows in asked.rows:
        logits = torch.randn(rows, asked.vocabulary, device=asked.device) * 3
        for kind in ("unfiltered", "filtered"):
            info = parameters(rows, asked.vocabulary, asked.device, kind == "filtered")
            for name, way in found.items():
                if kind == "filtered" and way is torch_draws:
                    continue
                us, mib, waits = cost(way, logits, info)
                costs[name, rows, kind] = us
                cells.append([name, kind, rows, us, mib, waits])
                sys.stderr.write(f"{cells[-1]}\n")
    print(gpu.table(["way", "rows are", "rows", "µs", "MiB beside", "waits"], cells), end="\n\n")
    seeded = {name: way for name, way in found.items() if name.endswith(", seeded")}
    drawn = [
        [name, kind, ALONE_STEPS * min(asked.rows), differing(
            way, min(asked.rows), asked.vocabulary, asked.device, dtype
        )]
        for name, way in seeded.items()
        for kind, dtype in (("float32", torch.float32), ("bfloat16 once", torch.bfloat16))
    ]  # fmt: skip
    print(gpu.table(["way", "logits", "rows drawn", "another token alone"], drawn), end="\n\n")
    multiplied = [
        products(min(asked.rows), asked.vocabulary, asked.device, dtype)
        for dtype in (torch.float32, torch.bfloat16)
    ]
    head = ["product in", "rows", "differ alone", "by at most", "another largest"]
    print(gpu.table(head, multiplied), end="\n\n")
    held, said = verdict(asked.device, costs, drawn)
    print(said)
    gpu.report(asked.json, machine=where, costs=cells, alone=drawn, products=multiplied)
    sys.exit(not held)


if __name__ == "__main__":
    main()
