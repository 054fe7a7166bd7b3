"""Log-probabilities from token ids to OpenAI's two shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tandem.v1 import common_pb2
from tandem_frontend.openai.answers import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)
from tandem_frontend.openai.tokenizer import ModelTokenizer

_LOWEST = -9999.0
"""Stands for a probability of zero: JSON has no infinity."""

_Candidate = tuple[int, float]


def for_chat(
    tokenizer: ModelTokenizer, entries: Iterable[common_pb2.TokenLogprobs]
) -> ChatLogprobs:
    content = []
    for (token_id, logprob), top in _tokens(entries):
        piece = tokenizer.token_bytes(token_id)
        content.append(
            TokenLogprob(
                token=_text(piece),
                logprob=logprob,
                bytes=list(piece),
                top_logprobs=[_top(tokenizer, *candidate) for candidate in top],
            )
        )
    return ChatLogprobs(content=content)


def for_completion(
    tokenizer: ModelTokenizer, entries: Sequence[common_pb2.TokenLogprobs], offset: int
) -> CompletionLogprobs:
    """`offset`: where the first token's text begins. A prompt's first token has no probability."""
    answer = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    for chosen, top in _tokens(entries):
        token = _text(tokenizer.token_bytes(chosen[0]))
        answer.tokens.append(token)
        answer.token_logprobs.append(chosen[1])
        answer.top_logprobs.append(
            {
                _text(tokenizer.token_bytes(token_id)): logprob
                for token_id, logprob in (*top, chosen)
            }
        )
        answer.text_offset.append(offset)
        offset += len(token)
    if entries and _begins_prompt(entries[0]):
        answer.token_logprobs[0] = answer.top_logprobs[0] = None
    return answer


def for_prompt(
    tokenizer: ModelTokenizer, entries: Sequence[common_pb2.TokenLogprobs]
) -> PromptLogprobs:
    """Log-probabilities of a prompt in vLLM's shape: by token id."""
    answer: PromptLogprobs = [_ranked(tokenizer, chosen, top) for chosen, top in _tokens(entries)]
    if entries and _begins_prompt(entries[0]):
        answer[0] = None
    return answer


def _ranked(
    tokenizer: ModelTokenizer, chosen: _Candidate, top: Sequence[_Candidate]
) -> dict[str, PromptLogprob]:
    ranks = {token_id: rank for rank, (token_id, _) in enumerate(top, 1)}
    return {
        str(token_id): PromptLogprob(
            logprob=logprob,
            rank=ranks.get(token_id),
            decoded_token=_text(tokenizer.token_bytes(token_id)),
        )
        for token_id, logprob in (chosen, *top)
    }


def _begins_prompt(entry: common_pb2.TokenLogprobs) -> bool:
    return entry.HasField("place") and entry.place == 0


def _tokens(
    entries: Iterable[common_pb2.TokenLogprobs],
) -> Iterator[tuple[_Candidate, Sequence[_Candidate]]]:
    """Each token with its probability, and its alternatives, best first."""
    for entry in entries:
        width = entry.top_count
        top = [
            (token_id, max(logprob, _LOWEST))
            for token_id, logprob in zip(entry.top_token_id, entry.top_logprob, strict=True)
        ]
        for position, (token_id, logprob) in enumerate(
            zip(entry.token_id, entry.logprob, strict=True)
        ):
            alternatives = top[position * width : (position + 1) * width]
            yield (token_id, max(logprob, _LOWEST)), alternatives


def _top(tokenizer: ModelTokenizer, token_id: int, logprob: float) -> TopLogprob:
    piece = tokenizer.token_bytes(token_id)
    return TopLogprob(token=_text(piece), logprob=logprob, bytes=list(piece))


def _text(piece: bytes) -> str:
    return piece.decode(errors="replace")
