"""What SGLang's chunks mean: tokens, log-probabilities, hand-overs and endings. Pure.

SGLang ends an abort in three shapes: with status 500 (a hand-over failed, or its wait was aborted),
without a status (a running request), and as "Abort in waiting queue". What it means depends on who
asked for it, so the caller decides that first; what is judged here nobody asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from tandem.engine import kv_tag
from tandem.engine.base import Ending, KvTransfer, Logprobs, PromptLogprobs, Role
from tandem.errors import (
    ContradictionError,
    DeadlineError,
    EngineError,
    InvalidRequestError,
    KvCorruptError,
    KvTransferError,
    ProcessorError,
    TandemError,
)
from tandem.v1 import common_pb2
from tandem_sglang.outputs import HandOver

HAND_OVER_KEY = "tandem_hand_over"
"""Key in meta_info under which the scheduler sends [bytes, seconds, transport], once a request."""
ERROR_TYPES: Mapping[type[TandemError], str] = {
    ProcessorError: "TandemProcessorError",
    ContradictionError: "TandemContradictionError",
}
"""`err_type` of an abort that logits processors or a form caused."""
_OF_TYPE = {name: kind for kind, name in ERROR_TYPES.items()}

_HAND_OVER_FAILURES = (
    "Decode transfer failed",
    "Decode handshake failed",
    "Prefill transfer failed",
    "Prefill bootstrap failed",
)
_CORRUPT = (kv_tag.REFUSED, "KV checksum mismatch", "Metadata corruption detected")
"""What is in a message of KV or of its metadata that were refused: Tandem's, and SGLang's own."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How SGLang ended a request, and whether another pair may do better."""

    ending: Ending
    error: TandemError | None = None
    retryable: bool = False


def end_of(meta_info: Mapping[str, Any]) -> Ended | None:
    """The end that a chunk brings, or None while the request runs."""
    reason = meta_info.get("finish_reason")
    if reason is None:
        return None
    match reason["type"]:
        case "stop":
            return Ended(Ending.STOP)
        case "length":
            return Ended(Ending.LENGTH)
        case _:
            return _failure(reason)


def _failure(reason: Mapping[str, Any]) -> Ended:
    message = str(reason.get("message") or "aborted")
    if (kind := _OF_TYPE.get(reason.get("err_type", ""))) is not None:
        return Ended(Ending.FAILED, kind(message))
    if any(each in message for each in _CORRUPT):
        return Ended(Ending.FAILED, KvCorruptError(_without_names(message)), retryable=True)
    if message.startswith(_HAND_OVER_FAILURES):
        return Ended(Ending.FAILED, KvTransferError(_without_names(message)), retryable=True)
    if reason.get("status_code") == HTTPStatus.BAD_REQUEST:
        return Ended(Ending.FAILED, InvalidRequestError(message))
    return Ended(Ending.FAILED, EngineError(f"SGLang ended the request: {message}"), retryable=True)


def _without_names(message: str) -> str:
    """Without SGLang's own names of request, rank and room: "Decode transfer failed: why"."""
    what, _, why = message.partition(" with exception ")
    what = what.partition(" for request ")[0]
    why = why.rpartition("): ")[2]
    return f"{what}: {why}" if why else what


def logprobs_of(
    meta_info: Mapping[str, Any], count: int, wanted: common_pb2.SamplingParams
) -> Logprobs | None:
    """Log-probabilities of a chunk's `count` tokens; None where none were asked for."""
    chosen = meta_info.get("output_token_logprobs")
    if not chosen or not wanted.HasField("logprobs"):
        return None
    top = meta_info.get("output_top_logprobs") or [None] * count
    return Logprobs(
        chosen=[value for value, _, _ in chosen[:count]],
        top=[_alternatives(entries, wanted.logprobs) for entries in top[:count]],
    )


def prompt_logprobs_of(
    meta_info: Mapping[str, Any], token_ids: Sequence[int], alternatives: int
) -> PromptLogprobs:
    """The log-probabilities of a prompt, which each chunk of its request carries: the first token
    has a place of its own, without a value, and all alternatives stand in one list, in rows that
    are longer than was asked for where the output is to have more.

    Raises EngineError where SGLang did not say them of every token.
    """
    chosen = [value for value, _, _ in meta_info["input_token_logprobs"][1:]]
    top: list[list[tuple[int, float]]] = [[] for _ in chosen]
    if alternatives:
        tokens = meta_info["input_top_logprobs_idx_flat"]
        values = meta_info["input_top_logprobs_val_flat"]
        length = meta_info["input_top_logprobs_shape"][1]
        rows = [slice(row, row + alternatives) for row in range(0, len(values), length)]
        top = [list(zip(tokens[row], values[row], strict=True)) for row in rows]
    if not len(chosen) == len(top) == len(token_ids) - 1:
        raise EngineError(
            f"SGLang gave log-probabilities of {len(chosen)} of {len(token_ids)} prompt tokens"
        )
    return PromptLogprobs(token_ids, Logprobs(chosen, top))


def hand_over_of(measured: HandOver | None) -> KvTransfer | None:
    """What the scheduler measured of the hand-over, in the one output that carries it.

    PREFILL: bytes and seconds of SGLang's NIXL sender, from the first page written to the last one
    acknowledged; with chunked prefill that spans the forward passes between the chunks. Mooncake's
    tells no seconds: there they begin with the prompt's last step.
    DECODE: bytes of the pages that were written here, and the seconds from the moment their
    addresses were sent to prefill until everything had landed. Decode cannot see when prefill
    begins to write: where it was ready first, its seconds hold prefill's queue and forward pass.
    Nor can it see over what that writes.
    """
    if not measured:
        return None
    size, seconds, transport = measured[0]
    return KvTransfer(bytes=int(size), seconds=float(seconds), transport=str(transport))


def deadline(role: Role, *, started: bool, seconds: float) -> TandemError:
    """Why a request whose time ran out failed."""
    if started or role is Role.AGGREGATED:
        return DeadlineError(f"the engine did not finish within {seconds:.1f} s")
    return KvTransferError(f"no KV hand-over within {seconds:.1f} s")


def _alternatives(
    entries: Sequence[tuple[float, int, Any]] | None, most: int
) -> list[tuple[int, float]]:
    return [(token, value) for value, token, _ in (entries or ())[:most]]
