"""A request in vLLM's words. Pure: plain values for SamplingParams and EngineCoreRequest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tandem.engine.base import EngineRequest, Role
from tandem.engine.cache_events import Stored
from tandem.engine.prefix_log import Owner
from tandem.logits import embedding_bias
from tandem.logits.spec import LogitsProcessorEntry, write_entries

STEERING: Final = "tandem"
"""Key in `extra_args` for what `rows.Rows` is to know of a request; absent: nothing."""
TRANSFER: Final = "kv_transfer_params"
"""vLLM's key in `extra_args` for what its connector is to know of a request."""
LEASE_SECONDS: Final = "tandem_lease_seconds"
"""Key in a prefill request's transfer parameters: how long its pages stay for decode."""
LEASE_ENDS: Final = "tandem_lease_ends"
"""Key in what the connector tells of such a request: when that is over, by time.monotonic()."""
RELEASE: Final = "tandem_release"
"""Key in transfer parameters: the request whose pages are to be free now."""
_NO_PENALTIES = (0.0, 0.0, 1.0)


def name(request_id: int) -> str:
    """vLLM's name for a request."""
    return f"tandem-{request_id}"


def number(name: str) -> int | None:
    """The request of a name; None: the engine's own."""
    digits = name.removeprefix("tandem-")
    return int(digits) if digits.isdecimal() else None


def owner_of(event: Stored) -> Owner:
    """The owner of the prompt whose first pages have entered vLLM's cache."""
    said = (event.extra_keys or [None])[0] or ()
    keys = [each for each in said if isinstance(each, str)]
    adapter = event.lora_name or ""
    return Owner("".join(keys[bool(adapter) :][:1]), adapter)


def sampling(
    request: EngineRequest,
    *,
    role: Role,
    eos_token_ids: frozenset[int],
    spec: Sequence[LogitsProcessorEntry] = (),
    first: int | None = None,
    transfer: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Arguments of vLLM's SamplingParams.

    Prefill ends every request behind one token, whatever that is: its KV is decode's in any case.
    Penalties are ours (penalties.py). `spec`: the processors that run in vLLM's process. `first`:
    DECODE: the token that prefill sampled. `transfer`: for the connector.
    """
    asked = request.sampling
    prefill = role is Role.PREFILL
    stops = frozenset(asked.stop_token_ids)
    if not asked.ignore_eos:
        stops |= eos_token_ids
    extra: dict[str, Any] = {}
    if transfer is not None:
        extra[TRANSFER] = dict(transfer)
    if (given := steering(request, spec=spec, first=first)) is not None:
        extra[STEERING] = given
    scored = role is not Role.DECODE and asked.HasField("prompt_logprobs")
    return {
        "n": 1,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "top_k": asked.top_k,
        "min_p": asked.min_p,
        "seed": asked.seed if asked.HasField("seed") else None,
        "max_tokens": 1 if prefill else asked.max_tokens - len(request.made),
        "ignore_eos": True,
        "stop_token_ids": [] if prefill else sorted(stops),
        "logprobs": asked.logprobs if asked.HasField("logprobs") else None,
        "prompt_logprobs": asked.prompt_logprobs if scored else None,
        "logit_bias": dict(asked.logit_bias) or None,
        "detokenize": False,
        "extra_args": extra or None,
    }


def steering(
    request: EngineRequest, *, spec: Sequence[LogitsProcessorEntry], first: int | None
) -> dict[str, Any] | None:
    """What `rows.Rows.take` is given of a request; None: vLLM does all by itself."""
    asked = request.sampling
    penalties = (asked.frequency_penalty, asked.presence_penalty, asked.repetition_penalty)
    bias = request.embedding_bias
    if penalties == _NO_PENALTIES and not spec and bias is None and first is None:
        return None
    return {
        "name": name(request.request_id),
        "made": len(request.made),
        "first": first,
        "penalties": None if penalties == _NO_PENALTIES else list(penalties),
        "spec": write_entries(spec) if spec else "",
        "bias": embedding_bias.write(bias),
    }


def to_be_read(lease_seconds: float) -> dict[str, Any]:
    """Transfer parameters of a prefill request: its pages stay for decode."""
    return {"do_remote_decode": True, "do_remote_prefill": False, LEASE_SECONDS: lease_seconds}


def releasing(name: str) -> dict[str, Any]:
    """Transfer parameters of a request that ends the lease of the request of that name."""
    return {RELEASE: name}
