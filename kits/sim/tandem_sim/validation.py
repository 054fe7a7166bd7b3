"""Whether the sim engine can ever run a request, and what it will need."""

from __future__ import annotations

from tandem.engine import request_checks
from tandem.engine.base import EngineRequest, Role
from tandem.errors import ContextLengthError, InvalidRequestError
from tandem.logits.model import Model
from tandem.logits.registry import Registry
from tandem.logits.tap import LogitsTap
from tandem.token_limits import check_token_ids, context_error
from tandem.v1 import worker_pb2
from tandem_sim.kv_pool import KvPool
from tandem_sim.language import Language
from tandem_sim.sampling import RowSampler
from tandem_sim.sequence import SimSequence


def checked(
    request: EngineRequest,
    *,
    role: Role,
    language: Language,
    pool: KvPool,
    limits: worker_pb2.Limits,
    eos: frozenset[int],
    registry: Registry,
    model: Model,
    tap: LogitsTap | None = None,
) -> SimSequence:
    """Raises RequestError, naming the field."""
    request_checks.check(request, role, limits.vocabulary)
    sampling, before = request.sampling, len(request.token_ids) + len(request.made)
    if error := context_error(before, None, limits.context_length, param="prompt"):
        raise error
    if sampling.max_tokens < 1:
        raise InvalidRequestError("max_tokens must be at least 1", param="max_tokens")
    check_token_ids(sampling.logit_bias, limits.vocabulary, param="logit_bias")
    length = len(request.token_ids)
    limit = min(sampling.max_tokens, limits.context_length - length)
    prompt_pages = pool.pages_for(before)
    total_pages = prompt_pages if role is Role.PREFILL else pool.pages_for(length + limit)
    if total_pages * pool.page_size > pool.total_tokens:
        raise ContextLengthError(
            f"{length} prompt tokens and {limit} to generate do not fit the KV pool of "
            f"{pool.total_tokens} tokens",
            param="max_tokens",
        )
    tapped = None if tap is None else tap.of(request.trace_id)
    steered = tapped is not None or RowSampler.needed(request)
    stops = frozenset(sampling.stop_token_ids)
    return SimSequence(
        id=request.request_id,
        request=request,
        prompt_pages=prompt_pages,
        total_pages=total_pages,
        limit=limit,
        stops=stops if sampling.ignore_eos else stops | eos,
        sampler=(RowSampler(request, language, registry, model, tapped) if steered else None),
        faults=frozenset(),
    )
