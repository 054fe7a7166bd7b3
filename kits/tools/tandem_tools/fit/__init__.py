"""`tandem plan-fit`: whether a model fits on GPUs, from its configuration alone."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from tandem.cli import options
from tandem.cli.commands import Command, adding
from tandem.cli.console import Console
from tandem.engine import model_files
from tandem.errors import ConfigError
from tandem_tools.fit import gpus, memory, quantisation, shape, vllm
from tandem_tools.fit.memory import Fit, WorkerPlan
from tandem_tools.fit.shape import Division, ModelShape, Phase, Serving

CONTEXT = 8192
PAGE_SIZES = {"sglang": 64, "vllm": vllm.PAGE_SIZE}
MAX_SEQUENCES = 256
"""What a worker has where its settings do not say it."""
_PHASES: tuple[Phase, ...] = ("prefill", "decode")
_OF = {"sglang": "what is free", "vllm": "the GPU's memory"}
"""What an engine takes its share of."""
_SIZES = {
    "tp": "GPUs that share a worker's model.",
    "dp": "Groups of these GPUs that compute attention apart (DP attention).",
    "pp": "Parts of the layers, each on as many GPUs as --tp says.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = adding(parser)
    add("model MODEL", Path, help="A model's folder, or its config.json.")
    add(
        "--engine",
        choices=tuple(PAGE_SIZES),
        default="sglang",
        help="Engine of the workers. [%(default)s]",
    )
    add(
        "--gpu GPU",
        gpus.of,
        default="h100",
        help=f"{', '.join(gpu.name for gpu in gpus.KNOWN)}, or the MiB that nvidia-smi says."
        " [%(default)s]",
    )
    for name, what in _SIZES.items():
        add(f"--{name} N", options.positive, default=1, help=f"{what} [%(default)s]")
        add(
            f"--decode-{name} N", options.positive, help=f"The same for a decode worker. [--{name}]"
        )
    add(
        "--max-sequences N",
        options.positive,
        default=MAX_SEQUENCES,
        help="Sequences of a decode worker, as its setting of this name. [%(default)s]",
    )
    add(
        "--context TOKENS",
        options.positive,
        help=f"Prompt and answer of a sequence together. [{CONTEXT}, or the model's if shorter]",
    )
    add(
        "--page-size N",
        options.positive,
        help=f"[{PAGE_SIZES['sglang']}, of vLLM {PAGE_SIZES['vllm']}]",
    )
    add(
        "--max-batched-tokens N",
        options.positive,
        help=f"vLLM's option of this name, in both phases. [{vllm.BATCHED_TOKENS}]",
    )
    add(
        "--kv-dtype",
        choices=shape.KV_DTYPES,
        default="auto",
        help="Type of the KV cache; auto is the type that SGLang takes for the model."
        " [%(default)s]",
    )
    _add_division(add)
    for phase in _PHASES:
        add(
            f"--{phase}-memory-share SHARE",
            options.share,
            default=0.0,
            help="Share of each GPU's memory for weights and KV cache: mem_fraction_static of"
            f" {phase}, with vLLM gpu_memory_utilization. [the engine's choice]",
        )


def _add_division(add: Callable[..., None]) -> None:
    """Options of SGLang that say what of a model each GPU holds."""
    add(
        "--moe-a2a-backend",
        choices=shape.A2A_BACKENDS,
        default="none",
        help="SGLang's option of this name: with any backend, each GPU holds all shared experts."
        " [%(default)s]",
    )
    add(
        "--ep-num-redundant-experts N",
        options.positive,
        help="SGLang's option of this name: copies of experts in each layer. [none]",
    )
    add(
        "--moe-dense-tp-size",
        int,
        choices=(1,),
        help="SGLang's option of this name: 1 gives each GPU the layers without experts whole."
        " [all GPUs share them]",
    )
    add(
        "--enable-dp-lm-head",
        action="store_true",
        help="SGLang's option of this name: each group has the matrix of logits whole.",
    )


def plan_fit(arguments: argparse.Namespace, console: Console) -> int:
    """Status 0; 1 where it does not fit. Raises ConfigError for what cannot be computed."""
    config = model_files.text_config(arguments.model)
    quantised = quantisation.declared(config, model_files.modelopt_config(arguments.model))
    serving = _serving(arguments)
    model = shape.read(config, quantised, serving)
    context = arguments.context or min(CONTEXT, model.context_length)
    workers = [_worker(arguments, phase, context, serving) for phase in _PHASES]
    fits = [_fit(model, worker) for worker in workers]
    refused = [worker for worker, fit in zip(workers, fits, strict=True) if not fit.fits]
    if console.result(_told(model, workers, fits)):
        return 1 if refused else 0
    console.line(f"  {model.parameters / 1e9:,.2f} billion parameters")
    console.table(_rows(model, workers, fits), head=("", *_PHASES))
    for note in _notes(model, workers):
        console.line(f"  {note}")
    for worker in refused:
        console.failed(_refusal(model, worker))
    return 1 if refused else 0


def _fit(model: ModelShape, worker: WorkerPlan) -> Fit:
    compute = vllm.compute if worker.serving.engine == "vllm" else memory.compute
    return compute(model, worker)


def _serving(arguments: argparse.Namespace) -> Serving:
    if arguments.max_batched_tokens and arguments.engine != "vllm":
        raise ConfigError("--max-batched-tokens is vLLM's: give --engine vllm too")
    return Serving(
        engine=arguments.engine,
        kv_cache_dtype=arguments.kv_dtype,
        moe_a2a_backend=arguments.moe_a2a_backend,
        ep_num_redundant_experts=arguments.ep_num_redundant_experts or 0,
        moe_dense_tp_size=arguments.moe_dense_tp_size or 0,
        enable_dp_lm_head=arguments.enable_dp_lm_head,
        gpu_generation=arguments.gpu.generation,
    )


def _worker(
    arguments: argparse.Namespace, phase: Phase, context: int, serving: Serving
) -> WorkerPlan:
    sizes = [getattr(arguments, name) for name in _SIZES]
    if phase == "decode":
        of_decode = [getattr(arguments, f"decode_{name}") for name in _SIZES]
        sizes = [own or same for own, same in zip(of_decode, sizes, strict=True)]
    return WorkerPlan(
        phase=phase,
        gpu=arguments.gpu,
        division=Division(*sizes),
        memory_share=getattr(arguments, f"{phase}_memory_share"),
        page_size=arguments.page_size or PAGE_SIZES[arguments.engine],
        context=context,
        max_sequences=arguments.max_sequences,
        serving=serving,
        batched_tokens=(
            (arguments.max_batched_tokens or vllm.BATCHED_TOKENS) if serving.engine == "vllm" else 0
        ),
    )


def _notes(model: ModelShape, workers: Sequence[WorkerPlan]) -> list[str]:
    """What the figures do not say."""
    notes = []
    if model.sees:
        notes.append("The model's part for pictures is not counted.")
    decode = workers[-1]
    if decode.serving.engine == "vllm":
        notes.append(
            f"Options of the engine: page_size {decode.page_size}, max_batched_tokens"
            f" {decode.batched_tokens}. vLLM measures at its start what is left for KV."
        )
    each = decode.max_sequences // decode.division.groups
    if decode.serving.moe_a2a_backend == "deepep" and each > memory.DISPATCHED_TOKENS:
        notes.append(
            f"DeepEP sends at most {memory.DISPATCHED_TOKENS} tokens of a GPU in a step of decode,"
            f" and a group has {each} sequences: set SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
            f" (at most {memory.MOST_DISPATCHED_TOKENS}) or lower --max-sequences."
        )
    return notes


def _told(
    model: ModelShape, workers: Sequence[WorkerPlan], fits: Sequence[Fit]
) -> dict[str, object]:
    return {
        "parameters": model.parameters,
        "window": model.window,
        "notes": _notes(model, workers),
        **{
            worker.phase: {
                **dataclasses.asdict(worker),
                "gpu": worker.gpu.name,
                **dataclasses.asdict(fit),
                "fits": fit.fits,
                "fewest_gpus": _fewest_gpus(model, worker, fit),
            }
            for worker, fit in zip(workers, fits, strict=True)
        },
    }


def _rows(
    model: ModelShape, workers: Sequence[WorkerPlan], fits: Sequence[Fit]
) -> list[tuple[str, str, str]]:
    columns = [_column(model, *each) for each in zip(workers, fits, strict=True)]
    names = [name for name in columns[0] if any(column[name] for column in columns)]
    return [(name, columns[0][name], columns[1][name]) for name in names]


def _column(model: ModelShape, worker: WorkerPlan, fit: Fit) -> dict[str, str]:
    """What is said of a phase, by the name of its row; a row of which neither says anything is
    left out.
    """
    division, decodes = worker.division, worker.phase == "decode"
    length = f"{worker.context:,} tokens"
    return {
        "GPUs": f"{division.gpus} x {worker.gpu.name} of {_gb(fit.gpu_bytes)}",
        "attention": f"in {division.groups} groups" if division.groups > 1 else "",
        "layers": f"in {division.parts} parts" if division.parts > 1 else "",
        "used": f"{fit.memory_share:.3f} of {_OF[worker.serving.engine]}",
        "weights": f"{_gb(fit.weight_bytes)} a GPU",
        "KV a token": f"{fit.token_bytes:,} B a GPU",
        f"of the last {model.window}": (
            f"{fit.sliding_token_bytes:,} B a GPU" if model.window else ""
        ),
        "KV cache": f"{_gb(fit.kv_bytes)} a GPU: {fit.kv_tokens:,} tokens",
        "holds": f"{fit.sequences:,} {'sequences' if decodes else 'prompts'} of {length}",
        "a hand-over": f"{_gb(fit.handover_bytes)} for {length}" if decodes else "",
        "pins": _pinned(fit) if decodes and worker.serving.engine == "sglang" else "",
    }


def _pinned(fit: Fit) -> str:
    return f"{_gb(fit.pinned_bytes)} of the host's memory"


def _fewest_gpus(model: ModelShape, worker: WorkerPlan, fit: Fit) -> int:
    if worker.serving.engine == "vllm":
        return int(fit.fits)
    return memory.fewest_gpus(model, worker)


def _refusal(model: ModelShape, worker: WorkerPlan) -> str:
    if worker.serving.engine == "vllm":
        return (
            f"{worker.phase} holds no sequence of {worker.context:,} tokens: a larger GPU is"
            " needed; of a worker of vLLM with several nothing is reckoned"
        )
    fewest = memory.fewest_gpus(model, worker)
    enough = f"it takes {fewest} of these GPUs" if fewest else "no number of these GPUs is enough"
    flag = "--decode-tp" if worker.phase == "decode" else "--tp"
    return f"{worker.phase} holds no sequence of {worker.context:,} tokens: {enough} ({flag})"


def _gb(size: float) -> str:
    return f"{size / memory.GB:,.1f} GB"


COMMAND = Command(
    add_arguments, plan_fit, example="tandem plan-fit DeepSeek-V3/config.json --gpu h200 --tp 8"
)
