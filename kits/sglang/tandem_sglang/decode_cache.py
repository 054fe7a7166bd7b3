"""Runs in a decode engine's scheduler process: what is sent of a prompt, where decode's own prefix
cache has the beginning of it.
"""

from __future__ import annotations

from typing import Any

_PAGES = "_tandem_pages"


def pages_of(req: Any) -> int | None:
    """How many pages prefill was asked to write for a request; None: nobody counted."""
    pages: int | None = getattr(req, _PAGES, None)
    return pages


class CountsPages:
    """For SGLang's Scheduler: counts those pages, in its DecodePreallocQueue. And keeps what
    prefill said it had cached of a prompt, in its DecodeTransferQueue: SGLang would count what
    decode has besides, which prefill computed all the same.
    """

    disagg_decode_prealloc_queue: Any
    disagg_decode_transfer_queue: Any

    def init_disaggregation(self) -> None:
        super().init_disaggregation()  # type: ignore[misc]
        asking, transferring = self.disagg_decode_prealloc_queue, self.disagg_decode_transfer_queue
        if asking is None:
            return
        choose, commit = asking._transfer_page_indices, transferring._commit_transfer_to_req

        def counted(decode_req: Any, *args: Any) -> Any:
            pages = choose(decode_req, *args)
            setattr(decode_req.req, _PAGES, len(pages))
            return pages

        def committed(decode_req: Any) -> None:
            commit(decode_req)
            req = decode_req.req
            req.already_computed = len(req.origin_input_ids)  # nothing beyond is added

        asking._transfer_page_indices = counted
        transferring._commit_transfer_to_req = committed
