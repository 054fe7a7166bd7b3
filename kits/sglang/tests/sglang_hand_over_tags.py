"""Run by test_sglang_hand_over_tags.py: tags in SGLang's own metadata, from a prefill scheduler to
a decode scheduler, of which only what the tags need is there.
"""

from __future__ import annotations

import gc
import json
import weakref
from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.utils import (
    FAKE_BOOTSTRAP_HOST,
    DisaggregationMode,
    MetadataBuffers,
)

from tandem.engine.kv_tag import KvCheck
from tandem_sglang import hand_over_tags, requests
from tandem_sglang.units import UNITS

_TAGS = next(unit for unit in UNITS if unit.name == "hand-over tags")

PAGES, ITEM, ROOM, ROW = 16, 8, 77, 2
TOKENS = [5, 6, 7, 8]
HERE, THERE = [1, 2, 3, 4], [9, 8, 7, 6]
"""The prompt's pages in prefill and in decode."""
Change = Callable[["Handed"], object]


class Receiver:
    required_dst_info_num = 1

    def __init__(self) -> None:
        self.failures = failures = list[str]()
        self.asked: Any = None
        self.conclude_state: Any = None
        self.kv_mgr = SimpleNamespace(record_failure=lambda room, why: failures.append(why))

    def send_metadata(self, pages: Any, row: int) -> None:
        self.asked = pages, row

    def poll(self) -> Any:
        return KVPoll.Success


class Made(SimpleNamespace):
    def init_disaggregation(self) -> None:
        pass


class Scheduler(hand_over_tags.ChecksTags, Made):
    pass


class Handed:
    """One hand-over, in the steps of SGLang."""

    def __init__(self, check: KvCheck = KvCheck.TAG, *, ranks: int = 1) -> None:
        self.prefill = self._scheduler(DisaggregationMode.PREFILL, HERE)
        self.decode = self._scheduler(DisaggregationMode.DECODE, THERE)
        self.asked, self.given = self._request(), self._request()
        self.additions = SimpleNamespace(kv_check=check, on_cpu=True, revision="r")
        self.ranks = ranks
        self.receiver = Receiver()
        self.receiver.required_dst_info_num = ranks

    def offer(self) -> None:
        self._watch(self.decode)
        self.decode_req = SimpleNamespace(
            req=self.asked, kv_receiver=self.receiver, metadata_buffer_index=-1
        )
        self.decode.disagg_decode_prealloc_queue._send_kv_metadata(self.decode_req)

    def write(self) -> None:
        self._watch(self.prefill)
        pages, row = self.receiver.asked
        info = SimpleNamespace(
            is_dummy=False,
            dst_kv_indices=pages,
            dst_aux_index=row,
            required_dst_info_num=self.ranks,
        )
        self.given.disagg_kv_sender.kv_mgr.transfer_infos = {self.given.bootstrap_room: {"d": info}}
        self.prefill.disagg_metadata_buffers.set_buf(self.given)

    def _watch(self, scheduler: Any) -> None:
        if _TAGS.asked(self.additions):  # type: ignore[arg-type]
            scheduler.additions = self.additions
            scheduler.init_disaggregation()

    def carry(self) -> None:
        self.decode.memory[THERE] = self.prefill.memory[HERE]
        row = self.prefill.disagg_metadata_buffers.bootstrap_room[0].clone()
        self.decode.disagg_metadata_buffers.bootstrap_room[ROW] = row

    def outcome(self) -> str:
        state = self.receiver_poll()
        return "answered" if state == KVPoll.Success else self.receiver.failures[-1]

    def receiver_poll(self) -> Any:
        return self.receiver.poll()

    def _scheduler(self, mode: DisaggregationMode, pages: list[int]) -> Any:
        memory = numpy.arange(PAGES * ITEM, dtype=numpy.uint8).reshape(PAGES, ITEM)
        memory = memory + (100 if mode is DisaggregationMode.DECODE else 0)
        manager = SimpleNamespace(
            kv_args=SimpleNamespace(
                kv_data_ptrs=[memory.ctypes.data],
                kv_data_lens=[memory.nbytes],
                kv_item_lens=[ITEM],
            )
        )
        queue = SimpleNamespace(kv_manager=manager, _send_kv_metadata=self._send)
        return Scheduler(
            disaggregation_mode=mode,
            memory=memory,
            disagg_prefill_bootstrap_queue=queue,
            disagg_decode_prealloc_queue=queue,
            disagg_metadata_buffers=MetadataBuffers(4, 16, torch.float32, 8),
            server_args=SimpleNamespace(kv_cache_dtype="auto", page_size=1),
            model_config=SimpleNamespace(dtype=torch.float32, num_hidden_layers=2),
            req_to_token_pool=SimpleNamespace(req_to_token=torch.tensor([pages])),
        )

    @staticmethod
    def _send(decode_req: Any) -> None:
        decode_req.metadata_buffer_index = ROW
        decode_req.kv_receiver.send_metadata(numpy.array(THERE, dtype=numpy.int32), ROW)

    @staticmethod
    def _request() -> Any:
        return SimpleNamespace(
            bootstrap_host="10.0.0.1",
            bootstrap_room=ROOM,
            origin_input_ids=array("q", TOKENS),
            cache_salt=requests.salt("acme", "sql"),
            metadata_buffer_index=0,
            kv=SimpleNamespace(req_pool_idx=0),
            disagg_decode_prefix_len=0,
            disagg_kv_sender=SimpleNamespace(kv_mgr=SimpleNamespace()),
            output_ids=[7],
            cached_tokens=0,
            cached_tokens_device=0,
            cached_tokens_host=0,
            cached_tokens_storage=0,
            multimodal_inputs=None,
            return_logprob=False,
            return_sampling_mask=False,
            hidden_states_tensor=None,
        )


def _handed(handed: Handed, before: Change | None = None, after: Change | None = None) -> str:
    """`before`: done to it before prefill writes. `after`: once all has come."""
    handed.offer()
    if before is not None:
        before(handed)
    handed.write()
    handed.carry()
    if after is not None:
        after(handed)
    return handed.outcome()


def _given(**fields: Any) -> Change:
    return lambda handed: handed.given.__dict__.update(fields)


def _tear(handed: Handed) -> None:
    handed.decode.memory[THERE[-1]] = 0


def _give_away(handed: Handed) -> None:
    handed.decode.req_to_token_pool.req_to_token[0, 1] = 15


def _older_offer(handed: Handed) -> None:
    pages, row = handed.receiver.asked
    handed.receiver.asked = pages[::-1].copy(), row


def _other_row(handed: Handed) -> None:
    row = handed.decode.disagg_metadata_buffers.bootstrap_room[ROW]
    row[0] = ROOM + 1


def what_becomes_of_each() -> dict[str, str]:
    other_model = Handed()
    other_model.decode.model_config.num_hidden_layers = 3
    elsewhere = Handed()
    elsewhere.asked.bootstrap_host = elsewhere.given.bootstrap_host = FAKE_BOOTSTRAP_HOST
    return {
        "good": _handed(Handed()),
        "good, bytes": _handed(Handed(KvCheck.BYTES)),
        "good, two ranks": _handed(Handed(ranks=2)),
        "prompt": _handed(Handed(), _given(origin_input_ids=array("q", [5, 6, 7, 9]))),
        "salt": _handed(Handed(), _given(cache_salt=requests.salt("other", "sql"))),
        "adapter": _handed(Handed(), _given(cache_salt=requests.salt("acme", "law"))),
        "model": _handed(other_model),
        "room": _handed(Handed(), after=_other_row),
        "older offer": _handed(Handed(), _older_offer),
        "given away": _handed(Handed(), after=_give_away),
        "given away, two ranks": _handed(Handed(ranks=2), after=_give_away),
        "torn": _handed(Handed(), after=_tear),
        "torn, bytes": _handed(Handed(KvCheck.BYTES), after=_tear),
        "prompt, off": _handed(Handed(KvCheck.OFF), _given(origin_input_ids=array("q", [9]))),
        "warm-up": _handed(elsewhere, after=_other_row),
    }


def when_it_is_looked_at() -> list[str]:
    """Before the row has come, when it has, and whether SGLang's state says the same for good."""
    handed = Handed()
    handed.offer()
    said = [str(handed.receiver_poll() == KVPoll.Success)]
    handed.write()
    handed.carry()
    handed.asked.cache_salt = requests.salt("other", "sql")
    said += [handed.outcome(), str(handed.receiver.conclude_state == KVPoll.Failed)]
    return said


def what_is_left_when_it_is_over() -> list[str]:
    """Without a word of the garbage collector's, once SGLang has let the receiver go."""
    gc.disable()
    handed = Handed()
    left = [_handed(handed)]
    receiver = weakref.ref(handed.receiver)
    handed.decode_req.kv_receiver = None
    del handed.receiver
    return [*left, str(receiver())]


if __name__ == "__main__":
    asked = (what_becomes_of_each, when_it_is_looked_at, what_is_left_when_it_is_over)
    print(json.dumps({each.__name__: each() for each in asked}))
