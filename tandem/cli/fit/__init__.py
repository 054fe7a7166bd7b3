"""`tandem plan-fit`: whether a model fits on GPUs, from its config.json alone."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from tandem.cli import options
from tandem.cli.console import Console
from tandem.cli.fit import memory, shape
from tandem.cli.fit.memory import Fit, WorkerPlan
from tandem.cli.fit.shape import Shape
from tandem.engine import model_files

MEMORY_SHARE = 0.85
"""Between what SGLang chooses for the phases of a small model on an H100, 0.84 and 0.87."""
CONTEXT = 8192
PAGE_SIZE = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="A model's folder, or its config.json.")
    add("--gpu", choices=tuple(memory.GPU_GB), default="h100", help="[%(default)s]")
    add(
        "--tp",
        type=options.positive,
        default=1,
        metavar="N",
        help="GPUs that share a worker's model, the same in both phases. [%(default)s]",
    )
    add(
        "--dp",
        type=options.positive,
        default=1,
        metavar="N",
        help="Groups of these GPUs that compute attention apart (DP attention). [%(default)s]",
    )
    add(
        "--pp",
        type=options.positive,
        default=1,
        metavar="N",
        help="Parts of the layers, each on as many GPUs as --tp says. [%(default)s]",
    )
    add(
        "--context",
        type=options.positive,
        default=CONTEXT,
        metavar="TOKENS",
        help="Prompt and answer of a sequence together. [%(default)s]",
    )
    add("--page-size", type=options.positive, default=PAGE_SIZE, metavar="N", help="[%(default)s]")
    add(
        "--kv-dtype",
        choices=shape.KV_DTYPES,
        default="auto",
        help="auto is the type that the model computes in. [%(default)s]",
    )
    add(
        "--memory-share",
        type=options.share,
        default=MEMORY_SHARE,
        metavar="SHARE",
        help="Of each GPU's memory for weights and KV cache, as mem_fraction_static. [%(default)s]",
    )
    add("--json", action="store_true", help="Print the figures as JSON, in bytes.")


def plan_fit(arguments: argparse.Namespace, console: Console) -> int:
    """Status 0; 1 where it does not fit. Raises ConfigError for what cannot be computed."""
    model = shape.read(model_files.text_config(arguments.model), kv_dtype=arguments.kv_dtype)
    worker = WorkerPlan(
        gpu=arguments.gpu,
        tensor_parallel=arguments.tp,
        data_parallel=arguments.dp,
        pipeline_parallel=arguments.pp,
        memory_share=arguments.memory_share,
        page_size=arguments.page_size,
        context=arguments.context,
    )
    fit = memory.compute(model, worker)
    if arguments.json:
        console.line(json.dumps(_told(model, worker, fit), indent=2))
    else:
        console.table(_rows(model, worker, fit))
    if fit.fits:
        return 0
    if not arguments.json:
        console.failed(_refusal(model, worker))
    return 1


def _told(model: Shape, worker: WorkerPlan, fit: Fit) -> dict[str, object]:
    return {
        "parameters": model.parameters,
        "window": model.window,
        **dataclasses.asdict(worker),
        **dataclasses.asdict(fit),
        "fits": fit.fits,
        "fewest_gpus": memory.fewest_gpus(model, worker),
    }


def _rows(model: Shape, worker: WorkerPlan, fit: Fit) -> list[tuple[str, str]]:
    sliding = f", and {fit.sliding_token_bytes:,} B of the last {model.window}"
    length = f"{worker.context:,} tokens"
    gpus = worker.division.gpus
    return [
        ("a worker", f"{gpus} x {worker.gpu} of {_gb(fit.gpu_bytes)}{_divided(worker)}"),
        ("weights", f"{_gb(fit.weight_bytes)} a GPU, {model.parameters / 1e9:,.2f} billion"),
        ("KV a token", f"{fit.token_bytes:,} B a GPU{sliding if model.window else ''}"),
        ("KV cache", f"{_gb(fit.kv_bytes)} a GPU: {fit.kv_tokens:,} tokens, {fit.pages:,} pages"),
        ("a hand-over", f"{_gb(fit.handover_bytes)} for {length}"),
        ("prefill holds", f"{fit.prefill_prompts:,} prompts of {length}"),
        ("decode holds", f"{fit.decode_sequences:,} sequences of {length}"),
        ("decode pins", f"{_gb(fit.pinned_bytes)} of the host's memory"),
    ]


def _divided(worker: WorkerPlan) -> str:
    groups, parts = worker.data_parallel, worker.pipeline_parallel
    told = f", attention in {groups} groups" if groups > 1 else ""
    return told + (f", layers in {parts} parts" if parts > 1 else "")


def _refusal(model: Shape, worker: WorkerPlan) -> str:
    fewest = memory.fewest_gpus(model, worker)
    enough = f"it takes {fewest} of these GPUs" if fewest else "no number of these GPUs is enough"
    return f"no sequence of {worker.context:,} tokens fits: {enough} (--tp)"


def _gb(size: float) -> str:
    return f"{size / memory.GB:,.1f} GB"
