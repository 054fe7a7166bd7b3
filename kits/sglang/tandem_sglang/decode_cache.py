"""Runs in a decode engine's scheduler process: what is sent of a prompt, where decode's own prefix
cache has the beginning of it.
"""

from __future__ import annotations

import functools
from typing import Any

from sglang.srt.disaggregation.decode import DecodePreallocQueue, DecodeTransferQueue

_PAGES = "_tandem_pages"


def pages_of(req: Any) -> int:
    """How many pages prefill was asked to write for a request."""
    pages: int = getattr(req, _PAGES)
    return pages


def observe() -> None:
    """Count those pages. And keep what prefill said it had cached of a prompt: SGLang would count
    what decode has besides, which prefill computed all the same.
    """
    choose = DecodePreallocQueue._transfer_page_indices
    commit = DecodeTransferQueue._commit_transfer_to_req

    @functools.wraps(choose)
    def counted(self: Any, decode_req: Any, *args: Any) -> Any:
        pages = choose(self, decode_req, *args)
        setattr(decode_req.req, _PAGES, len(pages))
        return pages

    @functools.wraps(commit)
    def committed(self: Any, decode_req: Any) -> None:
        commit(self, decode_req)
        req = decode_req.req
        req.already_computed = len(req.origin_input_ids)  # nothing beyond is added

    DecodePreallocQueue._transfer_page_indices = counted
    DecodeTransferQueue._commit_transfer_to_req = committed
