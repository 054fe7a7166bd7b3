"""Run in a process of its own by test_sglang_scheduler_side.py: what Tandem does inside SGLang's
scheduler, on SGLang's classes and torch, with stand-ins for SGLang's requests. Prints JSON."""

from __future__ import annotations

import gc
import json
import math
import multiprocessing
import os
import struct
import sys
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import torch
import zmq
from sglang.srt.disaggregation.decode import DecodePreallocQueue
from sglang.srt.disaggregation.utils import FAKE_BOOTSTRAP_HOST, DisaggregationMode
from sglang.srt.environ import envs
from sglang.srt.layers import logprob_processor
from sglang.srt.layers.sampler import Sampler
from sglang.srt.managers import scheduler as managers_scheduler
from sglang.srt.managers.io_struct import AbortReq, sock_recv, sock_send
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.scheduler_components import ipc_channels
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.utils.hf_transformers_utils import get_tokenizer
from sglang_arrivals import hand_overs_by_what_has_come
from sglang_drafts import (
    MODEL,
    forms_where_drafts_are_verified,
    ways_to_draft_that_apply_no_grammars,
)
from sglang_grammars import (
    compiled_grammars,
    ends_in_a_pipeline,
    ends_of_grammars,
    watched_grammars,
)
from sglang_layouts import (
    prefill_engines_are_asked_beside_the_loop,
    ranks_of_prefill_are_known_before_they_are_needed,
)
from sglang_peers import (
    messages_of_decode_engines,
    messages_of_decode_engines_by_mooncake,
    messages_of_prefill_engines,
)
from sglang_units import DEFAULT, own_scheduler

from tandem import config
from tandem.errors import StartError
from tandem.logits import (
    BaseLogitsProcessor,
    Model,
    Need,
    Row,
    TokenHistory,
    embedding_bias,
    state,
)
from tandem.logits.registry import Registry
from tandem.logits.spec import LogitsProcessorEntry, write_entries
from tandem.v1 import common_pb2
from tandem_sglang import (
    arguments,
    controller,
    cpu,
    decode_cache,
    delayed_sampling,
    failures,
    grammar_backends,
    guidance,
    options,
    processor,
    requests,
    sampler,
    scheduler,
    seeds,
)
from tandem_sglang import streamer as streamer_side
from tandem_sglang.additions import Additions, TokenAddresses
from tandem_sglang.rows import RowEditor
from tandem_sglang.streamer import MeasuringStreamer

VOCABULARY = 8


class Raises:
    needs: ClassVar[frozenset[Need]] = frozenset({Need.POSITION})

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        raise KeyError("secret")


class Moody(Raises):
    def __init__(self) -> None:
        raise RuntimeError("secret")


class Looks(BaseLogitsProcessor):
    """Writes what it was given into the row: position, has_tokens, calls of this instance."""

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        self._calls += 1
        logits[0] = float(input_ids.position)
        logits[1] = float(input_ids.has_tokens)
        logits[2] = float(self._calls)
        logits[3] = float(input_ids[-1]) if input_ids.has_tokens else -1.0


class Request(SimpleNamespace):
    """As SGLang's, it can be referred to weakly."""


def request(prompt: list[int], output: list[int], committed: int) -> Any:
    return Request(
        kv=SimpleNamespace(kv_committed_len=committed),
        origin_input_ids=array("q", prompt),
        output_ids=array("q", output),
        sampling_params=SimpleNamespace(custom_params=None),
        to_finish=None,
        finished=lambda: False,
    )


def install() -> None:
    """The registry of this process, as a worker's engine sends it."""
    registry = Registry.builtin()
    registry.register("raise", Raises)
    registry.register("look", Looks)
    registry.register("moody", Moody)
    processor.use(RowEditor(registry, Model(vocabulary=VOCABULARY, eos_token_ids=[7])))


def params(req: Any, name: str, **args: Any) -> dict[str, Any]:
    entry = LogitsProcessorEntry(name, args)
    return {requests.SPEC_KEY: write_entries((entry,)), "__req__": req}


def forced(req: Any, *token_ids: int) -> dict[str, Any]:
    return params(req, "forced_sequence", token_ids=list(token_ids), eos_token_id=7)


def apply(*given: dict[str, Any]) -> list[list[float]]:
    """Through a fresh instance, as for each of SGLang's batches."""
    rows = torch.full((len(given), VOCABULARY), 0.5)
    edited = processor.TandemLogitProcessor()(rows, list(given))
    for noted in failures.taken():
        noted.tell(noted.codes, ())
    return [[value if math.isfinite(value) else -1e9 for value in row] for row in edited.tolist()]


LATENTS = SimpleNamespace(is_mla_backend=True)
HEADS_4 = SimpleNamespace(is_mla_backend=False, kv_args=SimpleNamespace(total_kv_head_num=4))


def additions(**given: Any) -> Additions:
    return replace(DEFAULT, **given)


def shares_are_counted_as_often_as_ranks_write_them() -> Any:
    """By ranks of prefill and decode: of four KV heads, and of latents."""
    streamer = MeasuringStreamer.__new__(MeasuringStreamer)
    found = {}
    for own, peer in ((1, 1), (2, 2), (8, 8), (1, 2), (2, 1), (8, 4), (4, 8), (2, 8), (1, 8)):
        streamer.additions = additions(ranks=own, peer_ranks=peer)
        found[f"{own}-{peer}"] = [streamer._senders(each) for each in (HEADS_4, LATENTS)]
    return found


def hand_overs_have_less_time_once_kv_has_moved() -> Any:
    """Seconds before, after one that nobody took part in, after one that failed, and after one."""
    moved = SimpleNamespace(transfer_latency_s=0.5, transfer_total_bytes=10)
    nothing = SimpleNamespace(transfer_latency_s=None, transfer_total_bytes=0)
    manager = SimpleNamespace(bootstrap_timeout=300)
    streamer = MeasuringStreamer.__new__(MeasuringStreamer)
    streamer.additions = additions(ranks=2, peer_ranks=2)
    streamer.disaggregation_mode = DisaggregationMode.PREFILL
    streamer.scheduler = SimpleNamespace(
        disagg_prefill_bootstrap_queue=SimpleNamespace(kv_manager=manager)
    )
    found: list[Any] = [manager.bootstrap_timeout]
    for host, metric in ((FAKE_BOOTSTRAP_HOST, moved), ("10.0.0.1", nothing), ("10.0.0.1", moved)):
        sender = SimpleNamespace(get_transfer_metric=lambda metric=metric: metric, kv_mgr=HEADS_4)
        req = SimpleNamespace(bootstrap_host=host, finished_reason=None, disagg_kv_sender=sender)
        measured = streamer._measure(req)
        found.append([manager.bootstrap_timeout, measured])
    return found


def _counts_pages(preallocating: Any, transferring: Any) -> None:
    """Have decode's queues be those of a scheduler that counts pages."""

    class Queues:
        def init_disaggregation(self) -> None:
            self.disagg_decode_prealloc_queue = preallocating
            self.disagg_decode_transfer_queue = transferring

    class Counts(decode_cache.CountsPages, Queues):
        pass

    Counts().init_disaggregation()


def cached_tokens_stay_those_of_prefill() -> Any:
    """Of a prompt of 9 tokens, before and after decode's 7 of them could be added to 5."""
    req = SimpleNamespace(origin_input_ids=range(9), already_computed=0)
    committed: list[int] = []

    def commit(decode_req: Any) -> None:
        decode_req.req.already_computed = 5
        committed.append(5)

    transferring = SimpleNamespace(_commit_transfer_to_req=commit)
    _counts_pages(SimpleNamespace(_transfer_page_indices=None), transferring)
    transferring._commit_transfer_to_req(SimpleNamespace(req=req))
    return [committed, max(0, 7 - req.already_computed)]


def pages_that_decode_asks_for_are_counted() -> Any:
    """Three of them, of 4 tokens each."""
    queue = SimpleNamespace(kv_manager=SimpleNamespace(kv_item_lens_sum=100))
    streamer = MeasuringStreamer.__new__(MeasuringStreamer)
    streamer.additions = additions(ranks=2, peer_ranks=2)
    streamer.scheduler = SimpleNamespace(disagg_decode_prealloc_queue=queue)
    times = SimpleNamespace(wait_queue_entry_time=4.0, decode_transfer_queue_entry_time=3.0)
    asks = SimpleNamespace(req=SimpleNamespace(time_stats=times))
    asked_by: Any = DecodePreallocQueue.__new__(DecodePreallocQueue)
    _counts_pages(asked_by, SimpleNamespace(_commit_transfer_to_req=None))
    pages = asked_by._transfer_page_indices(asks, torch.arange(8, 20), 4)
    return [pages.tolist(), streamer._received(asks.req)]


def hand_overs_by_mooncake_are_measured() -> Any:
    """In prefill, whose sender tells no times, and in decode."""
    streamer = MeasuringStreamer.__new__(MeasuringStreamer)
    streamer.additions = additions(ranks=1, peer_ranks=1, transfer_backend="mooncake")
    streamer_side.get_mooncake_transfer_engine = lambda: SimpleNamespace(ib_device="")
    metric = SimpleNamespace(transfer_latency_s=None, transfer_total_bytes=10)
    sent = SimpleNamespace(
        disagg_kv_sender=SimpleNamespace(get_transfer_metric=lambda: metric, kv_mgr=HEADS_4),
        time_stats=SimpleNamespace(prefill_transfer_queue_entry_time=2.0, completion_time=2.5),
    )
    return [streamer._sent(sent), streamer._transport(writes=False)]


def hand_overs_by_libfabric_name_their_wire() -> Any:
    """Of prefill and of decode, where libfabric has one provider alone."""
    streamer = MeasuringStreamer.__new__(MeasuringStreamer)
    streamer.additions = additions(ranks=1, peer_ranks=1)
    chosen = envs.SGLANG_DISAGGREGATION_NIXL_BACKEND.override("LIBFABRIC")
    with chosen, patch.dict(os.environ, FI_PROVIDER="efa"):
        return [streamer._transport(writes=writes) for writes in (True, False)]


def outputs_go_past_the_detokenizer() -> Any:
    """The addresses that a scheduler's outputs and answers leave for."""
    opened: list[str] = []

    def socket(context: Any, kind: Any, address: str, bind: bool) -> str:
        opened.append(address)
        return address

    ports = SimpleNamespace(
        scheduler_input_ipc_name="in",
        rpc_ipc_name="rpc",
        tokenizer_ipc_name="worker",
        detokenizer_ipc_name="detokenizer",
    )
    with patch.object(ipc_channels, "get_zmq_socket", socket):
        made = _channels((), ports)
    return [made.send_to_tokenizer.socket, made.send_to_detokenizer.socket, opened]


def a_further_process_has_sockets_of_its_own() -> Any:
    """Beside SGLang's own, which stay the first process's: the addresses that requests come from,
    and those at which an answer about a request of the second, and about nobody's, arrives.
    """
    with TemporaryDirectory() as folder, zmq.Context() as context:
        names = ("in", "rpc", "worker", "detokenizer", "requests-2", "outputs-2")
        at = {name: f"ipc://{folder}/{name}" for name in names}
        ports = SimpleNamespace(
            scheduler_input_ipc_name=at["in"],
            rpc_ipc_name=at["rpc"],
            tokenizer_ipc_name=at["worker"],
            detokenizer_ipc_name=at["detokenizer"],
        )
        with (
            context.socket(zmq.PUSH) as ours,
            context.socket(zmq.PUSH) as theirs,
            context.socket(zmq.PULL) as first,
            context.socket(zmq.PULL) as second,
        ):
            for socket, name in (
                (ours, "in"),
                (theirs, "requests-2"),
                (first, "worker"),
                (second, "outputs-2"),
            ):
                socket.linger = 0
                socket.bind(at[name])
            further = TokenAddresses(requests=at["requests-2"], outputs=at["outputs-2"])
            made = _channels([further], ports)
            answers = made.send_to_tokenizer
            for inbox in (made.recv_from_tokenizer, first, second):
                inbox.rcvtimeo = 20_000
            for rid in (requests.rid(7, requests.names(2, 1)), requests.rid(8), ""):
                answers.send_output(AbortReq(rid=rid))
            sock_send(ours, AbortReq(rid="from the first"))
            sock_send(theirs, AbortReq(rid="from the second"))
            got = [
                [sock_recv(socket).rid for _ in range(count)]
                for socket, count in ((made.recv_from_tokenizer, 2), (second, 1), (first, 2))
            ]
            sockets = (
                made.recv_from_tokenizer,
                made.recv_from_rpc,
                made.send_to_detokenizer.socket,
            )
            senders = [each.socket for each in answers._senders]
            for socket in (*sockets, *senders):
                socket.close(0)
            return [sorted(got[0]), *got[1:]]


def _channels(further: Sequence[TokenAddresses], ports: Any) -> Any:
    own = own_scheduler(further=further)
    made: Any = own.__new__(own)
    made.skip_tokenizer_init = False
    alone = SimpleNamespace(pp_rank=0, attn_tp_rank=0, attn_cp_rank=0, dp_rank=None, dp_size=1)
    seen = SimpleNamespace(enable_metrics=False, load_snapshot_publish_interval=1)
    scheduler._past_detokenizer(ports)
    with (
        patch.object(managers_scheduler, "get_parallel", lambda: alone),
        patch.object(managers_scheduler, "get_observability", lambda: seen),
    ):
        made.init_ipc_channels(ports)
    return made.ipc_channels


def rows_are_edited_by_their_own_request() -> Any:
    first, second = request([1, 2], [], 2), request([1, 2, 3], [4], 4)
    rows = apply(forced(first, 5, 6), forced(second, 5, 6))
    return [row.index(max(row)) for row in rows]


def a_bias_is_added_after_the_processors() -> Any:
    """To the rows of its own request, at every position."""
    bias = common_pb2.EmbeddingBias(
        token_ids=array("I", [0, 6]).tobytes(), values=array("f", [2.0, 1.0]).tobytes()
    )
    req, other = request([1], [], 1), request([1], [], 1)
    given = params(req, "banned_tokens", token_ids=[0])
    given[requests.BIAS_KEY] = embedding_bias.write(bias)
    rows = []
    for output in ([], [4]):
        req.output_ids = array("q", output)
        req.kv.kv_committed_len = 1 + len(output)
        rows.append(apply(given, forced(other, 5))[0])
    return rows


def position_under_overlap() -> Any:
    """Two tokens are committed, but only the first is in output_ids yet."""
    return apply(params(request([1, 2], [4], 4), "look"))[0][:4]


def position_with_exact_history() -> Any:
    return apply(params(request([1, 2], [4, 5], 4), "look"))[0][:4]


def middle_chunks() -> Any:
    """Of a prefill, and of one repeated after a retraction: neither row may be touched."""
    return apply(forced(request([1, 2, 3], [], 2), 5), forced(request([1, 2, 3], [4, 5, 6], 4), 5))


def state_is_kept_on_the_request() -> Any:
    """Calls that an instance saw: while its request goes on, after SGLang repeated a position, and
    of another request."""
    req, other = request([1], [], 1), request([1], [], 1)
    calls = []
    for output in ([], [4], [4, 5], [4, 5]):
        req.output_ids = array("q", output)
        req.kv.kv_committed_len = 1 + len(output)
        instance = id(getattr(req, "_tandem_logits", None))
        calls.append(apply(params(req, "look"))[0][2])
    kept = id(req._tandem_logits) == instance
    return [*calls, apply(params(other, "look"))[0][2], kept]


def failing_row() -> Any:
    bad, good = request([1], [], 1), request([1], [], 1)
    rows = apply(params(bad, "raise"), forced(good, 5))
    return {
        "reason": bad.to_finish.to_json(),
        "row": rows[0],
        "neighbour": rows[1].index(max(rows[1])),
        "neighbour_ends": good.to_finish is not None,
        "again": apply(params(bad, "raise"))[0] == [0.5] * VOCABULARY,
    }


def failing_rows_are_read_with_their_results() -> Any:
    """Which of two requests have ended: when their step is sampled, when it is copied, when another
    is sampled, and where its tokens are taken in. With and without overlap.
    """
    ended: list[Any] = []
    asked: list[Any] = []

    def look(*_: Any) -> None:
        ended.append([each.to_finish is not None for each in asked])

    def sample(given: list[dict[str, Any]]) -> None:
        processor.TandemLogitProcessor()(torch.full((len(given), VOCABULARY), 0.5), given)

    def run(_: Any, given: list[dict[str, Any]], result: Any) -> Any:
        sample(given)
        look()
        return result

    Scheduler.run_batch, Scheduler.process_batch_result = run, look
    own = _scheduler()
    for overlap in (True, False):
        asked[:] = [request([1], [], 1), request([1], [], 1)]
        given = [params(asked[0], "raise"), forced(asked[1], 5)]
        result = GenerationBatchResult(next_token_ids=torch.tensor([0, 5]))
        if overlap:
            result.copy_done = SimpleNamespace(
                record=lambda: None, synchronize=lambda: ended.append("copied")
            )
        own.run_batch(given, result)
        look()
        if overlap:
            sample(given[1:])
            look()
        own.process_batch_result(SimpleNamespace(reqs=asked), result)
    return {"one step": [*ended], "two steps": [_two_steps_at_once(way) for way in (True, False)]}


def _scheduler() -> Any:
    own = own_scheduler()
    made: Any = own.__new__(own)
    made._delayed = SimpleNamespace(decide=lambda batch: None)
    return made


def _two_steps_at_once(copied: bool) -> Any:
    """Rows that have ended once each result is taken in, where both are on their way before. The
    second row of the first step fails, and the first of the second.
    """
    steps = [[request([1], [], 1), request([1], [], 1)] for _ in range(2)]
    results, own = [], _scheduler()
    for number, (one, other) in enumerate(steps):
        bad, good = (other, one) if number == 0 else (one, other)
        rows = {id(bad): params(bad, "raise"), id(good): forced(good, 5)}
        result = GenerationBatchResult(next_token_ids=torch.tensor([0, 5]))
        if copied:
            result.copy_done = SimpleNamespace(record=lambda: None, synchronize=lambda: None)
        results.append(own.run_batch([rows[id(one)], rows[id(other)]], result))
    seen = []
    for reqs, result in zip(steps, results, strict=True):
        own.process_batch_result(SimpleNamespace(reqs=reqs), result)
        seen.append([[each.to_finish is not None for each in step] for step in steps])
    return seen


def failures_of_sampling_that_waited_are_kept() -> list[bool]:
    """Whether a request has ended once its step has run, which did not sample; once it has been
    sampled; and once its tokens are taken in.
    """
    req = request([1], [], 1)
    result = GenerationBatchResult(next_token_ids=torch.tensor([0]))

    def sample(*_: Any) -> None:
        processor.TandemLogitProcessor()(torch.full((1, VOCABULARY), 0.5), [params(req, "raise")])

    own, found = _scheduler(), []
    with (
        patch.object(Scheduler, "run_batch", lambda *_: result),
        patch.object(Scheduler, "launch_batch_sample_if_needed", sample),
        patch.object(Scheduler, "process_batch_result", lambda *_: None),
    ):
        for step in (
            lambda: own.run_batch(None),
            lambda: own.launch_batch_sample_if_needed(result, None),
            lambda: own.process_batch_result(SimpleNamespace(reqs=[req]), result),
        ):
            step()
            found.append(req.to_finish is not None)
    return found


def tokens_of_steps_with_processors_are_the_first_ranks() -> Any:
    """Which of a step's ways to share them are taken: with processors, and without."""
    ways: list[Any] = []
    Sampler._sync_token_ids_across_tp = lambda *_: ways.append("SGLang's")
    sampler.distributed = SimpleNamespace(
        broadcast=lambda token_ids, group, group_src: ways.append([token_ids, group, group_src])
    )
    own: Any = sampler.OwnSampler.__new__(sampler.OwnSampler)
    own.__dict__.update(tp_sync_group="group", _shares=True)
    for has in (True, False):
        info = SimpleNamespace(has_custom_logit_processor=has)
        own._sync_token_ids_across_tp([7], info)
    return ways


def failing_when_built() -> Any:
    req, good = request([1], [], 1), request([1], [], 1)
    rows = apply(params(req, "moody"), forced(good, 5))
    return [req.to_finish.to_json(), rows[0], rows[1].index(max(rows[1]))]


def state_dies_with_its_request() -> Any:
    """By reference counting alone, although SGLang refers to a request from itself."""
    gc.disable()
    counts = []
    for _ in range(50):
        req = request([1], [], 1)
        given = params(req, "look")
        req.sampling_params = SimpleNamespace(custom_params=given)
        apply(given)
        counts.append(state.alive())
        del req, given
    return [max(counts), state.alive()]


def late_sampling() -> Any:
    """What is decided for batches: without processors, with one, with one that reads tokens."""

    def batch(*flags: bool | None) -> Any:
        reqs = [
            SimpleNamespace(
                sampling_params=SimpleNamespace(
                    custom_params=None if flag is None else {requests.HISTORY_KEY: flag}
                )
            )
            for flag in flags
        ]
        active = any(flag is not None for flag in flags)
        return SimpleNamespace(
            reqs=reqs, sampling_info=SimpleNamespace(has_custom_logit_processor=active)
        )

    seen: list[bool] = []
    delayed = delayed_sampling.DelayedSampling()
    for given in (
        batch(None, None),
        batch(None, False),
        batch(None, False, True),
        batch(None),
        None,
    ):
        delayed.decide(given)
        seen.append(envs.SGLANG_ENABLE_DELAY_SAMPLE.get())
    envs.SGLANG_ENABLE_DELAY_SAMPLE.clear()
    return seen


def murmur(seed: int, position: int, column: int) -> int:
    """MurmurHash3, as published, in plain integers."""

    def rotate(word: int, bits: int) -> int:
        return ((word << bits) | (word >> (32 - bits))) & 0xFFFFFFFF

    state = 0
    for block in struct.unpack("<4I", struct.pack("<QII", seed, position, column)):
        mixed = rotate(block * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
        state = (rotate(state ^ mixed, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    state ^= 16
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = ((state ^ (state >> shift)) * factor) & 0xFFFFFFFF
    return state ^ (state >> 16)


def hashes() -> Any:
    cases = [(0, 0), (1, 2), (2**63 - 1, 4095), (2**62 + 12345, 77)]
    made = seeds.murmur_hash32(
        torch.tensor([seed for seed, _ in cases], dtype=torch.int64),
        torch.tensor([position for _, position in cases]),
        torch.arange(50),
    )
    expected = [[murmur(seed, at, column) for column in range(50)] for seed, at in cases]
    return bool(made.tolist() == expected)


def shares() -> Any:
    """Of three tokens with probabilities 0.2, 0.3 and 0.5 over many positions of one seed."""
    draws = 20_000
    logprobs = torch.tensor([[0.2, 0.3, 0.5]]).log().expand(draws, 3)
    drawn = seeds.multinomial_with_seed(
        logprobs, torch.full((draws,), 5, dtype=torch.int64), torch.arange(draws)
    )
    return (torch.bincount(drawn.view(-1), minlength=3) / draws).tolist()


class Compiled(SimpleNamespace):
    """As an xgrammar grammar of SGLang, as far as its size is asked."""


def grammar_caches() -> Any:
    """Both are bounded, the least recently used goes first, and what is replaced counts once."""
    cache = grammar_backends.GrammarCache(1_000)
    tokenizer = get_tokenizer(str(MODEL))
    with patch.object(grammar_backends, "GrammarCompiler", lambda _, **given: given):
        kept = grammar_backends.OwnXgrammarBackend(2_000, tokenizer=tokenizer, vocab_size=2048)
    for key in "abc":
        cache[key] = Compiled(ctx=SimpleNamespace(memory_size_bytes=400))
        cache["a"] = cache.get("a")
    return [sorted(cache), kept.cache._max_bytes, kept.grammar_compiler["cache_limit_bytes"]]


def bounded_guidance() -> Any:
    """llguidance's matchers have our limits, so a step that is too dear is an error; JSON is as
    xgrammar's and sim's. And the kind of a grammar, and of its copy.
    """
    made: list[Any] = []

    def matcher(_tokenizer: Any, _grammar: str, **given: Any) -> None:
        made.append([given["limits"].step_max_items, given["limits"].max_lexer_states])

    tokenizer = get_tokenizer(str(MODEL))
    backend = grammar_backends.OwnGuidanceBackend(
        1, tokenizer=tokenizer, any_whitespace=False, n_vocab=2048
    )
    grammar = backend.dispatch_regex("ab")
    kinds = [type(each).__name__ for each in (grammar, grammar.copy())]
    named = SimpleNamespace(grammar_from_json_schema=lambda _, **given: made.append(given))
    with patch.object(guidance, "LLMatcher", named):
        backend.dispatch_json("{}")
    with patch.object(guidance, "LLMatcher", matcher):
        guidance.bounded("tokenizer", "grammar")
    return [*made, kinds]


def scored_at_once() -> Any:
    """Tokens of a prompt that SGLang makes rows of logits for, in a worker's environment."""
    name = "SGLANG_LOGPROB_CHUNK_SIZE"
    variables = arguments.environment(options.parse({}), host="h", device="cpu")
    config.export({name: variables[name]})
    made = logprob_processor.InputLogprobProcessor(VOCABULARY)
    return made.logprobs_chunk_size if made.enable_logprobs_chunk else "all"


def schedulers_that_the_worker_started_are_seen_to_end() -> list[bool]:
    """Whether the controller serves while its scheduler is there, and after: since 0.5.22 the
    worker starts them, and the controller has the end of a pipe of each.
    """
    reader, writer = multiprocessing.Pipe()
    inbox = zmq.Context.instance().socket(zmq.PULL)
    served = SimpleNamespace(
        recv_from_tokenizer=inbox,
        scheduler_procs=[],
        prelaunched_schedulers={(0, 0): (1, reader)},
        soft_watchdog=SimpleNamespace(feed=lambda: None),
    )
    serving = threading.Thread(target=controller._serve, args=(served, ()), daemon=True)
    serving.start()
    serving.join(0.2)
    before = serving.is_alive()
    writer.close()
    serving.join(10)
    inbox.close(linger=0)
    return [before, serving.is_alive()]


def missing_plugin() -> Any:
    try:
        cpu.verify()
    except StartError as error:
        return str(error)
    return "no error"


CHECKS: tuple[Callable[[], Any], ...] = (
    rows_are_edited_by_their_own_request,
    a_bias_is_added_after_the_processors,
    position_under_overlap,
    position_with_exact_history,
    middle_chunks,
    state_is_kept_on_the_request,
    failing_row,
    failing_rows_are_read_with_their_results,
    failures_of_sampling_that_waited_are_kept,
    tokens_of_steps_with_processors_are_the_first_ranks,
    failing_when_built,
    state_dies_with_its_request,
    late_sampling,
    hashes,
    shares,
    grammar_caches,
    watched_grammars,
    ends_of_grammars,
    ends_in_a_pipeline,
    compiled_grammars,
    forms_where_drafts_are_verified,
    ways_to_draft_that_apply_no_grammars,
    bounded_guidance,
    scored_at_once,
    prefill_engines_are_asked_beside_the_loop,
    ranks_of_prefill_are_known_before_they_are_needed,
    hand_overs_by_what_has_come,
    messages_of_decode_engines,
    messages_of_decode_engines_by_mooncake,
    messages_of_prefill_engines,
    schedulers_that_the_worker_started_are_seen_to_end,
    missing_plugin,
    shares_are_counted_as_often_as_ranks_write_them,
    hand_overs_have_less_time_once_kv_has_moved,
    cached_tokens_stay_those_of_prefill,
    pages_that_decode_asks_for_are_counted,
    hand_overs_by_mooncake_are_measured,
    hand_overs_by_libfabric_name_their_wire,
    outputs_go_past_the_detokenizer,
    a_further_process_has_sockets_of_its_own,
    processor.TandemLogitProcessor.to_str,
)

if __name__ == "__main__":
    sys.modules["sglang_scheduler_side"] = sys.modules["__main__"]
    install()
    answers = {check.__name__: check() for check in CHECKS}
    sys.stdout.write("\n" + json.dumps(answers))
