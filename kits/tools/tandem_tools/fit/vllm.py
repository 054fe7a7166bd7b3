"""What fits on a worker of vLLM 0.32, as Tandem starts one on one GPU, the model whole.

vLLM measures by a run at its start what it takes beside the weights, and gives the KV cache what is
left of `gpu_memory_utilization`. Here that run is reckoned, so that the cache is rather larger than
is said: tests hold that to what public logs say.
"""

from __future__ import annotations

from tandem.errors import ConfigError
from tandem_tools.fit.memory import MIB, Fit, WorkerPlan, check_context
from tandem_tools.fit.shape import Division, ModelShape, Serving

UTILIZATION = 0.92
"""vLLM's gpu_memory_utilization, where nothing says it."""
PAGE_SIZE = 16
"""vLLM's block_size on CUDA."""
BATCHED_TOKENS = 2048
"""vLLM's max_num_batched_tokens, where nothing says it and no server of vLLM's own starts it."""
_SEEN_SHARE = 0.987
"""What PyTorch sees of a GPU's memory, of which vLLM takes its share: 39.49 GiB of an A100 of
40,960 MiB, 79.19 of an H100 of 81,559.
"""
_LOGIT_BYTES = 28
"""What a logit takes while tokens are drawn: in half and single precision, sorted with its place,
as a probability, summed up, put back, and beside noise.
"""
_STEP_BYTES = 2
_REST = 2 * 2**30
"""Graphs, workspaces of kernels and libraries of CUDA. A guess, which the logs bear."""
_PLAIN = Serving()


def refused(worker: WorkerPlan) -> str:
    """What a plan says that no worker of vLLM takes; empty: nothing."""
    if worker.division != Division(1):
        return "only vLLM on one GPU is reckoned: leave --tp, --dp and --pp at 1, and decode's"
    said, plain = worker.serving, _PLAIN
    if said.kv_cache_dtype != plain.kv_cache_dtype:
        return "only KV of the model's own type is reckoned for vLLM: leave --kv-dtype at auto"
    flags = {
        "--moe-a2a-backend": said.moe_a2a_backend != plain.moe_a2a_backend,
        "--ep-num-redundant-experts": bool(said.ep_num_redundant_experts),
        "--moe-dense-tp-size": bool(said.moe_dense_tp_size),
        "--enable-dp-lm-head": said.enable_dp_lm_head,
    }
    given = [flag for flag, is_given in flags.items() if is_given]
    return f"{', '.join(given)}: SGLang has such an option, and vLLM none" if given else ""


def compute(shape: ModelShape, worker: WorkerPlan) -> Fit:
    """Raises ConfigError where the model has no such context, and for what no worker of vLLM takes
    or what is not known of vLLM.
    """
    check_context(shape, worker)
    if wrong := refused(worker):
        raise ConfigError(wrong)
    if shape.latent:
        raise ConfigError("what vLLM makes of latents (MLA) is not known here")
    sliding = sum(layer.slides for layer in shape.layers)
    if sliding and 2 * sliding != len(shape.layers):
        raise ConfigError(
            f"{sliding} of {len(shape.layers)} layers look at a window: how vLLM groups unequal"
            " numbers is not known here"
        )
    (part,) = shape.parts(worker.division)
    gpu_bytes = worker.gpu.mib * MIB
    taken = worker.memory_share or UTILIZATION
    left = gpu_bytes * _SEEN_SHARE * taken - part.weights - profiled_bytes(shape, worker)
    # A page holds one kind of layers; both kinds take pages of one pool, and one page is nobody's.
    pages = max(0, int(left / (part.kv * worker.page_size)) - 1)
    return Fit(
        gpu_bytes=gpu_bytes,
        memory_share=taken,
        weight_bytes=int(part.weights),
        kv_bytes=int(left),
        token_bytes=int(part.kv),
        sliding_token_bytes=int(part.sliding_kv),
        kv_tokens=pages * worker.page_size,
        pages=pages,
        sequences=pages // _pages_of_sequence(shape, worker),
        handover_bytes=int(
            part.kv * worker.context + part.sliding_kv * min(worker.context, shape.window)
        ),
        pinned_bytes=0,
    )


def profiled_bytes(shape: ModelShape, worker: WorkerPlan) -> int:
    """What vLLM's first run finds beside the weights."""
    logits = worker.max_sequences * shape.vocabulary * _LOGIT_BYTES
    return logits + worker.batched_tokens * shape.step_numbers * _STEP_BYTES + _REST


def _pages_of_sequence(shape: ModelShape, worker: WorkerPlan) -> int:
    """Prefill holds of a window what a step adds too (`SlidingWindowSpec.max_admission_blocks`)."""
    whole = -(-worker.context // worker.page_size)
    if not shape.window:
        return whole
    seen = shape.window + (worker.batched_tokens if worker.phase == "prefill" else 0)
    return whole + -(-min(seen, worker.context) // worker.page_size) + 1
