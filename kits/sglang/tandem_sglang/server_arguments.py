"""What becomes of each argument of SGLang's server that an operator writes into `server_args`.

All arguments that the releases have which Tandem runs with are here, in one of four tables, so that
none is ignored without a word: a test holds the tables to SGLang's own list, and
docs/engines/sglang.md is written from them (scripts/generate_sglang_page.py).
"""

from __future__ import annotations

from collections.abc import Mapping

RELEASES = ("0.5.21", "0.5.22", "0.5.23")
"""The releases of SGLang whose arguments these tables have, the oldest first."""
ONE_LINE_JSON = "constrained_json_disable_any_whitespace"


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _table(named: Mapping[str, str]) -> Mapping[str, tuple[str, ...]]:
    return {key: _names(text) for key, text in named.items()}


OWNED: Mapping[str, str] = {
    "attention_backend": "engine option attention_backend",
    "attn_dp_size": "engine options data_parallel and decode_data_parallel",
    "batch_notify_size": "setting max_sequences",
    "chunked_prefill_size": "engine option chunked_prefill_size",
    "context_length": "engine option context_length",
    "device": "engine option device",
    "dp_size": "engine options data_parallel and decode_data_parallel",
    "enable_dp_attention": "engine options data_parallel and decode_data_parallel",
    "disable_overlap_schedule": "engine option disable_overlap_schedule",
    "disaggregation_bootstrap_port": "engine option bootstrap_port",
    "disaggregation_decode_enable_radix_cache": "engine option decode_prefix_cache",
    "disaggregation_mode": "the component: a prefill or a decode worker",
    "disaggregation_transfer_backend": "engine option transfer_backend",
    "dist_init_addr": "setting leader",
    "dtype": "engine option dtype",
    "enable_custom_logit_processor": "setting logits_processors",
    "enable_lora": "setting lora_adapters",
    "host": "setting advertise_host",
    "lora_paths": "setting lora_adapters",
    "max_running_requests": "setting max_sequences",
    "max_total_tokens": "engine option max_total_tokens",
    "mem_fraction_static": "engine option mem_fraction_static",
    "model_path": "setting model_path",
    "nnodes": "setting nodes",
    "node_rank": "setting node_rank",
    "page_size": "engine option page_size",
    "pp_size": "engine options pipeline_parallel and decode_pipeline_parallel",
    "random_seed": "engine option random_seed",
    "sampling_backend": "engine option seeded_sampling",
    "served_model_name": "setting served_model_name",
    "tokenizer_path": "setting model_path",
    "tp_size": "engine options tensor_parallel and decode_tensor_parallel",
}
"""What Tandem sets, and by what an operator decides it instead."""

_METRICS = "a worker serves metrics of its own"
_UNO = "UNO refuses log-probabilities, and a worker's first requests ask for them"

REFUSED = _table(
    {
        "a worker starts none of SGLang's HTTP and gRPC servers": """
        admin_api_key api_key asr_max_buffer_seconds asr_max_concurrent_sessions
        checkpoint_engine_wait_weights_before_ready debug_tensor_dump_input_file
        delete_ckpt_after_loading enable_http2 enable_http_worker_reuseport enable_response_store
        enable_ssl_refresh
        engine_info_bootstrap_port fastapi_root_path grpc_mode grpc_port grpc_response_timeout_secs
        grpc_worker_threads http2_initial_connection_window_size http2_max_concurrent_streams
        log_level_http port remote_instance_weight_loader_start_seed_via_transfer_engine sidecar
        sidecar_args skip_server_warmup smg_grpc_mode smg_http_sidecar_port ssl_ca_certs
        ssl_certfile ssl_keyfile ssl_keyfile_password tool_server
        uvicorn_access_log_exclude_prefixes warmups
        """,
        "the frontend makes prompts of chats, and answers of tokens": """
        chat_template completion_template default_chat_template_kwargs enable_cache_report
        enable_strict_thinking hf_chat_template_name reasoning_parser return_input_ids
        return_output_ids stream_response_default_include_usage strip_thinking_cache
        tool_call_parser trust_request_chat_template
        """,
        "a request brings all its sampling parameters": """
        preferred_sampling_params sampling_defaults
        """,
        "prompts reach SGLang as tokens, and leave it as tokens": """
        detokenizer_worker_num disable_tokenizer_batch_decode dynamic_batch_tokenizer_batch_size
        dynamic_batch_tokenizer_batch_timeout enable_dynamic_batch_tokenizer
        enable_tokenizer_batch_encode tokenizer_worker_num
        """,
        "grammars and the tokens that end a text need SGLang's tokenizer": "skip_tokenizer_init",
        "Tandem reads what SGLang streams as additions": "incremental_streaming_output",
        "a prompt that is too long is refused, not cut": "allow_auto_truncate",
        "a request carries text alone": """
        allowed_media_domains disable_fast_image_processor enable_adaptive_dispatch_to_encoder
        enable_broadcast_mm_inputs_process enable_mm_global_cache enable_multimodal
        enable_precise_embedding_interpolation enable_prefix_mm_cache encoder_bootstrap_port
        encoder_only encoder_register_urls encoder_transfer_backend encoder_urls
        image_processor_backend language_only limit_mm_data_per_request media_url_max_file_size_mb
        mm_attention_backend mm_enable_dp_encoder mm_feature_transport mm_global_cache_backend
        mm_io_worker_num mm_preprocess_cache_size_mb mm_process_config mm_processor_worker_num
        trust_mm_content_hashes
        """,
        "a request belongs to no session": "enable_session_radix_cache enable_streaming_session",
        "a request carries no priority: the router orders requests": """
        abort_on_priority_when_disabled default_priority_value disable_priority_preemption
        enable_priority_scheduling priority_scheduling_preemption_threshold
        schedule_low_priority_values_first
        """,
        "a request asks for tokens alone": """
        enable_mis enable_return_aux_hidden_states enable_return_hidden_states
        enable_return_indexer_topk enable_return_routed_experts is_embedding
        prefill_only_disable_kv_cache return_aux_hidden_state_layer_ids return_hidden_states_mode
        sampling_mask_max_tokens
        """,
        "seeds are those of engine option seeded_sampling": """
        enable_deterministic_inference rl_on_policy_target
        """,
        "Tandem says which data-parallel rank a sequence goes to": "load_balance_method",
        "a worker keeps its phase, and has no other": """
        enable_pd_role_switch enable_pdmux pdmux_config_path sm_group_num
        """,
        "SGLang serves models of diffusion without disaggregation, LoRA adapters and pipelines": """
        dllm_algorithm dllm_algorithm_config dllm_fdfo
        """,
        "it sets data-parallel ranks, which are those of engine option data_parallel": "dwdp_size",
        "a worker keeps the ranks that it starts with": """
        elastic_ep_initial_size elastic_ep_scale_timeout ep_join_mode ep_join_rank_offset
        max_ep_size
        """,
        "ranks and bytes of a hand-over are counted without context parallelism": """
        attn_cp_size cp_strategy dcp_comm_backend dcp_replicate_q_proj dcp_size
        enable_cp_decode_attn_tp enable_cp_tp_group_sharing enable_dsa_cache_layer_split
        enable_kv_cache_sharding enable_prefill_cp
        """,
        "draft and target run in one engine": """
        decoupled_spec_bind_endpoint decoupled_spec_connect_endpoints decoupled_spec_rank
        decoupled_spec_role
        """,
        "SGLang's processes are children of the worker, and their signals the worker's": """
        crash_dump_folder custom_sigquit_handler use_ray
        """,
        "the model is a folder, given by setting model_path": "download_dir revision",
        "the weights of a worker do not change": "custom_weight_loader weight_version",
        "nothing in a worker lets memory go and takes it back": """
        enable_draft_weights_cpu_backup enable_memory_saver enable_weights_cpu_backup
        """,
        _METRICS: """
        bucket_e2e_request_latency bucket_inter_token_latency bucket_time_to_first_token
        enable_metrics enable_metrics_for_all_schedulers enable_mfu_metrics export_metrics_to_file
        export_metrics_to_file_dir extra_metric_labels generation_tokens_buckets
        prefill_delayer_forward_passes_buckets prefill_delayer_wait_seconds_buckets
        prompt_tokens_buckets stat_loggers tokenizer_metrics_allowed_custom_labels
        tokenizer_metrics_custom_labels_header
        """,
        "a worker writes spans of its own": """
        enable_trace otlp_service_name otlp_traces_endpoint trace_modules
        """,
        "in a worker SGLang logs errors alone: the setting log_level is Tandem's": """
        gc_warning_threshold_secs log_requests log_requests_format log_requests_level
        log_requests_target
        """,
        "it is for devices other than cpu and cuda": """
        c128_page_size disable_aiter_allreduce_fusion_in_decode
        disable_aiter_allreduce_fusion_in_prefill enable_aiter_allreduce_fusion
        enable_amd_monokernel enable_dsa_fused_indexer fuseep_mode mlx_enable_sampling
        """,
        "SGLang refuses watermarks beside a hand-over, and beside logits processors": """
        enable_watermark watermark_config watermark_context_window watermark_default_enabled
        watermark_enforce_all watermark_key watermark_key_b watermark_max_probability
        watermark_mixing_probability
        """,
        "it is for the grammar backend outlines, which is not offered": """
        disable_outlines_disk_cache
        """,
        "forms are checked without it: their JSON has SGLang's whitespace, or is on one line": """
        constrained_json_whitespace_pattern
        """,
        _UNO: "uno_lora_path",
        "SGLang itself does nothing with it": """
        file_storage_path num_continuous_decode_steps show_time_cost spec_trace_dir
        triton_attention_reduce_in_fp32
        """,
        "SGLang sets it itself": """
        _radix_eviction_policy_explicitly_set _speculative_draft_quantization_explicitly_set
        _swa_full_tokens_ratio_explicitly_set aux_hidden_state_capture uses_mamba_radix_cache
        """,
    }
)
"""What would break a worker, or have no effect in it, by the reason."""

REFUSED_VALUES: Mapping[str, tuple[tuple[str, str], ...]] = {
    _METRICS: (
        ("expert_balancedness_report_mode", "both"),
        ("expert_balancedness_report_mode", "prometheus"),
    ),
    _UNO: (("speculative_algorithm", "UNO"),),
}
"""The table of reasons for single values of arguments that take several values."""

_DRAFTS = "Speculative decoding"
LORA = "LoRA adapters"
MOONCAKE = "Hand-over by Mooncake"
LOGS = "Logs of the schedulers, with log_level info or debug"
RECORDS = "Records of experts, with enable_eplb or expert_balancedness_report_mode"
SPACES = "Forms, with grammar_backend xgrammar and constrained_json_disable_any_whitespace false"
LORA_ON_CPUS = "tests with LoRA adapters, on CPUs, where Tandem sets it unless you do"

WORKS = _table(
    {
        "the contract suite, on CPUs": "grammar_backend log_level",
        "all tests with SGLang, on CPUs, where Tandem sets it unless you do": """
        constrained_json_disable_any_whitespace disable_cuda_graph disable_custom_all_reduce
        disaggregation_decode_retraction_backup kv_events_config sleep_on_idle
        """,
        LORA_ON_CPUS: "lora_backend lora_strict_loading max_loras_per_batch",
        "one H100, by hand": "load_format",
    }
)
"""Arguments that reach SGLang and that we ran, by the place of the run."""

PASSED = _table(
    {
        "Serving": "stream_interval tokenizer_backend tokenizer_mode",
        SPACES: "constrained_json_max_whitespace_cnt",
        "Model and weights": """
        decrypted_config_file decrypted_draft_config_file json_model_override_args kv_cache_dtype
        model_checksum model_config_parser model_impl model_loader_extra_config modelexpress_config
        modelopt_checkpoint_restore_path modelopt_checkpoint_save_path modelopt_export_path
        modelopt_quant quantization quantization_param_path quantize_and_serve
        remote_instance_weight_loader_backend remote_instance_weight_loader_seed_instance_ip
        remote_instance_weight_loader_seed_instance_service_port
        remote_instance_weight_loader_send_weights_group_ports rl_quant_profile
        startup_weight_load_mode trust_remote_code weight_cache_mode weight_cache_socket
        weight_cache_timeout weight_loader_disable_mmap weight_loader_drop_cache_after_load
        weight_loader_prefetch_checkpoints weight_loader_prefetch_num_threads
        """,
        "Features of a step": """
        enable_decoder_swa_bounded_replay enable_encoder_swa_bounded_replay enable_fp32_lm_head
        enable_tf32_matmul
        """,
        "Scheduling": """
        disable_chunked_prefix_cache disable_hybrid_swa_memory enable_mixed_chunk
        mamba_full_memory_ratio max_mamba_cache_size max_prefill_tokens max_queued_requests
        min_free_slots_delay prefill_decode_interval prefill_decode_interval_min_bs
        prefill_max_requests retraction_policy schedule_conservativeness schedule_policy
        scheduler_recv_interval swa_full_tokens_ratio swa_prefix_tails
        """,
        "Caches": """
        disable_radix_cache enable_flexkv enable_hierarchical_cache enable_hisparse
        enable_linker_mla_dedup enable_lmcache enable_page_major_kv_layout
        enable_unified_cache_external_linker enable_unified_memory flexkv_config_file
        hicache_host_memory_fraction hicache_host_memory_mode hicache_io_backend hicache_mem_layout
        hicache_ratio hicache_size hicache_storage_backend hicache_storage_backend_extra_config
        hicache_storage_prefetch_policy hicache_storage_prefetch_retry_max_attempts
        hicache_storage_prefetch_retry_poll_interval hicache_write_policy hisparse_config
        lmcache_config_file radix_cache_backend radix_eviction_policy radix_eviction_policy_config
        unified_cache_external_linker_backend unified_cache_external_linker_config
        """,
        "Parallelism": """
        disable_attn_tp_gather dist_timeout enable_attn_tp_input_scattered enable_dense_mlp_attn_tp
        enable_dp_attention_local_control_broadcast enable_dp_lm_head enable_dynamic_chunking
        enable_layernorm_sp enable_p2p_check enable_prefill_delayer enable_shared_experts_attn_tp
        enable_tp_lm_head_all_to_all ep_size gated_launch_port moe_dense_tp_size moe_dp_size
        nccl_port pp_async_batch_depth pp_max_micro_batch_size prefill_delayer_max_delay_ms
        prefill_delayer_max_delay_passes prefill_delayer_queue_min_ratio
        prefill_delayer_token_usage_low_watermark shared_experts_tp_size
        speculative_skip_dp_mlp_sync
        """,
        "Devices": """
        base_gpu_id gc_threshold gpu_id_step numa_node soft_watchdog_timeout watchdog_timeout
        """,
        "Seeing inside": """
        debug_tensor_dump_layers debug_tensor_dump_output_folder decode_log_interval
        enable_forward_pass_metrics forward_hooks forward_pass_metrics_ipc_name
        forward_pass_metrics_worker_id kv_canary kv_canary_real_data kv_canary_sweep_interval
        load_publish_endpoint load_snapshot_publish_interval msprobe_dump_config
        """,
        LOGS: "enable_request_time_stats_logging expert_balancedness_report_mode",
        "Attention and other kernels": """
        bf16_gemm_backend decode_attention_backend disable_flashinfer_autotune dsa_decode_backend
        dsa_paged_mqa_logits_backend dsa_prefill_backend dsa_topk_backend dsa_triton_union
        dsv4_attn_backend dsv4_prefill_backend enable_deepseek_v4_fp4_indexer
        enable_fused_qk_norm_rope enable_lean_attention enable_nvidia_megakernel
        flashinfer_autotune_skip_ops flashinfer_mla_disable_ragged fp4_gemm_runner_backend
        fp8_gemm_runner_backend prefill_attention_backend prefill_kv_cache_dequant_dtype
        qsa_indexer_dtype triton_attention_num_kv_splits triton_attention_split_tile_size
        """,
        "State-space models": """
        enable_int8_mamba_checkpoint enable_linear_replayssm enable_linear_replayssm_spec
        enable_mamba_cache_stochastic_rounding int8_mamba_ckpt_size linear_attn_backend
        linear_attn_decode_backend linear_attn_prefill_backend linear_attn_verify_backend
        linear_replayssm_cache_len mamba_backend mamba_cache_philox_rounds mamba_max_states_per_path
        mamba_radix_cache_strategy mamba_ssm_dtype mamba_track_interval
        """,
        "CUDA graphs": """
        cuda_graph_backend_decode cuda_graph_backend_prefill cuda_graph_bs_decode
        cuda_graph_bs_prefill cuda_graph_config cuda_graph_max_bs_decode cuda_graph_max_bs_prefill
        cuda_graph_max_seq_len_prefill cuda_graph_prefill_max_context cuda_graph_tc_compiler
        debug_cuda_graph disable_cuda_graph_padding disable_decode_cuda_graph
        disable_prefill_cuda_graph enable_cudagraph_gc enable_profile_cuda_graph
        enable_torch_compile enable_torch_compile_debug_mode torch_compile_max_bs
        """,
        "Communication": """
        boundary_reduction enable_flashinfer_allreduce_fusion enable_layerwise_nvtx_marker
        enable_mscclpp enable_nccl_nvls enable_quant_communications enable_scattered_sconv
        enable_symm_mem enable_torch_symm_mem enforce_disable_flashinfer_allreduce_fusion
        flashinfer_allreduce_fusion_backend pre_warm_nccl
        """,
        LORA: """
        enable_lora_overlap_loading experts_shared_outer_loras lora_drain_wait_threshold
        lora_eviction_policy lora_target_modules lora_use_virtual_experts
        max_loaded_loras max_lora_chunk_size max_lora_rank
        """,
        "Experts": """
        deepep_config deepep_dispatcher_output_dtype deepep_mode deepep_v2_mode
        disable_flashinfer_cutlass_moe_fp4_allgather disable_shared_experts_fusion
        elastic_ep_backend enable_elastic_expert_backup enable_eplb enable_fused_moe_sum_all_reduce
        enable_megamoe_for_layernorm_sp enable_w4a4_mxfp4_megamoe enable_waterfill
        enforce_shared_experts_fusion ep_dispatch_algorithm ep_num_redundant_experts eplb_algorithm
        eplb_min_rebalancing_utilization_threshold eplb_rebalance_layers_per_chunk
        eplb_rebalance_num_iterations flashinfer_a2a_dispatch_type flashinfer_mxfp4_moe_precision
        init_expert_location kt_cpuinfer kt_max_deferred_experts_per_token kt_method
        kt_num_gpu_experts kt_threadpool_count kt_weight_path moe_a2a_backend moe_runner_backend
        mooncake_ib_device
        """,
        RECORDS: "expert_distribution_recorder_buffer_size expert_distribution_recorder_mode",
        _DRAFTS: """
        enable_multi_layer_eagle speculative_accept_threshold_acc
        speculative_accept_threshold_single speculative_adaptive speculative_adaptive_config
        speculative_algorithm speculative_attention_mode speculative_boundary_reduction
        speculative_dflash_block_size speculative_domino_candidate_pool_size
        speculative_draft_attention_backend speculative_draft_kv_cache_dtype
        speculative_draft_load_format speculative_draft_model_path
        speculative_draft_model_quantization speculative_draft_model_revision
        speculative_draft_sink_size speculative_draft_window_size speculative_dsa_topk_backend
        speculative_dspark_align_verify_tokens_to_graph_tier speculative_dspark_block_size
        speculative_dspark_confidence_sts_path speculative_dspark_sps_table_path
        speculative_eagle_topk speculative_enable_w4a4_mxfp4_megamoe
        speculative_moe_a2a_backend speculative_moe_runner_backend
        speculative_ngram_capacity speculative_ngram_external_corpus_max_tokens
        speculative_ngram_external_corpus_path speculative_ngram_external_sam_budget
        speculative_ngram_match_type speculative_ngram_max_bfs_breadth
        speculative_ngram_max_trie_depth speculative_ngram_min_bfs_breadth
        speculative_num_draft_tokens speculative_num_steps speculative_token_map
        speculative_use_block_verification speculative_use_rejection_sampling
        """,
        "Overlap of batches": """
        enable_single_batch_overlap enable_two_batch_overlap tbo_token_distribution_threshold
        """,
        "Weights in the host's memory": """
        cpu_offload_gb offload_group_size offload_mode offload_num_in_group offload_prefetch_step
        enable_paged_experts paged_experts_num_resident ple_offload_backend ple_offload_dir
        ple_offload_embedding
        """,
        "Hand-over": """
        disaggregation_decode_allocation_policy
        disaggregation_decode_enable_offload_kvcache disaggregation_decode_extra_slots
        disaggregation_decode_polling_interval disaggregation_enable_kv_checksum language_model_only
        num_reserved_decode_tokens optimistic_prefill_attempts
        """,
        MOONCAKE: "disaggregation_decode_host_receive_threshold disaggregation_ib_device",
    }
)
"""Arguments that reach SGLang unchanged and that we did not run, by subject."""

COMPANIONS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("speculative_algorithm",): (
        "speculative_skip_dp_mlp_sync",
        *(name for name in PASSED[_DRAFTS] if name != "speculative_algorithm"),
    ),
    **{
        _names(needed): _names(idle)
        for needed, idle in {
            "enable_hierarchical_cache disaggregation_decode_enable_offload_kvcache"
            " enable_unified_cache_external_linker": """
            hicache_storage_backend hicache_storage_backend_extra_config
            hicache_storage_prefetch_policy hicache_storage_prefetch_retry_max_attempts
            hicache_storage_prefetch_retry_poll_interval hicache_write_policy
            """,
            "enable_unified_cache_external_linker": """
            unified_cache_external_linker_backend unified_cache_external_linker_config
            """,
            "prefill_decode_interval": "prefill_decode_interval_min_bs",
            "enable_paged_experts": "paged_experts_num_resident",
            "enable_flexkv": "flexkv_config_file",
            "enable_hisparse": "hisparse_config",
            "enable_lmcache": "lmcache_config_file",
            "enable_prefill_delayer": """
            prefill_delayer_max_delay_ms prefill_delayer_max_delay_passes
            prefill_delayer_queue_min_ratio prefill_delayer_token_usage_low_watermark
            """,
            "enable_eplb elastic_ep_backend init_expert_location": "eplb_algorithm",
            "enable_eplb elastic_ep_backend": """
            eplb_min_rebalancing_utilization_threshold eplb_rebalance_layers_per_chunk
            eplb_rebalance_num_iterations
            """,
            "moe_a2a_backend": """
            deepep_config deepep_dispatcher_output_dtype deepep_mode deepep_v2_mode
            flashinfer_a2a_dispatch_type
            """,
            "kt_weight_path": """
            kt_cpuinfer kt_max_deferred_experts_per_token kt_method kt_num_gpu_experts
            kt_threadpool_count
            """,
            "offload_group_size": "offload_mode offload_num_in_group offload_prefetch_step",
            "enable_torch_compile": "torch_compile_max_bs",
            "enable_two_batch_overlap": "tbo_token_distribution_threshold",
            "kv_canary": "kv_canary_real_data kv_canary_sweep_interval",
            "debug_tensor_dump_output_folder": "debug_tensor_dump_layers",
            "enable_forward_pass_metrics": """
            forward_pass_metrics_ipc_name forward_pass_metrics_worker_id
            """,
        }.items()
    },
}
"""Arguments without effect alone, by the arguments of which one must be set."""

NAMELESS = _names("enable_flexkv radix_cache_backend")
"""Caches that know KV by its tokens alone: neither by the adapter under which it was computed, nor
by the key whose prompt it was. SGLang's own, HiCache's, LMCache's and the external linker's name it
by both (`mem_cache/utils.py`); of a registered backend nobody can say.
"""
