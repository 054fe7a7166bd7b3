"""What Tandem puts into SGLang, unit by unit. fitting.py looks whether the SGLang that is installed
has what a unit needs, and puts the unit in.

A name of SGLang's is written as "module:name", a module of `sglang.srt` with a dot before it.
Behind the name of a function stand the parameters that Tandem gives, or takes, in brackets. A name
of Tandem's is one of a module beside this one. `{kv}` and `{Kv}` stand for what hands KV over.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tandem.engine.kv_tag import KvCheck
from tandem_sglang import mooncake
from tandem_sglang.additions import Additions

Asked = Callable[[Additions], bool]
SCHEDULER: Final = ".managers.scheduler:Scheduler"
KV_MANAGER: Final = ".disaggregation.{kv}:{Kv}KVManager"
KV_RECEIVER: Final = ".disaggregation.{kv}:{Kv}KVReceiver"
OUTPUTS: Final = "outputs"
TAGS: Final = "hand-over tags"
FORMS: Final = "forms"
SEEDS: Final = "seeds"
_KV_CONN: Final = ".disaggregation.{kv}.conn"
_BATCH_INFO: Final = ".sampling.sampling_batch_info:SamplingBatchInfo"
_DECODE: Final = ".disaggregation.decode"


_SAMPLER: Final = (
    ".layers.sampler:register_sampler_backend(backend, factory)",
    ".layers.sampler:Sampler.forward(logits_output, sampling_info, return_logprob,"
    " top_logprobs_nums, token_ids_logprobs, positions)",
    ".layers.sampler:Sampler._preprocess_logits(logits, sampling_info)",
    ".layers.sampler:Sampler._sync_token_ids_across_tp(batch_next_token_ids, sampling_info)",
    ".layers.sampler:multinomial_with_seed",
)


def _several_processes(additions: Additions) -> bool:
    return bool(additions.further)


def _several_data_ranks(additions: Additions) -> bool:
    return len(additions.states) > 1


def _by_nixl(additions: Additions) -> bool:
    return additions.transfer_backend != mooncake.NAME


class Withheld(enum.Enum):
    """Logits processors that a worker without a unit does not offer."""

    NONE = ""
    FORMS = "forms"
    HISTORIES = "processors that read tokens"
    ALL = "logits processors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One thing that Tandem puts into SGLang."""

    name: str
    promise: str
    """What holds with the unit."""
    needs: Sequence[str]
    """Names of SGLang's."""
    without: str
    """What holds instead where SGLang lacks a name, for people."""
    sampling: frozenset[str] = frozenset()
    """Sampling parameters that requests may not use without the unit."""
    withheld: Withheld = Withheld.NONE
    """Logits processors that requests may not name without the unit."""
    asked: Asked = lambda additions: True
    """Whether an engine with these additions has the unit."""
    needed: Asked = lambda additions: False
    """Whether such an engine does not start without the unit."""
    after: str = ""
    """A unit that this one builds on."""
    cured: str = ""
    """A name of SGLang's without which SGLang keeps the promise by itself."""
    parts: Sequence[tuple[str, str]] = ()
    """A class of SGLang's, and a class of Tandem's that a subclass of SGLang's begins with."""
    put: Sequence[str] = ()
    """Functions of Tandem's that are called with the additions."""
    otherwise: Sequence[str] = ()
    """Functions of Tandem's that are called where the unit is lacking."""
    proves: str = ""
    """A function of Tandem's by which a started engine proves the promise (proofs.py)."""
    in_worker: bool = False
    """`put` is for the worker's process; else it is for each scheduler's."""


UNITS: Final = (
    Unit(
        name=OUTPUTS,
        promise="A step's tokens come in one message of Tandem's own, and hand-overs are measured.",
        without="Tokens come in SGLang's messages, which take a worker more CPU; hand-overs are not"
        " measured, and all may take first_handover_timeout_seconds.",
        needed=_several_processes,
        needs=[
            f"{SCHEDULER}.init_ipc_channels(port_args)",
            f"{SCHEDULER}.get_output_streamer_class()",
            ".managers.scheduler_components.output_streamer:SchedulerOutputStreamer"
            ".build_additional_customized_info(reqs)",
            ".managers.scheduler_components.output_sender:SenderWrapper.send_output",
            ".managers.io_struct:wrap_as_pickle",
            ".utils.network:get_zmq_socket",
        ],
        parts=[(SCHEDULER, "streamer:OwnOutputs")],
    ),
    Unit(
        name="pages",
        promise="Decode's hand-overs are measured by the pages that decode asked for, and cached"
        " tokens are those of prefill.",
        without="Decode's hand-overs are not measured, and cached tokens count those of decode.",
        needs=[
            f"{SCHEDULER}.init_disaggregation()",
            f"{_DECODE}:DecodePreallocQueue._transfer_page_indices",
            f"{_DECODE}:DecodeTransferQueue._commit_transfer_to_req(decode_req)",
        ],
        parts=[(SCHEDULER, "decode_cache:CountsPages")],
    ),
    Unit(
        name="prefill layouts",
        promise="A prefill engine that does not answer keeps no sequence waiting but its own.",
        without="A prefill engine that does not answer stops all sequences of a decode engine, for"
        " up to 5 s at a time.",
        needs=[
            f"{SCHEDULER}.init_disaggregation()",
            f"{_DECODE}:DecodePreallocQueue._ensure_prefill_info(addr_to_reqs)",
            ".disaggregation.common.conn:CommonKVManager.try_ensure_parallel_info(bootstrap_addr)",
            ".disaggregation.common.conn:CommonKVReceiver._get_bootstrap_info_from_server("
            "prefill_dp_rank, prefill_cp_rank, target_tp_rank, target_pp_rank)",
            f"{KV_RECEIVER}.invalidate_cached_bootstrap_infos()",
            KV_MANAGER,
        ],
        parts=[
            (SCHEDULER, "layouts:ComesAtOnce"),
            (KV_MANAGER, "layouts:AsksBeside"),
            (KV_RECEIVER, "layouts:KnowsRoutes"),
        ],
    ),
    Unit(
        name="metadata of all ranks",
        promise="A hand-over has come when every rank of prefill has written its metadata.",
        without="A slower rank of prefill may write its metadata into another request's.",
        asked=_by_nixl,
        needs=[f"{KV_MANAGER}.update_transfer_status()"],
        cured=f"{KV_MANAGER}._handle_aux_notification",
        parts=[(KV_MANAGER, "hand_overs:AwaitsAllRanks")],
    ),
    Unit(
        name="messages of peers",
        promise="What another engine sends that cannot be read costs that engine alone.",
        without="What another engine sends that cannot be read ends this engine.",
        asked=_by_nixl,
        needs=[
            f"{KV_MANAGER}._start_bootstrap_thread()",
            f"{KV_MANAGER}._start_decode_listener_thread()",
            f"{KV_MANAGER}._add_remote_peer(decode_kv_args)",
            f"{KV_MANAGER}.conclude_failure(bootstrap_room, failure_reason, targets)",
            f"{_KV_CONN}:GUARD",
            f"{_KV_CONN}:TransferInfo.from_zmq",
            f"{_KV_CONN}:KVArgsRegisterInfo.from_zmq",
        ],
        parts=[(KV_MANAGER, "peers:NixlGates")],
    ),
    Unit(
        name="messages of Mooncake peers",
        promise="What another engine sends that cannot be read costs that engine alone.",
        without="What another engine sends that cannot be read ends this engine.",
        asked=lambda additions: not _by_nixl(additions),
        needs=[
            f"{KV_MANAGER}.start_prefill_thread()",
            f"{KV_MANAGER}.start_decode_thread()",
            f"{KV_MANAGER}.conclude_failure(bootstrap_room, failure_reason, targets)",
            f"{KV_MANAGER}.AUX_DATA_HEADER",
            f"{KV_MANAGER}._handle_aux_data",
            f"{_KV_CONN}:TransferInfo.from_zmq",
            f"{_KV_CONN}:KVArgsRegisterInfo.from_zmq",
        ],
        parts=[(KV_MANAGER, "peers:MooncakeGates")],
    ),
    Unit(
        name=TAGS,
        promise="Decode answers from no other KV than that of the request.",
        without="Nothing compares what has come, as with kv_check=off, which the fingerprint says.",
        asked=lambda additions: additions.kv_check is not KvCheck.OFF,
        needs=[
            f"{SCHEDULER}.init_disaggregation()",
            ".disaggregation.utils:MetadataBuffers.set_buf(req)",
            f"{_DECODE}:DecodePreallocQueue._send_kv_metadata",
            f"{KV_RECEIVER}.send_metadata",
            f"{KV_RECEIVER}.poll()",
            ".mem_cache.common:kv_to_page_indices",
        ],
        parts=[(SCHEDULER, "hand_over_tags:ChecksTags")],
    ),
    Unit(
        name="load of prefill",
        promise="The load of a prefill engine counts the batch that is computed.",
        without="The load of a prefill engine counts nothing of the batch that is computed.",
        needs=[f"{SCHEDULER}.init_load_inquirer()"],
        parts=[(SCHEDULER, "prefill_load:CountsPrefilling")],
    ),
    Unit(
        name="failures",
        promise="A processor or a form that fails ends its request alone, and no step waits for"
        " that.",
        without="A step with logits processors waits until the GPU has told which failed; a failure"
        " may take the token before along, and the unit `forms` is lacking too.",
        needs=[
            f"{SCHEDULER}.run_batch(batch)",
            f"{SCHEDULER}.launch_batch_sample_if_needed(batch_result, cur_batch)",
            f"{SCHEDULER}.process_batch_result(batch, result)",
            f"{SCHEDULER}._pp_prepare_tensor_dict(result, batch)",
            f"{SCHEDULER}._pp_prep_batch_result(batch, mb_metadata, pp_outputs)",
        ],
        parts=[(SCHEDULER, "isolation:EndsAlone")],
        otherwise=["failures:tell_at_once"],
    ),
    Unit(
        name="histories",
        promise="A processor that reads tokens sees every token before its own.",
        without="Processors that read tokens are refused.",
        withheld=Withheld.HISTORIES,
        needs=[f"{SCHEDULER}.run_batch(batch)", ".environ:envs.SGLANG_ENABLE_DELAY_SAMPLE"],
        parts=[(SCHEDULER, "delayed_sampling:DelaysSampling")],
    ),
    Unit(
        name=FORMS,
        promise="A form that fails ends its request alone, and what is kept of forms is bounded.",
        without="Forms are refused.",
        withheld=Withheld.FORMS,
        after="failures",
        needs=[
            f"{SCHEDULER}.init_grammar_manager()",
            ".constrained.base_grammar_backend:register_grammar_backend(name, init_func)",
            ".constrained.base_grammar_backend:InvalidGrammarObject",
            ".constrained.grammar_manager:GrammarManager.process_req_with_grammar(req)",
            ".constrained.grammar_manager:GrammarManager.get_ready_grammar_requests()",
            ".constrained.llguidance_backend:GuidanceBackend._from_serialized(serialized_grammar)",
            ".constrained.llguidance_backend:GuidanceGrammar.fill_vocab_mask(vocab_mask, idx)",
            ".constrained.xgrammar_backend:XGrammarGrammarBackend._from_context",
            ".constrained.xgrammar_backend:XGrammarGrammar.fill_vocab_mask(vocab_mask, idx)",
            ".constrained.xgrammar_backend:XGrammarGrammar.fill_vocab_mask_batched",
            ".constrained.xgrammar_backend:GrammarCompiler",
            ".runtime_context:get_serving",
        ],
        parts=[(SCHEDULER, "grammar_queue:ManagesGrammars")],
        put=["grammar_backends:register", "grammars:end_alike"],
        proves="proofs:forms_fail_alone",
    ),
    Unit(
        name="forms of drafts",
        promise="A form that fails where drafts are verified ends its request alone.",
        without="Forms are refused.",
        withheld=Withheld.FORMS,
        after=FORMS,
        asked=lambda additions: additions.speculative,
        needs=[".speculative.spec_utils:generate_token_bitmask"],
        put=["drafts:end_alike"],
    ),
    Unit(
        name="penalties",
        promise="Penalties count what was put out, and all of it.",
        without="Requests with penalties are refused.",
        sampling=frozenset({"frequency_penalty", "presence_penalty", "repetition_penalty"}),
        asked=lambda additions: not additions.speculative,
        needs=[
            ".sampling.penaltylib:BatchedPenalizerOrchestrator(vocab_size, batch, penalizers)",
            f"{_BATCH_INFO}.update_penalties()",
            f"{_BATCH_INFO}._apply_pre_grammar_logits_transforms(logits)",
            ".model_executor.model_runner:ModelRunner.sample(logits_output, forward_batch)",
        ],
        put=["penalties:count_outputs"],
        proves="proofs:penalties_counted",
    ),
    Unit(
        name=SEEDS,
        promise="A request's seed decides its tokens, whatever shares its batches.",
        without="Requests with a seed are refused, as with seeded_sampling=false.",
        sampling=frozenset({"seed"}),
        asked=lambda additions: additions.seeded,
        needs=[*_SAMPLER, f"{_BATCH_INFO}.from_schedule_batch(batch, vocab_size)"],
        put=["seeds:seed_every_row", "sampler:register"],
        proves="proofs:drawn_by_seed",
    ),
    Unit(
        name="tokens of ranks",
        promise="Ranks that share a sequence take the same tokens, and end the same requests.",
        without="Logits processors and forms are refused.",
        withheld=Withheld.ALL,
        asked=lambda additions: additions.ranks > 1,
        needs=[
            *_SAMPLER,
            ".runtime_context:get_parallel",
            ".layers.dp_attention:is_dp_attention_enabled",
        ],
        put=["sampler:register"],
    ),
    Unit(
        name="local store",
        promise="torch's store listens on loopback alone where nobody else needs it.",
        without="torch's store listens on every network of the machine.",
        needs=["torch.distributed.rendezvous:TCPStore"],
        put=["store:keep_local"],
    ),
    Unit(
        name="data-parallel requests",
        promise="The process between data-parallel ranks takes no core while nothing comes, and"
        " ends with a rank that was killed.",
        without="That process keeps a core busy, and does not see that a rank was killed.",
        asked=_several_data_ranks,
        needed=_several_processes,
        needs=[
            ".entrypoints.engine:run_data_parallel_controller_process",
            ".managers.data_parallel_controller:DataParallelController.event_loop()",
            ".managers.data_parallel_controller:run_data_parallel_controller_process",
            ".managers.io_struct:sock_recv",
        ],
        put=["controller:put_in_place"],
        in_worker=True,
    ),
)
