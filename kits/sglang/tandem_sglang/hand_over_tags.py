"""Runs in SGLang's scheduler processes: prefill tags each hand-over, and decode answers from no
other KV than that of the request (tandem/engine/kv_tag.py).

The tag lies in the row of metadata that SGLang writes to decode with a prompt's last pages, in the
words behind the room, which SGLang leaves empty. Decode looks when SGLang says that the hand-over
has come: all pages and the row. What does not match is a failed hand-over, on all ranks, and SGLang
keeps the pages until prefill writes into them no more. Nothing of SGLang's classes is replaced:
these are members of one scheduler's own objects.
"""

from __future__ import annotations

import ctypes
import functools
import zlib
from collections.abc import Callable
from typing import Any

import numpy
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.utils import FAKE_BOOTSTRAP_HOST, DisaggregationMode
from sglang.srt.mem_cache.common import kv_to_page_indices

from tandem.engine import kv_tag
from tandem.engine.kv_tag import KvCheck, KvTag
from tandem.errors import KvCorruptError
from tandem_sglang import requests
from tandem_sglang.additions import Additions

Pages = Any
"""Numbers of pages, (pages,) integers."""
_GIVEN_AWAY = -1
"""No number of pages."""


class ChecksTags:
    """For SGLang's Scheduler."""

    additions: Additions
    disaggregation_mode: Any
    disagg_prefill_bootstrap_queue: Any
    disagg_decode_prealloc_queue: Any
    disagg_metadata_buffers: Any

    def init_disaggregation(self) -> None:
        super().init_disaggregation()  # type: ignore[misc]
        if self.disaggregation_mode is DisaggregationMode.PREFILL:
            manager = self.disagg_prefill_bootstrap_queue.kv_manager
            tags, buffers = HandOverTags(self, manager), self.disagg_metadata_buffers
            buffers.set_buf = functools.partial(_write, tags, buffers.set_buf)
        elif self.disaggregation_mode is DisaggregationMode.DECODE:
            queue = self.disagg_decode_prealloc_queue
            tags = HandOverTags(self, queue.kv_manager)
            queue._send_kv_metadata = functools.partial(_send, tags, queue._send_kv_metadata)


class HandOverTags:
    """The tags of one scheduler's hand-overs. A tag's words are a row of `rows`, (rows, 8) uint64,
    the room first.
    """

    def __init__(self, scheduler: Any, manager: Any) -> None:
        """`scheduler` has its queues and its memory."""
        additions, args = scheduler.additions, scheduler.server_args
        config = scheduler.model_config
        self.rows = scheduler.disagg_metadata_buffers.bootstrap_room.numpy()
        self._pool = scheduler.req_to_token_pool
        self._page_size = args.page_size
        self._layout = kv_tag.number_of(
            additions.revision,
            config.dtype,
            args.kv_cache_dtype,
            args.page_size,
            config.num_hidden_layers,
        )
        # On GPUs SGLang itself sums the bytes up, where they are.
        summed = additions.kv_check is KvCheck.BYTES and additions.on_cpu
        self._memories = _memories(manager.kv_args) if summed else []

    def pages_of(self, req: Any) -> Pages:
        """Those of a request's prompt, now. PREFILL: without those of the beginning that decode has
        itself.
        """
        had = int(req.disagg_decode_prefix_len)
        places = self._pool.req_to_token[req.kv.req_pool_idx, had : len(req.origin_input_ids)]
        return kv_to_page_indices(places, self._page_size)

    def of(self, req: Any, held: Pages, number: int) -> KvTag:
        """The tag that the hand-over of a request is to have, whose KV is in the pages `held` here;
        `number` is that of decode's pages.
        """
        adapter, salt = requests.salted(req.cache_salt)
        contents = 0
        for memory in self._memories:
            contents = zlib.crc32(memory[held], contents)
        return kv_tag.tag_of(
            room=req.bootstrap_room,
            tokens=req.origin_input_ids,
            layout=self._layout,
            adapter=adapter,
            salt=salt,
            pages=number,
            contents=contents,
        )

    def write(self, req: Any) -> None:
        """PREFILL: beside the metadata of a request whose last pages are to be written."""
        manager = req.disagg_kv_sender.kv_mgr
        infos = manager.transfer_infos.get(req.bootstrap_room, {}).values()
        offers = [each for each in infos if not each.is_dummy]
        if offers:
            first = offers[0]
            number = _number(first.dst_kv_indices, first.dst_aux_index, first)
            # Their numbers lie on the GPU, which is waited for.
            held = self.pages_of(req) if self._memories else None
            self.rows[req.metadata_buffer_index] = self.of(req, held, number)

    def check(self, req: Any, row: int, held: Pages, number: int) -> None:
        """DECODE: raises KvCorruptError where what has come is not the request's."""
        kv_tag.check(KvTag(*self.rows[row].tolist()), self.of(req, held, number))


def _memories(kv_args: Any) -> list[Any]:
    """All the memory that is handed over, which a CPU reads, each (pages, bytes) uint8."""
    return [
        numpy.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address)).reshape(-1, item)
        for address, size, item in zip(
            kv_args.kv_data_ptrs, kv_args.kv_data_lens, kv_args.kv_item_lens, strict=True
        )
    ]


def _number(pages: Pages, row: int, asked: Any) -> int:
    """Which pages and which row of metadata decode has asked to have written. 0: several ranks of
    decode have asked the same of one of prefill, whose one row goes to all of them. `asked`: of
    SGLang, prefill's TransferInfo or decode's receiver.
    """
    if asked.required_dst_info_num > 1:
        return 0
    return kv_tag.number_of_pages([int(row), *pages.tolist()])


def _write(tags: HandOverTags, set_buf: Callable[[Any], None], req: Any) -> None:
    """In place of SGLang's `set_buf` of a prefill scheduler's metadata."""
    set_buf(req)
    if req.bootstrap_host != FAKE_BOOTSTRAP_HOST:
        tags.write(req)


def _send(
    tags: HandOverTags, send: Callable[..., None], decode_req: Any, *args: Any, **more: Any
) -> None:
    """In place of SGLang's `_send_kv_metadata` of a decode scheduler's queue."""
    if decode_req.req.bootstrap_host != FAKE_BOOTSTRAP_HOST:
        _Checked(tags, decode_req)
    send(decode_req, *args, **more)


class _Checked:
    """One hand-over to decode: what was asked for, and the look at what has come."""

    def __init__(self, tags: HandOverTags, decode_req: Any) -> None:
        self._tags = tags
        self._decode_req = decode_req
        self._asked: Pages = None
        self._held: Pages = None
        self._matches = False
        # Nothing here holds the receiver: SGLang lets it go when the hand-over ends, and a cycle
        # would keep the request until the garbage collector comes by.
        receiver = decode_req.kv_receiver
        receiver.send_metadata, receiver.poll = self.send_metadata, self.poll

    def send_metadata(self, pages: Pages, row: int, *args: Any, **more: Any) -> None:
        self._asked, self._held = pages, self._tags.pages_of(self._decode_req.req)
        receiver = self._decode_req.kv_receiver
        type(receiver).send_metadata(receiver, pages, row, *args, **more)

    def poll(self) -> Any:
        """SGLang's state of the hand-over: Failed where it has come and is not the request's."""
        receiver = self._decode_req.kv_receiver
        state = type(receiver).poll(receiver)
        if state != KVPoll.Success or self._matches:
            return state
        row = self._decode_req.metadata_buffer_index
        if self._tags.rows[row, 0] == 0:
            return state  # SGLang waits for the row by itself
        req = self._decode_req.req
        number = _number(self._asked, row, receiver)
        if not numpy.array_equal(self._held, self._tags.pages_of(req)):
            number = _GIVEN_AWAY
        try:
            self._tags.check(req, row, self._asked, number)
        except KvCorruptError as error:
            receiver.kv_mgr.record_failure(req.bootstrap_room, error.message)
            receiver.conclude_state = KVPoll.Failed
            return KVPoll.Failed
        self._matches = True
        return state
