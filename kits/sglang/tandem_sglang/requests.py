"""A request in SGLang's words. Pure: plain values for GenerateReqInput."""

from __future__ import annotations

import secrets
from typing import Any

from tandem import kv_hints
from tandem.engine.base import EngineRequest, Role
from tandem.engine.cache_events import Stored
from tandem.engine.prefix_log import Owner
from tandem.logits import embedding_bias
from tandem.logits.spec import write_entries
from tandem.v1 import common_pb2
from tandem_sglang.processors import Steering

SPEC_KEY = "tandem_logits"
"""Key in custom_params for JSON text: only scalars survive the way to the scheduler."""
BIAS_KEY = "tandem_embedding_bias"
"""Key in custom_params for the embedding bias, as text; empty: there is none."""
MADE_KEY = "tandem_made"
"""Key in custom_params for how many of the last input tokens are output; absent: none."""
HISTORY_KEY = "tandem_reads_history"
"""Key in custom_params that is true where a processor reads the tokens so far."""


_OURS = "tandem-"
_BETWEEN = "\0"
"""Between adapter and salt; no adapter's name has it."""


def names(process: int = 1, start: int = 0) -> str:
    """How SGLang's names begin for the requests of a token process, from 1, since its so many-th
    start.
    """
    return f"{_OURS}{process:02d}-{start:06d}-"


FIRST = names()


def rid(request_id: int, begins: str = FIRST) -> str:
    """SGLang's name for a request. All have one length: its scheduler aborts every request whose
    name *begins* with the one given."""
    return f"{begins}{request_id:020d}"


def process_of(rid: str) -> int:
    """The token process whose request that is; the first's where it is none of ours."""
    return int(rid[len(_OURS) :].partition("-")[0]) if rid.startswith(_OURS) else 1


def salt(cache_salt: str, lora_adapter: str) -> str | None:
    """What SGLang is told to keep prefixes apart by. It does so for adapters by itself, but does
    not say of which one its pages are.
    """
    return f"{lora_adapter}{_BETWEEN}{cache_salt}" if cache_salt or lora_adapter else None


def salted(given: str | None) -> tuple[str, str]:
    """The LoRA adapter and the cache salt that `salt` made one of."""
    lora_adapter, _, cache_salt = (given or "").partition(_BETWEEN)
    return lora_adapter, cache_salt


def owner_of(event: Stored) -> Owner:
    """The owner of the prompt whose first pages have entered SGLang's cache."""
    lora_adapter, cache_salt = salted(event.cache_salt)
    return Owner(cache_salt, lora_adapter)


def fields(
    request: EngineRequest,
    *,
    role: Role,
    endpoint: tuple[str, int] | None,
    processor: str,
    steering: Steering | None,
    rank: int | None = None,
    begins: str = FIRST,
) -> dict[str, Any]:
    """Arguments of SGLang's GenerateReqInput.

    Args:
        endpoint: host and port where a PREFILL engine begins hand-overs.
        processor: the serialised class that applies logits specs.
        steering: the request's logits processors.
        rank: the data-parallel rank that it goes to; None: there is one alone.
        begins: how the names of this process's requests begin.
    """
    sampling = request.sampling
    arguments: dict[str, Any] = {
        "rid": rid(request.request_id, begins),
        "input_ids": list(request.context),
        "sampling_params": sampling_params(sampling) | _behind(request),
        "stream": True,
        "log_metrics": True,
        "cache_salt": salt(request.cache_salt, request.lora_adapter),
    }
    if request.kv_hints:
        arguments["kv_hints"] = kv_hints.read(request.kv_hints)
    if rank is not None:
        arguments["routed_dp_rank"] = rank
    if request.lora_adapter:
        arguments["lora_path"] = request.lora_adapter  # SGLang's registry knows it by that name
    of_prompt = scores_prompt(request, role)
    if sampling.HasField("logprobs") or of_prompt:
        arguments |= _logprobs(sampling, of_prompt=of_prompt)
    if steering is not None:
        arguments["sampling_params"] |= steering.grammar
        if steering.spec or steering.bias is not None:
            arguments["custom_logit_processor"] = processor
            arguments["sampling_params"]["custom_params"] = {
                MADE_KEY: len(request.made),
                SPEC_KEY: write_entries(steering.spec),
                HISTORY_KEY: steering.reads_history,
                BIAS_KEY: embedding_bias.write(steering.bias),
            }
    if role is not Role.AGGREGATED:
        host, port = endpoint or parse_endpoint(request.kv_peer)
        arguments |= {
            "bootstrap_host": host,
            "bootstrap_port": port,
            "bootstrap_room": request.room,
        }
    return arguments


def _logprobs(sampling: common_pb2.SamplingParams, *, of_prompt: bool) -> dict[str, Any]:
    """Arguments of a request whose tokens are to have log-probabilities."""
    return {
        "return_logprob": True,
        "logprob_start_len": 0 if of_prompt else -1,
        # One number for both; each then takes what it asked for.
        "top_logprobs_num": max(sampling.logprobs, sampling.prompt_logprobs * of_prompt),
        # Two arrays, and not a list for each token, go through three processes.
        "return_flat_raw_top_logprobs": of_prompt,
    }


def scores_prompt(request: EngineRequest, role: Role) -> bool:
    """Whether an engine of this role says the log-probabilities of the request's prompt."""
    return role is not Role.DECODE and request.sampling.HasField("prompt_logprobs")


def _behind(request: EngineRequest) -> dict[str, Any]:
    """What differs where tokens of the input are output of another engine."""
    if not request.made:
        return {}
    left = request.sampling.max_tokens - len(request.made)
    return {"max_new_tokens": left, "custom_params": {MADE_KEY: len(request.made)}}


def sampling_params(sampling: common_pb2.SamplingParams) -> dict[str, Any]:
    """SGLang's sampling dictionary.

    `n` stays 1: SGLang would run n samples under fresh random names, and in one room. `stop` is
    left to the worker's output pipeline. A request without a seed gets a random one, because a
    batch is seeded in all of its rows or in none.
    """
    params: dict[str, Any] = {
        "n": 1,
        "max_new_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "ignore_eos": sampling.ignore_eos,
        "sampling_seed": (
            sampling.seed & (2**63 - 1) if sampling.HasField("seed") else secrets.randbits(63)
        ),
    }
    if sampling.stop_token_ids:
        params["stop_token_ids"] = list(sampling.stop_token_ids)
    if sampling.logit_bias:
        params["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    return params


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Host and port of what `sockets.endpoint` wrote."""
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)
