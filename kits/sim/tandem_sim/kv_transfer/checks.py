"""What a peer's words on the hand-over stream may be. What cannot be costs its own room, or the
peer's stream where it is of no room.
"""

from __future__ import annotations

import re
from math import isfinite

from tandem.engine import kv_tag
from tandem.engine.rooms import MOST_ROOMS
from tandem.errors import KvTransferError
from tandem.v1 import kv_pb2

MOST_PAGES = 2**24
"""Pages of the largest KV memory."""
MAX_METADATA_BYTES = 1024 * 1024
MAX_INSTANCE_CHARACTERS = 256
MOST_LEASE_MS = 24 * 3600 * 1000
"""Decode may wait for longer: prefill writes no later than this."""
_MOST_ADDRESS = 2**64 - 1
_TRANSPORT = re.compile("[a-z0-9_+]{0,64}")
"""One or several of UCX's, joined. Empty: prefill does not say."""


def check_memory(memory: kv_pb2.KvMemory) -> None:
    """Raises KvTransferError for one that no engine has."""
    end = memory.base_address + memory.pages * memory.page_bytes
    if not 0 < memory.pages <= MOST_PAGES or end > _MOST_ADDRESS:
        raise KvTransferError(f"{memory.pages} KV pages are no engine's memory")
    if len(memory.agent_metadata) > MAX_METADATA_BYTES:
        raise KvTransferError("NIXL's metadata are too large")
    if len(memory.instance) > MAX_INSTANCE_CHARACTERS:
        raise KvTransferError("an instance's name is too long")


def check_offers(message: kv_pb2.KvOffers) -> None:
    """Raises KvTransferError for a message that is no engine's."""
    if max(len(message.offers), len(message.abort)) > MOST_ROOMS:
        raise KvTransferError(f"more than {MOST_ROOMS} rooms at once")


def check_offer(offer: kv_pb2.KvOffer, *, pages: int) -> None:
    """Raises KvTransferError for pages that a memory of so many does not have, or has once."""
    if not offer.room:
        raise KvTransferError("a room without a number is offered")
    if len(set(offer.pages)) != len(offer.pages) or max(offer.pages, default=0) >= pages:
        raise KvTransferError("offered pages are doubled, or outside the memory")


def check_landed(landed: kv_pb2.KvLanded) -> None:
    """Raises KvTransferError for what no hand-over comes to."""
    logprobs = (landed.first_logprob, *landed.top_logprob)
    if len(landed.top_token_id) != len(landed.top_logprob) or not all(map(isfinite, logprobs)):
        raise KvTransferError("a log-probability is out of range")
    if not (isfinite(landed.seconds) and landed.seconds >= 0):
        raise KvTransferError("the time of a hand-over is out of range")
    if landed.tag and kv_tag.unpacked(landed.tag) is None:
        raise KvTransferError("the tag of a hand-over cannot be read")
    if not _TRANSPORT.fullmatch(landed.transport):
        raise KvTransferError("a hand-over names no transport")
