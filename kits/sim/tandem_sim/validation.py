"""Whether the sim engine can ever run a request, and what it will need."""

from __future__ import annotations

from tandem.engine import prompt_ids
from tandem.engine.base import EngineRequest, Role
from tandem.errors import ContextLengthError, InvalidRequestError
from tandem.logits import embedding_bias
from tandem.logits.model import Model
from tandem.logits.registry import Registry
from tandem.logits.tap import LogitsTap
from tandem.token_limits import check_token_ids, context_error
from tandem.v1 import worker_pb2
from tandem_sim.kv_pool import KvPool
from tandem_sim.language import Language
from tandem_sim.sampling import RowSampler
from tandem_sim.sequence import Sequence


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
) -> Sequence:
    """Raises RequestError, naming the field."""
    _check_tokens(request, limits)
    if (role is Role.AGGREGATED) != (request.room == 0):
        raise InvalidRequestError(f"a {role.value} engine cannot take this room", param="room")
    if role is Role.DECODE and not request.kv_peer:
        raise InvalidRequestError("decode must know its prefill engine", param="kv_peer")
    sampling = request.sampling
    if sampling.max_tokens < 1:
        raise InvalidRequestError("max_tokens must be at least 1", param="max_tokens")
    check_token_ids(sampling.logit_bias, limits.vocabulary, param="logit_bias")
    if request.embedding_bias is not None:
        embedding_bias.check(request.embedding_bias, limits.vocabulary)
    length = len(request.token_ids)
    limit = min(sampling.max_tokens, limits.context_length - length)
    prompt_pages = pool.pages_for(length + len(request.made))
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
    return Sequence(
        id=request.request_id,
        request=request,
        prompt_pages=prompt_pages,
        total_pages=total_pages,
        limit=limit,
        stops=stops if sampling.ignore_eos else stops | eos,
        sampler=(RowSampler(request, language, registry, model, tapped) if steered else None),
        faults=frozenset(),
    )


def _check_tokens(request: EngineRequest, limits: worker_pb2.Limits) -> None:
    tokens = request.token_ids
    if not tokens:
        raise InvalidRequestError("the prompt has no tokens", param="prompt")
    before = len(tokens) + len(request.made)
    if error := context_error(before, None, limits.context_length, param="prompt"):
        raise error
    prompt_ids.check(tokens, limits.vocabulary)
    check_token_ids(request.made, limits.vocabulary, param="resume")
