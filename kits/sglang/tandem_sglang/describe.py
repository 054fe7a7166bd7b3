"""What a started SGLang engine says of itself, from what SGLang resolved and not from what was
asked: two workers are paired only where their fingerprints agree, and a wrong pair moves no KV, or
the wrong one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tandem.engine import lora, model_files
from tandem.engine.base import EngineDescription, EngineSettings, Role
from tandem.engine.kv_tag import KvCheck
from tandem.engine.prefix_log import PrefixLog
from tandem.errors import StartError
from tandem.v1 import common_pb2, worker_pb2
from tandem_sglang import argument_rules, fitting
from tandem_sglang.launch import Launched
from tandem_sglang.validation import EngineBounds

PROTOCOL_VERSION = 2
"""The version of proto/tandem/v1 that this worker speaks."""
_KV_LAYOUT = "layer-token-head"
"""A buffer for each layer, in it a row for each token: SGLang's pools for MHA and MLA."""
_SKIPPING = ("enable_encoder_swa_bounded_replay", "enable_decoder_swa_bounded_replay")
"""ServerArgs (DeepSeek-V4.1) with which a model's last layers see the end of a prompt alone: asked
for more, the scheduler would raise, and end with all that it runs."""
_KEPT_TOKENS = 2
"""Tokens of a context that SGLang's scheduler gives to no request (`init_req_max_new_tokens`)."""
_PROMPT_MARGIN = 5
"""Tokens that it leaves behind the longest prompt: it refuses longer ones (`get_worker_info`)."""
_DRAFT = (
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_dflash_block_size",
    "speculative_dspark_block_size",
    "speculative_draft_window_size",
    "speculative_draft_sink_size",
    "speculative_draft_kv_cache_dtype",
    "enable_multi_layer_eagle",
)
"""ServerArgs that say of a draft how much KV it keeps and what of it is handed over. SGLang writes
by the draft that prefill has: decode's has to be the same, or its KV lies elsewhere."""
_WITHOUT_KV = frozenset({None, "NGRAM"})
"""What drafts from the text itself."""
_SEEDED_DRAFTS = frozenset({None, "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "STANDALONE"})
"""Speculative decoding that verifies by a request's seed, and drafts by that request alone. DFLASH
and DSPARK draw by chance, and what NGRAM drafts depends on what was generated before: other drafts
are other tokens, whatever the seed."""
_UNSEEDED = ("speculative_adaptive", "speculative_use_rejection_sampling")
"""ServerArgs with which drafts depend on a row's neighbours, or are drawn by chance."""
_WITH_DRAFTS = frozenset({"frequency_penalty", "presence_penalty", "repetition_penalty", "seed"})
"""What speculative decoding leaves to SGLang, and no other scheduler can go on with: penalties
count what one sampled, and a seed verifies drafts, where the first token of another pair is drawn.
"""


def bounds(launched: Launched, *, role: Role, seeded: bool) -> EngineBounds:
    """The limits of a request: what SGLang gives whole, and so somewhat less than the model's.
    Raises StartError if the KV cache is too small for any request.
    """
    manager = launched.manager
    reserved = launched.arguments["num_reserved_decode_tokens"] if role is Role.DECODE else 0
    # The page that a prompt ends in, and another, count as taken where memory is what bounds.
    pages = 2 * (launched.arguments["page_size"] - 1)
    context = min(
        int(manager.context_len) - int(manager.num_reserved_tokens), launched.capacity - pages
    )
    context -= _KEPT_TOKENS
    prompt = min(context - _PROMPT_MARGIN, launched.capacity - reserved)
    if prompt < 1:
        raise StartError(
            f"a KV cache of {launched.capacity} tokens holds no request (decode keeps {reserved} "
            "free): raise engine option max_total_tokens or mem_fraction_static"
        )
    return EngineBounds(
        role=role,
        context_length=context,
        prompt_length=prompt,
        vocabulary=int(manager.model_config.vocab_size),
        cannot_sample=_cannot_sample(launched, seeded),
        scores_prompts=not any(launched.arguments[name] for name in _SKIPPING),
        nameless=argument_rules.nameless(launched.arguments),
    )


def _cannot_sample(launched: Launched, seeded: bool) -> Mapping[str, str]:
    cannot: dict[str, str] = {}
    for unit, found in fitting.lacking(launched.units):
        cannot |= dict.fromkeys(unit.sampling, f"SGLang {launched.version} lacks {found.lacks}")
    if why := _unseeded(launched.arguments, seeded):
        cannot["seed"] = why
    if launched.arguments["speculative_algorithm"]:
        cannot["min_p"] = "SGLang verifies what speculative decoding drafts without it"
    return cannot


def _unseeded(arguments: Mapping[str, Any], seeded: bool) -> str:
    if not seeded:
        return "the operator has switched engine option seeded_sampling off"
    algorithm = arguments["speculative_algorithm"]
    if algorithm not in _SEEDED_DRAFTS:
        return f"SGLang's speculative decoding by {algorithm} drafts without regard to a seed"
    if given := [name for name in _UNSEEDED if arguments[name]]:
        return f"SGLang drafts with {given[0]}, without regard to a seed"
    return ""


def description(
    launched: Launched,
    limits: EngineBounds,
    settings: EngineSettings,
    *,
    kv_endpoint: str,
    prefixes: PrefixLog | None,
    ranks: Mapping[Role, int],
    stages: int,
    kv_check: KvCheck = KvCheck.TAG,
    cannot_apply: frozenset[str] = frozenset(),
) -> EngineDescription:
    """What a started engine says of itself; of its sequences, a process's share. `ranks`: among how
    many a sequence's KV is to be divided, in either phase. `stages`: parts of prefill's model that
    have some of its layers each.
    """
    divided = {**ranks, limits.role: _kv_ranks(launched.arguments)}
    fingerprint = _fingerprint(launched, settings, divided, stages)
    fingerprint.lora_sha256 = lora.digest(settings.lora_adapters)
    if limits.role is not Role.AGGREGATED:
        transfer = launched.arguments["disaggregation_transfer_backend"]
        fingerprint.kv_transfer = "" if transfer == "nixl" else transfer
        beside = [_beside(launched.arguments)]
        if kv_check is not KvCheck.TAG:
            beside.append(f"kv_check={kv_check}")
        fingerprint.kv_beside = " ".join(filter(None, beside))
    return EngineDescription(
        fingerprint=fingerprint,
        limits=worker_pb2.Limits(
            max_sequences=settings.max_sequences // settings.token_processes,
            context_length=limits.context_length,
            vocabulary=limits.vocabulary,
        ),
        kv_endpoint=kv_endpoint,
        prefixes=prefixes,
        eos_token_ids=_eos_token_ids(launched, settings.model_path),
        cannot_sample=frozenset(limits.cannot_sample),
        cannot_apply=cannot_apply,
        cannot_resume=_WITH_DRAFTS if launched.arguments["speculative_algorithm"] else frozenset(),
    )


def _fingerprint(
    launched: Launched, settings: EngineSettings, ranks: Mapping[Role, int], stages: int
) -> common_pb2.Fingerprint:
    prefill, decode = ranks[Role.PREFILL], ranks[Role.DECODE]
    arguments = launched.arguments
    dtype = str(launched.manager.model_config.dtype).removeprefix("torch.")
    kv_dtype = arguments["kv_cache_dtype"]
    return common_pb2.Fingerprint(
        model=settings.model_name,
        revision=model_files.revision(settings.model_path),
        engine="sglang",
        engine_version=launched.version,
        dtype=dtype,
        page_size=arguments["page_size"],
        kv_dtype=dtype if kv_dtype == "auto" else kv_dtype,
        kv_layout=_KV_LAYOUT,
        tensor_parallel=prefill,
        decode_tensor_parallel=0 if decode == prefill else decode,
        pipeline_parallel=stages if stages > 1 else 0,
        tokenizer_sha256=model_files.tokenizer_sha256(settings.model_path),
        protocol_version=PROTOCOL_VERSION,
    )


def _beside(arguments: Mapping[str, Any]) -> str:
    """What else than the model's own KV is handed over, in words."""
    algorithm = arguments["speculative_algorithm"]
    if algorithm in _WITHOUT_KV:
        return ""
    said = [str(algorithm)]
    if path := arguments.get("speculative_draft_model_path"):
        folder = Path(path)  # or a name that SGLang looks up by itself
        draft = model_files.revision(folder) if folder.is_dir() else path
        said.append(f"speculative_draft_model={draft}")
    said += [f"{name}={arguments[name]}" for name in _DRAFT if arguments.get(name)]
    return " ".join(said)


def _kv_ranks(arguments: Mapping[str, Any]) -> int:
    groups = arguments["dp_size"] if arguments["enable_dp_attention"] else 1
    return int(arguments["tp_size"] // groups)


def _eos_token_ids(launched: Launched, model_path: Path) -> frozenset[int]:
    """All that SGLang ends a sequence at: the model's, and those its tokenizer adds."""
    manager = launched.manager
    found = set(model_files.eos_token_ids(model_path))
    found |= set(manager.model_config.hf_eos_token_id or ())
    found |= set(getattr(manager.tokenizer, "additional_stop_token_ids", None) or ())
    if manager.tokenizer.eos_token_id is not None:
        found.add(manager.tokenizer.eos_token_id)
    return frozenset(found)
