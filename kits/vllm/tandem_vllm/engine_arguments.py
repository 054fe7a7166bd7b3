"""What becomes of each argument of vLLM's engine that an operator writes into `engine_args`.

All arguments of vLLM 0.32.0 are here, in one of three tables, so that none is ignored without a
word: a test holds the tables to vLLM's own list, and docs/engines/vllm.md is written from them
(scripts/generate_vllm_page.py).
"""

from __future__ import annotations

from collections.abc import Mapping


def _table(named: Mapping[str, str]) -> Mapping[str, tuple[str, ...]]:
    return {key: tuple(text.split()) for key, text in named.items()}


OWNED = _table(
    {
        "setting model_path": "model model_weights tokenizer",
        "setting served_model_name": "served_model_name",
        "setting max_sequences": "max_num_seqs",
        "setting nodes": "master_addr master_port nnodes node_rank",
        "setting lora_adapters": """
        enable_lora lora_target_modules max_cpu_loras max_lora_rank max_loras
        """,
        "setting logits_processors": "logits_processors",
        "setting token_processes": "_api_process_count _api_process_rank",
        "engine option dtype": "dtype",
        "engine option tensor_parallel": "distributed_executor_backend tensor_parallel_size",
        "engine option context_length": "max_model_len",
        "engine option kv_cache_bytes": "kv_cache_memory_bytes num_gpu_blocks_override",
        "engine option gpu_memory_utilization": "gpu_memory_utilization",
        "engine option page_size": "block_size",
        "engine option max_batched_tokens": "max_num_batched_tokens enable_chunked_prefill",
        "engine option enforce_eager": "enforce_eager",
        "engine option decode_prefix_cache": "enable_prefix_caching",
        "engine option random_seed": "seed",
        "the component: a prefill, a decode or an aggregated worker": "kv_transfer_config",
        "Tandem, for its connector and processor": "additional_config",
        "Tandem, for the prefixes that routers know": "kv_events_config",
    }
)
"""What Tandem sets, by what an operator decides it with instead."""

REFUSED = _table(
    {
        "prompts reach vLLM as tokens, and leave it as tokens": """
        enable_prompt_embeds renderer_num_workers skip_tokenizer_init tokenizer_mode
        tokenizer_revision tokens_only
        """,
        "the frontend makes prompts of chats, and answers of tokens": """
        reasoning_config reasoning_parser reasoning_parser_plugin
        """,
        "a request carries text alone": """
        allowed_local_media_path allowed_media_domains default_mm_loras disable_chunked_mm_input
        ec_manager_config ec_transfer_config enable_mm_embeds enable_mm_processor_stats
        enable_tower_connector_lora interleave_mm_strings io_processor_plugin language_model_only
        limit_mm_per_prompt media_io_kwargs mm_device_do_normalize mm_encoder_attn_backend
        mm_encoder_attn_dtype mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_margin
        mm_encoder_fp8_scale_save_path mm_encoder_only mm_encoder_tp_mode mm_hasher_algorithm
        mm_ipc_gpu_memory_gb mm_processor_cache_gb mm_processor_cache_type mm_processor_device
        mm_processor_kwargs mm_shm_cache_max_object_size_mb mm_tensor_ipc skip_mm_profiling
        video_pruning_method video_pruning_rate
        """,
        "a request asks for tokens alone": """
        aux_output_config convert enable_return_routed_experts enable_trace_replay
        max_lora_cls_labels pooler_config return_sampling_mask runner
        """,
        "a request brings all its sampling parameters": """
        generation_config override_generation_config
        """,
        "forms of answers are masked by Tandem": "structured_outputs_config",
        "log-probabilities are the model's own, and a request bounds their number": """
        logprobs_mode max_logprobs
        """,
        "a request carries no priority: the router orders requests": "scheduling_policy",
        "the router says how many requests wait, and where": """
        max_num_queued_reqs max_num_queued_tokens
        """,
        "processors and penalties read the tokens of each step": """
        async_scheduling enable_batch_sharded_sampling
        """,
        "processors, and so the first token of decode, exclude drafts": """
        per_request_spec_decode_metrics spec_method spec_model spec_tokens speculative_config
        """,
        "answers have one watermark, a logits processor of Tandem's": "watermark_config",
        "Tandem serves no models of diffusion": "diffusion_config",
        "a model is shared by tensor-parallel ranks alone, the same number in both phases": """
        all2all_backend cp_kv_cache_interleave_size data_parallel_address data_parallel_backend
        data_parallel_external_lb data_parallel_hybrid_lb data_parallel_multi_port_external_lb
        data_parallel_rank data_parallel_rpc_port data_parallel_size data_parallel_size_local
        data_parallel_start_rank dbo_decode_token_threshold dbo_prefill_token_threshold
        dcp_comm_backend dcp_kv_cache_interleave_size dcp_q_replicate
        decode_context_parallel_size disable_nccl_for_dp_synchronization dp_sync_interval
        elastic_ep_max_dp_size enable_dbo enable_elastic_ep enable_fault_tolerance
        fault_tolerance_config pipeline_parallel_size prefill_context_parallel_size
        prefill_schedule_interval ubatch_size
        """,
        "the connector of a worker is Tandem's own": """
        kv_offloading_backend kv_offloading_size
        """,
        "Tandem relies on vLLM's own": """
        ray_workers_use_nsight scheduler_cls worker_cls worker_extension_cls
        """,
        "the weights of a worker do not change": "weight_transfer_config",
        "nothing in a worker lets memory go and takes it back": """
        enable_cumem_allocator enable_sleep_mode sleep_mode_offload_cudagraph
        sleep_preserve_parameter_names
        """,
        "the model is a folder, given by setting model_path": """
        code_revision hf_config_path hf_token revision
        """,
        "a worker serves metrics of its own, and writes spans of its own": """
        aggregate_engine_logging collect_detailed_traces cudagraph_metrics
        custom_histogram_buckets disable_log_stats enable_log_requests
        enable_logging_iteration_details enable_mfu_metrics kv_cache_metrics
        kv_cache_metrics_sample otlp_traces_endpoint show_hidden_metrics_for_version
        """,
        "the setting log_level is Tandem's": "log_config_file log_level logging_config",
        "vLLM does nothing with it below the parts that Tandem uses": """
        fail_on_environ_validation shutdown_timeout stream_interval use_tqdm_on_load
        """,
    }
)
"""What would break a worker, or have no effect in it, by the reason."""

PASSED = _table(
    {
        "Model and weights": """
        allow_deprecated_quantization config_format download_dir hf_overrides ignore_patterns
        kv_cache_dtype kv_cache_dtype_skip_layers load_format max_parallel_loading_workers
        model_class_overrides model_impl
        model_loader_extra_config pt_load_map_location quantization quantization_config
        safetensors_load_strategy safetensors_prefetch_block_size
        safetensors_prefetch_num_threads trust_remote_code
        """,
        "Memory": """
        cpu_offload_gb cpu_offload_params enable_shm_tensor_arena engram_config offload_backend
        offload_group_size offload_num_in_group offload_params offload_prefetch_step
        """,
        "Scheduling": """
        long_prefill_token_threshold long_prefill_token_threshold_adaptive max_num_active_seqs
        max_num_scheduled_tokens scheduler_reserve_full_isl watermark
        """,
        "Caches": """
        disable_hybrid_kv_cache_manager disable_sliding_window kv_sharing_fast_prefill
        prefix_cache_retention_interval prefix_caching_hash_algo prefix_match_unit
        swa_bounded_replay
        """,
        "Kernels": """
        attention_backend attention_config disable_cascade_attn enable_flashinfer_autotune
        gdn_prefill_backend ir_op_priority kda_decode_backend kda_prefill_backend kernel_config
        linear_backend moe_backend sparse_indexer_topk_backend use_fp64_gumbel
        """,
        "Compilation and CUDA graphs": """
        compilation_config cudagraph_capture_sizes jit_monitor_mode jit_monitor_verbose
        max_cudagraph_capture_size optimization_level performance_mode
        """,
        "State-space models": """
        enable_mamba_cache_stochastic_rounding enable_mamba_shared_prefix_checkpoint mamba_backend
        mamba_block_size mamba_cache_dtype mamba_cache_mode mamba_cache_philox_rounds mamba_config
        mamba_ssm_cache_dtype mamba_ssu_algorithm replayssm_buffer_len use_replayssm
        """,
        "Devices": "device_ids numa_bind numa_bind_cpus numa_bind_nodes",
        "Several ranks": """
        cpu_distributed_timeout_seconds disable_custom_all_reduce distributed_timeout_seconds
        enable_ep_weight_filter enable_eplb enable_expert_parallel enable_hc_sp
        enable_nccl_comm_suspend eplb_config expert_placement_strategy fully_sharded_loras
        """,
        "Seeing inside": "enable_layerwise_nvtx_tracing profiler_config",
        "LoRA adapters": """
        enable_mixed_moe_lora_format enable_moe_shared_loras lora_dtype specialize_active_lora
        """,
    }
)
"""Arguments that reach vLLM and that nobody of Tandem's has run, by subject."""

_OWNERS = {name: owner for owner, names in OWNED.items() for name in names}
_REASONS = {name: reason for reason, names in REFUSED.items() for name in names}
_TAKEN = {name for names in PASSED.values() for name in names}


def refusal(name: str) -> str:
    """Why `engine_args` must not hold an argument; empty: it may."""
    if owner := _OWNERS.get(name):
        return f"it is set by {owner}"
    return _REASONS.get(name, "" if name in _TAKEN else "Tandem knows no such argument of vLLM")
