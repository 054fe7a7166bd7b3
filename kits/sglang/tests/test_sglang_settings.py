"""The SGLang engine's options, the environment and ServerArgs made from them, and its refusals."""

from __future__ import annotations

import json
import random
import socket
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from one_case import one_case
from sglang_settings import MODEL, engine_settings, server_args

from tandem import free_ports
from tandem.engine import model_files
from tandem.engine.base import ONE_NODE, EngineRequest, EngineUnit, Nodes, Role, UnitState
from tandem.errors import ConfigError, InternalError, RequestError, StartError, UnsupportedError
from tandem.free_ports import FreePorts
from tandem.logits import BaseLogitsProcessor, Model, Row, TokenHistory
from tandem.logits.registry import Registry
from tandem.logits.settings import ProcessorSettings
from tandem.logits.spec import (
    LogitsProcessorEntry,
    LogitsProcessorSpec,
    PythonProcessorSpec,
)
from tandem.v1 import common_pb2
from tandem_sglang import SglangEngine, SglangFollower, arguments, options, parallel
from tandem_sglang.additions import TokenAddresses
from tandem_sglang.ports import Ports, inner_port
from tandem_sglang.processors import Processors
from tandem_sglang.setup import Setup
from tandem_sglang.traffic import DataRanks
from tandem_sglang.units import Withheld

SPECULATIVE = {"server_args": json.dumps({"speculative_algorithm": "EAGLE"})}


class ReadsHistory:
    """Needs the tokens, as everything that declares nothing does."""

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        logits[input_ids[-1]] = 0.0


class Dice(BaseLogitsProcessor):
    """Gives another row each time."""

    deterministic = False

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        logits[random.randrange(len(logits))] += 1.0


def prefixes_kept(name: str, value: Any) -> dict[str, Any]:
    """Options with which decode is to keep prefixes beside an argument of SGLang's."""
    return {"decode_prefix_cache": True, "server_args": json.dumps({name: value})}


def with_history() -> Registry:
    registry = Registry.builtin()
    registry.register("reader", ReadsHistory)
    return registry


@one_case(
    ("raw", "named"),
    [
        ({"mem_fraction": 0.5}, "mem_fraction"),
        ({"device": "tpu"}, "device"),
        ({"page_size": "many"}, "page_size"),
        ({"page_size": True}, "page_size"),
        ({"page_size": -1}, "page_size"),
        ({"device": "cpu", "page_size": 16}, "page_size"),
        ({"mem_fraction_static": 1.5}, "mem_fraction_static"),
        ({"bootstrap_port": 70000}, "bootstrap_port"),
        ({"tensor_parallel": 0}, "tensor_parallel"),
        ({"data_parallel": 0}, "data_parallel"),
        ({"server_args": '{"dp_size": 2}'}, "data_parallel"),
        ({"server_args": '{"load_balance_method": "round_robin"}'}, "which data-parallel rank"),
        ({"disable_overlap_schedule": "perhaps"}, "disable_overlap_schedule"),
        ({"transfer_backend": "mori"}, "transfer_backend"),
        ({"server_args": "{"}, "server_args"),
        ({"server_args": "[]"}, "server_args"),
        ({"server_args": '{"skip_tokenizer_init": true}'}, "skip_tokenizer_init"),
        ({"server_args": '{"disaggregation_mode": "null"}'}, "disaggregation_mode"),
        ({"server_args": '{"nnodes": 2}'}, "nnodes"),
        (prefixes_kept("disable_radix_cache", True), "disable_radix_cache"),
        (prefixes_kept("enable_hisparse", True), "enable_hisparse"),
        (prefixes_kept("speculative_algorithm", "EAGLE"), "speculative_algorithm"),
    ],
)
def test_a_wrong_option_is_refused_by_name(raw: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        options.parse(raw)


def test_options_given_as_text_become_numbers_and_switches() -> None:
    parsed = options.parse(
        {"page_size": "1", "mem_fraction_static": "0.25", "disable_overlap_schedule": "true"}
    )
    assert (parsed.page_size, parsed.mem_fraction_static) == (1, 0.25)
    assert parsed.disable_overlap_schedule is True


def test_server_args_of_the_operator_are_passed_on_but_never_replace_ours() -> None:
    made = server_args(Role.DECODE, {"server_args": '{"quantization": "fp8", "log_level": "info"}'})
    assert (made["quantization"], made["log_level"]) == ("fp8", "info")
    assert made["incremental_streaming_output"] is True


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_a_phase_is_started_disaggregated_over_nixl_or_what_was_chosen(role: Role) -> None:
    made = server_args(role, {})
    assert made["disaggregation_mode"] == role.value
    assert made["disaggregation_transfer_backend"] == "nixl"
    chosen = server_args(role, {"transfer_backend": "mooncake"})
    assert chosen["disaggregation_transfer_backend"] == "mooncake"
    assert made["disaggregation_bootstrap_port"] == 4321
    assert "disaggregation_mode" not in server_args(Role.AGGREGATED, {})


@pytest.mark.promise("S5-420")
def test_decode_keeps_prefixes_where_it_is_told_to_and_no_other_role_does() -> None:
    name = "disaggregation_decode_enable_radix_cache"
    assert name not in server_args(Role.DECODE, {})
    on = {"decode_prefix_cache": "true"}
    assert [server_args(role, on).get(name) for role in (Role.PREFILL, Role.DECODE)] == [None, True]
    with pytest.raises(ConfigError, match="decode_prefix_cache is for decode workers"):
        SglangEngine(Role.AGGREGATED, engine_settings(on))


def test_decode_keeps_prefixes_beside_the_drafts_that_sglang_allows() -> None:
    options.parse(prefixes_kept("speculative_algorithm", "DSPARK"))
    options.parse(prefixes_kept("enable_hierarchical_cache", True))


def test_cpu_gets_the_only_attention_backend_and_page_size_that_run_there() -> None:
    made = server_args(Role.DECODE, {})
    assert (made["attention_backend"], made["page_size"]) == ("torch_native", 1)
    assert made["disaggregation_decode_retraction_backup"] == "cpu_tensor"


def test_a_gpu_keeps_the_choices_of_sglang_for_kernels() -> None:
    made = server_args(Role.DECODE, {}, device="cuda")
    assert made.keys().isdisjoint({"attention_backend", "chunked_prefill_size"})


def test_a_step_of_every_sequence_is_captured_as_a_graph_where_steps_are_made() -> None:
    for role in (Role.DECODE, Role.AGGREGATED):
        assert server_args(role, {}, device="cuda")["cuda_graph_max_bs_decode"] == 8
    assert "cuda_graph_max_bs_decode" not in server_args(Role.PREFILL, {}, device="cuda")
    chosen = {"server_args": '{"cuda_graph_max_bs_decode": 4}'}
    assert server_args(Role.DECODE, chosen, device="cuda")["cuda_graph_max_bs_decode"] == 4


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_seeds_decide_tokens_unless_the_operator_switches_that_off(device: str) -> None:
    assert server_args(Role.DECODE, {}, device=device)["sampling_backend"] == "pytorch"
    off = server_args(Role.DECODE, {"seeded_sampling": "false"}, device=device)
    assert "sampling_backend" not in off


def test_shims_for_cpu_are_switched_on_only_there() -> None:
    parsed = options.parse({})
    on_cpu = arguments.environment(parsed, host="h", device="cpu")
    on_gpu = arguments.environment(parsed, host="h", device="cuda")
    assert on_cpu["SGLANG_USE_CPU_ENGINE"] == "1"
    assert on_cpu["SGLANG_PLUGINS"] == arguments.CPU_PLUGIN
    assert on_cpu["TORCHDYNAMO_DISABLE"] == "1", "no compiler is needed, whatever the path"
    assert on_gpu.keys().isdisjoint(
        {"SGLANG_USE_CPU_ENGINE", "SGLANG_PLUGINS", "TORCHDYNAMO_DISABLE"}
    )


@pytest.mark.parametrize(
    ("raw", "seconds"),
    [
        ({}, "300"),
        ({"first_handover_timeout_seconds": 9, "handover_timeout_seconds": 7}, "9"),
        ({"first_handover_timeout_seconds": 5, "handover_timeout_seconds": 7}, "7"),
    ],
)
def test_sglang_starts_with_the_time_that_the_first_hand_over_has(
    raw: dict[str, Any], seconds: str
) -> None:
    made = arguments.environment(options.parse(raw), host="h", device="cuda")
    assert made["SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT"] == seconds
    assert made["SGLANG_DISAGGREGATION_WAITING_TIMEOUT"] == seconds


def test_outputs_of_one_step_arrive_together_however_many_there_are() -> None:
    assert server_args(Role.DECODE, {}, device="cuda")["batch_notify_size"] == 8


def ports_of(role: Role, held: ExitStack, nodes: Nodes = ONE_NODE, **raw: Any) -> Ports:
    kept = {"server_args": json.dumps({"disable_radix_cache": True})}  # leaves no files
    return Setup(role, engine_settings(raw | kept, nodes=nodes)).ports(held)


def test_a_taken_hand_over_port_is_refused_before_sglang_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, ExitStack() as held:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match="bootstrap_port"):
            ports_of(Role.PREFILL, held, bootstrap_port=port)
    with ExitStack() as held:
        assert ports_of(Role.PREFILL, held, bootstrap_port=port).bootstrap == port
        socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_an_address_of_another_machine_is_refused_before_sglang_starts(role: Role) -> None:
    kept = {"server_args": json.dumps({"disable_radix_cache": True})}
    setup = Setup(role, engine_settings(kept, host="192.0.2.1"))
    with ExitStack() as held, pytest.raises(StartError, match=r"cannot listen on 192\.0\.2\.1"):
        setup.ports(held)


def test_ports_are_an_engine_s_alone_until_sglang_listens_on_them() -> None:
    """It asked the system for one, and listened tens of seconds later."""
    with ExitStack() as held:
        given = ports_of(Role.PREFILL, held)
        assert given.bootstrap != given.meeting
        for port in (given.bootstrap, given.meeting):
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", port))
            socket.create_server(("127.0.0.1", port)).close()
        assert server_args(Role.PREFILL, {}, ports=given)["nccl_port"] == given.meeting
        own = {"server_args": json.dumps({"nccl_port": 25_000})}
        assert server_args(Role.PREFILL, own, ports=given)["nccl_port"] == 25_000
        assert ports_of(Role.DECODE, held).bootstrap == 0
        several = Nodes(count=2, rank=0, leader="10.0.0.1:7120")
        assert ports_of(Role.DECODE, held, several, tensor_parallel=2) == Ports()


def processors_of(
    registry: Registry, raw: dict[str, Any] | None = None, ranks: int = 1
) -> Processors:
    model = Model(**model_files.processor_facts(MODEL))
    given = options.parse(raw or {})
    return Processors(registry, given, model, ranks, given.pipeline_parallel)


def spec_of(name: str, **args: Any) -> LogitsProcessorSpec:
    return LogitsProcessorSpec((LogitsProcessorEntry(name, args),))


@pytest.mark.promise("S5-804")
@pytest.mark.parametrize(
    ("withheld", "refused", "applied"),
    [
        (Withheld.FORMS, {"regex", "json_schema", "ebnf", "tagged"}, {"choice", "reader", "bias"}),
        (Withheld.HISTORIES, {"reader", "no_repeat_ngram"}, {"regex", "bias", "forced_sequence"}),
        (Withheld.ALL, {"regex", "reader", "bias", "choice", "forced_sequence"}, set()),
        (Withheld.NONE, set(), {"regex", "reader", "bias", "choice", "forced_sequence"}),
    ],
    ids=["forms", "histories", "all", "none"],
)
def test_processors_of_a_unit_that_is_lacking_are_neither_offered_nor_taken(
    withheld: Withheld, refused: set[str], applied: set[str]
) -> None:
    registry = Registry.builtin()
    registry.register("reader", ReadsHistory)
    made = processors_of(registry)
    made.withhold(withheld, "its SGLang lacks a.b")
    assert refused <= made.refused()
    assert not applied & made.refused()
    if "reader" in refused:
        with pytest.raises(UnsupportedError, match=r"no logits processors \(reader\).*lacks a\.b"):
            made.steering(spec_of("reader"))
    else:
        assert made.steering(spec_of("reader")) is not None
    assert bool(made.no_forms) is ("regex" in refused)


@pytest.mark.promise("S5-806")
def test_a_processor_of_every_request_that_a_unit_is_lacking_for_ends_the_start() -> None:
    registry = Registry.builtin()
    registry.register("reader", ReadsHistory, ProcessorSettings(use="reader", always=True))
    made = processors_of(registry)
    made.withhold(Withheld.FORMS, "its SGLang lacks a.b")
    with pytest.raises(StartError, match=r"lacks a\.b, and every request is to have reader"):
        made.withhold(Withheld.HISTORIES, "its SGLang lacks a.b")


STAGED = {"pipeline_parallel": 2}


@pytest.mark.promise("S0-027")
@pytest.mark.parametrize(
    ("raw", "why"), [(SPECULATIVE, "speculative"), (STAGED, r"reader.*pipeline_parallel to 1")]
)
def test_processors_that_would_not_see_all_are_refused_at_start(
    raw: dict[str, Any], why: str
) -> None:
    with pytest.raises(StartError, match=why):
        processors_of(with_history(), raw)


@pytest.mark.parametrize(
    ("raw", "why"), [(SPECULATIVE, "decodes speculatively"), (STAGED, "a model in parts")]
)
def test_ready_made_processors_that_would_not_be_run_are_refused_by_request(
    raw: dict[str, Any], why: str
) -> None:
    processors = processors_of(Registry.builtin(), raw)
    assert not processors.enabled
    grammar = LogitsProcessorEntry("regex", {"pattern": "a+"})
    bias = LogitsProcessorEntry("bias", {"bias": {"5": 1.0}})
    with pytest.raises(UnsupportedError, match=rf"\(bias\): .*{why}") as error:
        processors.steering(LogitsProcessorSpec((grammar, bias)))
    assert error.value.param == "logits_processors[1]"
    with pytest.raises(UnsupportedError, match=why) as error:
        processors.steering(None, common_pb2.EmbeddingBias())
    assert error.value.param == "embedding_bias"


@pytest.mark.promise("S5-470")
@pytest.mark.parametrize("raw", [SPECULATIVE, STAGED])
def test_forms_that_sglang_applies_itself_need_no_processors_to_run(raw: dict[str, Any]) -> None:
    always = ProcessorSettings(use="regex", args={"pattern": "a+"}, always=True)
    processors = processors_of(Registry.from_settings({"regex": always}), raw)
    steering = processors.steering(spec_of("json_schema", schema={"type": "object"}))
    assert steering is not None
    assert json.loads(steering.grammar["json_schema"]) == {"type": "object"}
    assert steering.spec == ()


@pytest.mark.promise("S5-470")
def test_speculative_decoding_without_grammars_refuses_forms_and_says_so() -> None:
    drafts = {"server_args": json.dumps({"speculative_algorithm": "PLUGIN"})}
    processors = processors_of(Registry.builtin(), drafts)
    with pytest.raises(UnsupportedError, match="by PLUGIN applies no grammars") as error:
        processors.steering(spec_of("regex", pattern="a+"))
    assert error.value.param == "logits_processors[0]"
    always = ProcessorSettings(use="regex", args={"pattern": "a+"}, always=True)
    with pytest.raises(StartError, match=r"every request is to have a form \(regex\)"):
        processors_of(Registry.from_settings({"regex": always}), drafts)


@pytest.mark.parametrize(
    ("given", "runs", "proved"),
    [
        ({}, True, {"seeds", "forms"}),
        ({"speculative_algorithm": "EAGLE"}, True, {"forms"}),
        ({"speculative_algorithm": "PLUGIN"}, False, set()),
        ({"grammar_backend": "none"}, False, {"seeds"}),
    ],
)
async def test_a_form_is_among_the_first_requests_where_clients_may_ask_for_one(
    given: dict[str, Any], runs: bool, proved: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is proved then, as seeds are without drafts."""
    ran: list[tuple[bool, set[str]]] = []

    async def run(*_: Any, grammars: bool, proofs: dict[str, Any], **__: Any) -> None:
        ran.append((grammars, set(proofs)))

    monkeypatch.setattr("tandem_sglang.warm_up.run", run)
    kept = [EngineUnit(name=name, promise="", state=UnitState.KEPT) for name in ("seeds", "forms")]
    launched: Any = SimpleNamespace(units=kept)
    setup = Setup(Role.DECODE, engine_settings({"server_args": json.dumps(given)}))
    await setup.warm_up(launched, launched)
    assert ran == [(runs, proved)]


def test_a_processor_that_ranks_would_not_agree_on_is_refused_at_start() -> None:
    registry = Registry.builtin()
    registry.register("dice", Dice)
    assert processors_of(registry).enabled
    with pytest.raises(StartError, match="'dice' is not deterministic"):
        processors_of(registry, ranks=2)


@pytest.mark.promise("S3-086", "S1-044", "S1-046", "S3-085")
@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE, Role.AGGREGATED])
@pytest.mark.parametrize("configured", [{}, {"chunked_prefill_size": 64}])
def test_processors_add_one_flag_to_what_the_engine_is_built_from(
    role: Role, configured: dict[str, Any]
) -> None:
    def built(registry: Registry) -> dict[str, Any]:
        processors = processors_of(registry).enabled
        return server_args(role, configured | {"random_seed": 5}, processors=processors)

    plain = built(Registry())
    assert plain["enable_custom_logit_processor"] is False
    assert configured.items() <= plain.items()
    assert "skip_tokenizer_init" not in plain
    assert plain | {"enable_custom_logit_processor": True} == built(Registry.builtin())


def test_without_a_spec_there_is_nothing_to_steer() -> None:
    assert processors_of(Registry.builtin()).steering(None) is None


def test_a_bias_is_steered_with_and_without_a_spec() -> None:
    bias = common_pb2.EmbeddingBias(token_ids=b"\1\0\0\0", values=b"\0" * 4)
    for spec in (None, spec_of("forced_sequence", token_ids=[5])):
        steering = processors_of(Registry.builtin()).steering(spec, bias)
        assert steering is not None
        assert (steering.bias, steering.reads_history) == (bias, False)
        assert len(steering.spec) == (spec is not None)


def test_only_a_processor_that_reads_tokens_makes_sampling_wait_for_them() -> None:
    processors = processors_of(with_history())
    reader = processors.steering(spec_of("reader"))
    forced = processors.steering(spec_of("forced_sequence", token_ids=[5]))
    assert reader is not None
    assert forced is not None
    assert (reader.reads_history, forced.reads_history) == (True, False)


def test_a_grammar_is_given_to_sglang_and_what_follows_it_to_the_scheduler() -> None:
    processors = processors_of(Registry.builtin())
    bias = LogitsProcessorEntry("bias", {"bias": {"5": 1.0}})
    grammar = LogitsProcessorEntry("json_schema", {"schema": {"type": "object"}})
    steering = processors.steering(LogitsProcessorSpec((grammar, bias)))
    assert steering is not None
    assert json.loads(steering.grammar["json_schema"]) == {"type": "object"}
    assert steering.spec == (bias,)
    with pytest.raises(RequestError, match="'json_schema' must be the first"):
        processors.steering(LogitsProcessorSpec((bias, grammar)))


@pytest.mark.parametrize(
    ("backend", "field"), [("llguidance", "ebnf"), ("xgrammar", "structural_tag")]
)
def test_tags_are_given_to_sglang_as_what_its_backend_reads(backend: str, field: str) -> None:
    args = {"calls": [{"begin": "<|im_start|>f", "schema": {"enum": [1]}}]}
    asked = LogitsProcessorEntry("tagged", args, from_client=True)
    form = Registry.builtin().form(LogitsProcessorSpec((asked,)), 0)
    form.keep(b"start: the compiled one")
    given = {"server_args": json.dumps({"grammar_backend": backend})}
    processors = processors_of(Registry.builtin(), given)
    steering = processors.steering(LogitsProcessorSpec((replace(asked, ready=form),)))
    assert steering is not None
    assert steering.grammar == {field: "start: the compiled one"}


@pytest.mark.parametrize("backend", ["xgrammar", "none"])
def test_tags_for_every_request_need_the_library_that_workers_have(backend: str) -> None:
    args = {"calls": [{"begin": "<|im_start|>f", "schema": {"enum": [1]}}]}
    settings = ProcessorSettings(use="tagged", args=args, always=True)
    registry = Registry.from_settings({"tagged": settings})
    given = {"server_args": json.dumps({"grammar_backend": backend})}
    with pytest.raises(StartError, match="'tagged' is set to be applied always"):
        processors_of(registry, given)
    processors_of(registry)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("json_schema", {"schema": {"type": "object"}}),
        ("regex", {"pattern": "a+"}),
        ("ebnf", {"grammar": 'root ::= "a"'}),
        ("choice", {"texts": ["a"]}),
        ("tagged", {"calls": [{"schema": {}}]}),
    ],
)
def test_sglang_never_sees_a_clients_form_that_did_not_pass_the_check(
    name: str, args: dict[str, Any]
) -> None:
    model = Model(**model_files.processor_facts(MODEL))
    processors = processors_of(Registry.builtin())
    unchecked = LogitsProcessorEntry(name, args, from_client=True)
    with pytest.raises(InternalError, match="was not compiled"):
        processors.steering(LogitsProcessorSpec((unchecked,)))
    form = Registry.builtin().form(LogitsProcessorSpec((unchecked,)), 0)
    form.prepare(model)
    steering = processors.steering(LogitsProcessorSpec((replace(unchecked, ready=form),)))
    assert steering is not None
    assert bool(steering.grammar) != bool(steering.spec)


@pytest.mark.promise("S1-049")
def test_a_live_processor_object_is_refused_because_it_cannot_reach_the_scheduler() -> None:
    processors = processors_of(Registry.builtin())
    with pytest.raises(UnsupportedError, match="live Python object"):
        processors.steering(LogitsProcessorSpec((PythonProcessorSpec(ReadsHistory),)))


def test_the_grammar_backend_is_one_whose_steps_have_limits() -> None:
    assert server_args(Role.DECODE, {})["grammar_backend"] == "llguidance"
    chosen = {"server_args": '{"grammar_backend": "xgrammar"}'}
    assert server_args(Role.DECODE, chosen)["grammar_backend"] == "xgrammar"


def test_each_node_is_told_its_place_and_where_they_meet() -> None:
    second = Nodes(count=2, rank=1, leader="10.0.0.1:7120")
    built = server_args(Role.PREFILL, {"tensor_parallel": 4}, device="cuda", nodes=second)
    assert (built["nnodes"], built["node_rank"]) == (2, 1)
    assert built["dist_init_addr"] == "10.0.0.1:7120"
    assert built["tp_size"] == 4
    alone = server_args(Role.DECODE, {})
    assert not {"nnodes", "node_rank", "dist_init_addr"} & alone.keys()


UNEQUAL = {"tensor_parallel": 2, "decode_tensor_parallel": 8}


@pytest.mark.promise("S5-370")
def test_each_phase_has_its_own_number_of_ranks_and_knows_the_other_s() -> None:
    ranks = {role: server_args(role, UNEQUAL)["tp_size"] for role in Role}
    assert ranks == {Role.PREFILL: 2, Role.DECODE: 8, Role.AGGREGATED: 2}
    assert parallel.kv_ranks(options.parse(UNEQUAL)) == {Role.PREFILL: 2, Role.DECODE: 8}
    assert parallel.kv_ranks(options.parse({"tensor_parallel": 4})) == {
        Role.PREFILL: 4,
        Role.DECODE: 4,
    }


@pytest.mark.promise("S5-370")
@pytest.mark.parametrize(
    ("role", "raw", "said"),
    [
        (Role.PREFILL, {"tensor_parallel": 3, "decode_tensor_parallel": 2}, "2 and 3 ranks"),
        (Role.DECODE, {"tensor_parallel": 4, "decode_tensor_parallel": 6}, "4 and 6 ranks"),
        (Role.AGGREGATED, UNEQUAL, "decode_tensor_parallel is for workers of one phase"),
        (Role.AGGREGATED, {"decode_data_parallel": 1}, "decode_data_parallel is for workers"),
        (Role.PREFILL, {"tensor_parallel": 4, "data_parallel": 3}, "3 groups cannot share 4"),
        (
            Role.PREFILL,
            {"tensor_parallel": 4, "decode_tensor_parallel": 2, "decode_data_parallel": 4},
            "4 groups cannot share 2",
        ),
        (
            Role.DECODE,
            {"tensor_parallel": 6, "data_parallel": 2, "decode_data_parallel": 3},
            "2 and 3 ranks",
        ),
        (Role.DECODE, {"tensor_parallel": 6, "data_parallel": 3}, "3 data-parallel ranks cannot"),
        (
            Role.DECODE,
            {"pipeline_parallel": 4, "decode_pipeline_parallel": 2},
            "decode_pipeline_parallel to 1 or 0",
        ),
    ],
)
def test_ranks_that_cannot_hand_over_are_refused_before_sglang_is_imported(
    role: Role, raw: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        SglangEngine(role, engine_settings(raw))


WIDE = {"tensor_parallel": 8, "data_parallel": 8, "decode_tensor_parallel": 4}
WIDE |= {"decode_data_parallel": 4}


@pytest.mark.promise("S5-371")
def test_data_parallel_ranks_divide_sequences_and_share_what_is_given_for_all() -> None:
    made = {role: server_args(role, WIDE, device="cuda") for role in Role}
    sizes = {role: (each["tp_size"], each["dp_size"]) for role, each in made.items()}
    assert sizes == {Role.PREFILL: (8, 8), Role.DECODE: (4, 4), Role.AGGREGATED: (8, 8)}
    assert all(each["enable_dp_attention"] for each in made.values())
    assert made[Role.DECODE]["max_running_requests"] == 8
    assert made[Role.DECODE]["cuda_graph_max_bs_decode"] == 2
    assert {"dp_size", "enable_dp_attention", "port"}.isdisjoint(server_args(Role.DECODE, {}))
    assert parallel.kv_ranks(options.parse(WIDE)) == {Role.PREFILL: 1, Role.DECODE: 1}


@pytest.mark.promise("S5-371")
def test_engines_of_one_machine_meet_at_ports_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang itself would count from one port in all of them."""
    raw = {"tensor_parallel": 2, "data_parallel": 2}
    with ExitStack() as held:
        base = ports_of(Role.DECODE, held, **raw).inner
    monkeypatch.setattr(free_ports, "PORTS", [base])
    for taken in (13, 233, 239):
        with socket.create_server(("127.0.0.1", base + taken)), ExitStack() as held:
            free = FreePorts(held)
            with pytest.raises(StartError, match="ports"):
                inner_port(free, "127.0.0.1")
    with ExitStack() as held:
        assert inner_port(FreePorts(held), "127.0.0.1") == base


FOUR_STAGES = {"tensor_parallel": 2, "pipeline_parallel": 4}


@pytest.mark.parametrize(("decode", "stages"), [(0, 4), (1, 1), (4, 4)])
def test_decode_has_as_many_groups_of_layers_as_prefill_or_one(decode: int, stages: int) -> None:
    raw = FOUR_STAGES | {"decode_pipeline_parallel": decode}
    made = {role: server_args(role, raw).get("pp_size", 1) for role in Role}
    assert made == {Role.PREFILL: 4, Role.DECODE: stages, Role.AGGREGATED: 4}
    assert parallel.of(options.parse(raw), Role.PREFILL).accelerators == 8
    SglangEngine(Role.DECODE, engine_settings(raw | {"device": "cuda"}))


def test_unequal_numbers_of_groups_of_layers_are_refused_where_sglang_has_no_way_for_them() -> None:
    raw = FOUR_STAGES | {"device": "cpu"}
    for decode in (0, 4):
        SglangEngine(Role.DECODE, engine_settings(raw | {"decode_pipeline_parallel": decode}))
    unequal = raw | {"decode_pipeline_parallel": 1}
    for role in (Role.PREFILL, Role.DECODE):
        with pytest.raises(ConfigError, match="decode_pipeline_parallel at 0 on CPUs"):
            SglangEngine(role, engine_settings(unequal))
    SglangEngine(Role.DECODE, engine_settings(unequal | {"transfer_backend": "mooncake"}))


def request_in(room: int) -> EngineRequest:
    return EngineRequest(
        request_id=room, token_ids=[1], sampling=common_pb2.SamplingParams(), room=room
    )


@pytest.mark.promise("S5-371")
@pytest.mark.parametrize("role", [Role.DECODE, Role.AGGREGATED])
def test_a_sequence_goes_to_the_rank_with_the_fewest_open_ones(role: Role) -> None:
    ranks = DataRanks(3, role)
    assert [ranks.take(request_in(room)) for room in range(5)] == [0, 1, 2, 0, 1]
    for ended in (1, 4, 4, 77):
        ranks.leave(ended)
    assert [ranks.take(request_in(room)) for room in (10, 11, 12)] == [1, 1, 2]


@pytest.mark.promise("S5-371")
def test_prefill_s_rank_follows_from_the_room_as_decode_expects() -> None:
    ranks = DataRanks(3, Role.PREFILL)
    assert [ranks.take(request_in(room)) for room in (7, 7 + 3, 8, 2**62)] == [1, 1, 2, 1]
    assert DataRanks(1, Role.PREFILL).take(request_in(7)) is None


def test_each_rank_has_a_core_of_its_own_on_cpu() -> None:
    made = arguments.environment(options.parse({}), host="h", device="cpu", ranks=2)
    assert made["SGLANG_CPU_OMP_THREADS_BIND"].count("|") == 1
    alone = arguments.environment(options.parse({}), host="h", device="cpu")
    assert "SGLANG_CPU_OMP_THREADS_BIND" not in alone


def test_each_stage_has_a_core_of_its_own_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    exported: dict[str, str] = {}
    monkeypatch.setattr("tandem.config.export", exported.update)
    uncached = json.dumps({"disable_radix_cache": True})
    for stages, groups in ((2, 2), (1, 0)):
        raw = {"device": "cpu", "server_args": uncached, "pipeline_parallel": stages}
        exported.clear()
        Setup(Role.PREFILL, engine_settings(raw)).thread(Ports())
        assert len(exported.get("SGLANG_CPU_OMP_THREADS_BIND", "").split("|")) == max(groups, 1)
        assert ("SGLANG_NCCL_SO_PATH" in exported) == (groups > 0)


@pytest.mark.parametrize(("role", "fits"), [(Role.PREFILL, False), (Role.DECODE, True)])
def test_nodes_share_the_ranks_of_their_own_phase(role: Role, fits: bool) -> None:
    four = Nodes(count=4, rank=0, leader="127.0.0.1:1")
    with nullcontext() if fits else pytest.raises(ConfigError, match="4 nodes cannot share 2"):
        SglangEngine(role, engine_settings(UNEQUAL, nodes=four))


def test_nodes_that_could_not_share_equally_are_refused() -> None:
    second = Nodes(count=3, rank=1, leader="127.0.0.1:1")
    with pytest.raises(ConfigError, match="3 nodes cannot share 4 accelerators equally"):
        SglangFollower(Role.DECODE, engine_settings({"tensor_parallel": 4}, nodes=second))


@pytest.mark.promise("S5-450")
@pytest.mark.parametrize(
    ("ranks", "processes", "least"), [(1, 3, 3), (1, 5, 5), (2, 3, 6), (4, 4, 16)]
)
def test_processes_that_could_not_share_sequences_equally_are_refused(
    ranks: int, processes: int, least: int
) -> None:
    grouped = {"tensor_parallel": ranks, "data_parallel": ranks}
    with pytest.raises(ConfigError, match=f"set max_sequences to a multiple of {least}"):
        SglangEngine(Role.DECODE, engine_settings(grouped, token_processes=processes))


def test_processes_share_the_sequences_of_all_data_parallel_ranks() -> None:
    grouped = {"tensor_parallel": 2, "data_parallel": 2}
    SglangEngine(Role.DECODE, engine_settings(grouped, token_processes=4))


def test_ranks_on_several_nodes_send_their_tokens_to_one_process() -> None:
    two = Nodes(count=2, rank=0, leader="127.0.0.1:1")
    SglangEngine(Role.DECODE, engine_settings({"tensor_parallel": 2}, nodes=two, token_processes=2))
    grouped = {"tensor_parallel": 2, "data_parallel": 2}
    with pytest.raises(ConfigError, match="leave the setting token_processes at 1"):
        SglangEngine(Role.DECODE, engine_settings(grouped, nodes=two, token_processes=2))


@pytest.mark.parametrize("processes", [1, 3])
def test_a_scheduler_is_told_of_the_further_processes(
    processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.config.export", lambda _: None)
    addresses = [TokenAddresses(f"in-{each}", f"out-{each}") for each in range(2, processes + 1)]
    thread, _ = Setup(Role.DECODE, engine_settings({"device": "cpu"})).thread(
        Ports(), further=addresses
    )
    assert thread._additions.further == addresses
