"""Fields that other servers and clients' own objects have and requests here do not: why each is
refused, and which of its values ask for nothing but what is done anyway. docs/api.md lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

_LONGEST_HARMLESS = 64
"""Bytes of JSON: a longer value is not even looked at."""


class Foreign(NamedTuple):
    """A field that is known and not offered."""

    reason: str
    """Why it is refused."""
    harmless: tuple[str, ...] = ()
    """Values, as JSON, that are passed over; `null` is one of every field."""
    dropped: bool = False
    """Every value is passed over: it says nothing to the model."""

    def passes(self, value: msgspec.Raw) -> bool:
        """Whether the request means the same without it."""
        if self.dropped:
            return True
        text = memoryview(value)
        if text.nbytes > _LONGEST_HARMLESS:
            return False
        return msgspec.json.encode(msgspec.json.decode(text)).decode() in ("null", *self.harmless)


_NO_TOOLS = "tools and function calls are not offered"
_ONLY_TEXT = "only text is offered"
_NO_REASONING = "there is no reasoning parser"
_NO_CACHE_KEYS = "prefix caches are kept apart by API key; see `share_prefix_cache`"
_NO_ADAPTERS = "one model is served, without adapters"
_NO_INSIDES = "it tells of the engine's insides, which answers do not"
_NO_TEMPLATE_CHOICE = "the model's own chat template writes the prompt"
_ROUTED_HERE = "the router chooses workers"
_TRUE, _FALSE, _EITHER = ("true",), ("false",), ("true", "false")
_EMPTY_OBJECT, _EMPTY_LIST = ("{}",), ("[]",)

_BOTH: dict[str, Foreign] = {
    # OpenAI's
    "tools": Foreign(_NO_TOOLS, _EMPTY_LIST),
    "tool_choice": Foreign(_NO_TOOLS, ('"none"', '"auto"')),
    "parallel_tool_calls": Foreign(_NO_TOOLS, _EITHER),
    "functions": Foreign(_NO_TOOLS, _EMPTY_LIST),
    "function_call": Foreign(_NO_TOOLS, ('"none"', '"auto"')),
    "web_search_options": Foreign(_NO_TOOLS),
    "modalities": Foreign(_ONLY_TEXT, ('["text"]',)),
    "audio": Foreign(_ONLY_TEXT),
    "store": Foreign("nothing is stored here", _FALSE),
    "prediction": Foreign("predicted outputs are not offered"),
    "reasoning_effort": Foreign(_NO_REASONING, ('"none"',)),
    "verbosity": Foreign("there is no such setting"),
    "service_tier": Foreign("there are no tiers; see `priority`", ('"auto"', '"default"')),
    "suffix": Foreign("insertion is not offered", ('""',)),
    # vLLM's and SGLang's
    "min_tokens": Foreign("it is not offered; see `ignore_eos`", ("0",)),
    "use_beam_search": Foreign("beam search is not offered", _FALSE),
    "length_penalty": Foreign("beam search is not offered", ("1", "1.0")),
    "skip_special_tokens": Foreign("texts are without special tokens; see `detokenize`", _TRUE),
    "spaces_between_special_tokens": Foreign("texts are without special tokens", _TRUE),
    "include_stop_str_in_output": Foreign("texts end before their stop string", _FALSE),
    "no_stop_trim": Foreign("texts end before their stop string", _FALSE),
    "stop_regex": Foreign("it is not offered; see `stop`"),
    "truncate_prompt_tokens": Foreign("prompts are never cut"),
    "truncation_side": Foreign("prompts are never cut"),
    "prompt_logprobs": Foreign("log-probabilities are those of the output"),
    "logprob_token_ids": Foreign("log-probabilities are those of the likeliest tokens"),
    "allowed_token_ids": Foreign("it is not offered; see `logit_bias`"),
    "bad_words": Foreign("it is not offered; see `logits_processors`", _EMPTY_LIST),
    "documents": Foreign(_NO_TEMPLATE_CHOICE, _EMPTY_LIST),
    "chat_template": Foreign(_NO_TEMPLATE_CHOICE),
    "chat_template_kwargs": Foreign(_NO_TEMPLATE_CHOICE, _EMPTY_OBJECT),
    "add_generation_prompt": Foreign(_NO_TEMPLATE_CHOICE, _TRUE),
    "continue_final_message": Foreign(_NO_TEMPLATE_CHOICE, _FALSE),
    "task": Foreign(_NO_TEMPLATE_CHOICE),
    "media_io_kwargs": Foreign(_ONLY_TEXT, _EMPTY_OBJECT),
    "mm_processor_kwargs": Foreign(_ONLY_TEXT, _EMPTY_OBJECT),
    "max_dynamic_patch": Foreign(_ONLY_TEXT),
    "min_dynamic_patch": Foreign(_ONLY_TEXT),
    "use_audio_in_video": Foreign(_ONLY_TEXT, _FALSE),
    "images_config": Foreign(_ONLY_TEXT, _EMPTY_OBJECT),
    "video_config": Foreign(_ONLY_TEXT, _EMPTY_OBJECT),
    "structured_outputs": Foreign("see `guided_json` and the other fields of forms"),
    "structural_tag": Foreign("see `guided_json` and the other fields of forms"),
    "guided_decoding_backend": Foreign("forms are compiled by one backend"),
    "guided_whitespace_pattern": Foreign("JSON comes on one line"),
    "json_schema": Foreign("see `guided_json`"),
    "regex": Foreign("see `guided_regex`"),
    "ebnf": Foreign("see `guided_grammar`"),
    "custom_logit_processor": Foreign("no field is code; see `logits_processors`"),
    "custom_params": Foreign("see `logits_processors`", _EMPTY_OBJECT),
    "custom_labels": Foreign("metrics have no labels of clients", _EMPTY_OBJECT),
    "input_ids": Foreign("a chat is messages; see `/v1/completions`"),
    "prompt_embeds": Foreign("prompts are texts or token ids"),
    "thinking_token_budget": Foreign(_NO_REASONING, ("-1",)),
    "include_reasoning": Foreign(_NO_REASONING, _TRUE),
    "separate_reasoning": Foreign(_NO_REASONING, _EITHER),
    "stream_reasoning": Foreign(_NO_REASONING, _EITHER),
    "return_token_ids": Foreign("see `detokenize`", _FALSE),
    "return_prompt_token_ids": Foreign("see `/tokenize`", _FALSE),
    "return_prompt_text": Foreign("the prompt as it was written is not shown", _FALSE),
    "return_tokens_as_token_ids": Foreign("see `detokenize`", _FALSE),
    "return_token_offsets": Foreign("it is not offered", _FALSE),
    "return_mm_kwargs": Foreign(_ONLY_TEXT, _TRUE),
    "return_meta_info": Foreign("see `tandem.report`", _FALSE),
    "return_cached_tokens_details": Foreign("see `usage`", _FALSE),
    "return_spec_tokens_details": Foreign(_NO_INSIDES, _FALSE),
    "return_hidden_states": Foreign(_NO_INSIDES, _FALSE),
    "return_routed_experts": Foreign(_NO_INSIDES, _FALSE),
    "routed_experts_start_len": Foreign(_NO_INSIDES, ("0",)),
    "routed_experts_prompt_start": Foreign(_NO_INSIDES, ("0",)),
    "return_input_ids_in_sglext": Foreign(_NO_INSIDES, _FALSE),
    "return_output_ids_in_sglext": Foreign(_NO_INSIDES, _FALSE),
    "return_sampling_mask": Foreign(_NO_INSIDES, _FALSE),
    "sampling_logprobs_mode": Foreign(_NO_INSIDES),
    "watermarking": Foreign("it is not offered", _FALSE),
    "repetition_detection": Foreign("see output hooks"),
    "stream_interval": Foreign("chunks leave as they come", ("1",)),
    "cache_salt": Foreign(_NO_CACHE_KEYS),
    "extra_key": Foreign(_NO_CACHE_KEYS),
    "lora_path": Foreign(_NO_ADAPTERS),
    "session_params": Foreign("every request stands for itself", _EMPTY_OBJECT),
    "vllm_xargs": Foreign("see `logits_processors`", _EMPTY_OBJECT),
    "kv_transfer_params": Foreign(_ROUTED_HERE),
    "ec_transfer_params": Foreign(_ROUTED_HERE),
    "bootstrap_host": Foreign(_ROUTED_HERE),
    "bootstrap_port": Foreign(_ROUTED_HERE),
    "bootstrap_room": Foreign(_ROUTED_HERE),
    "routed_dp_rank": Foreign(_ROUTED_HERE),
    "disagg_prefill_dp_rank": Foreign(_ROUTED_HERE),
    "data_parallel_rank": Foreign(_ROUTED_HERE),
    # what still others call things
    "system": Foreign("give it as a message of the role `system`"),
    "instructions": Foreign("give it as a message of the role `system`"),
    "input": Foreign("see `messages` and `prompt`"),
    "image_data": Foreign(_ONLY_TEXT),
    "images": Foreign(_ONLY_TEXT, _EMPTY_LIST),
    "max_new_tokens": Foreign("see `max_tokens`"),
    "max_output_tokens": Foreign("see `max_tokens`"),
    "n_predict": Foreign("see `max_tokens`"),
    "stop_sequences": Foreign("see `stop`", _EMPTY_LIST),
    "grammar": Foreign("see `guided_grammar`"),
    "typical_p": Foreign("it is not offered; see `top_p`", ("1", "1.0")),
    "thinking": Foreign(_NO_REASONING),
    "enable_thinking": Foreign(_NO_REASONING),
    "reasoning": Foreign(_NO_REASONING),
}
OF_CHATS: Mapping[str, Foreign] = _BOTH | {
    "prompt": Foreign("a chat is `messages`"),
    "echo": Foreign("completions alone have it", _FALSE),
    "add_special_tokens": Foreign(_NO_TEMPLATE_CHOICE, _FALSE),
}
OF_COMPLETIONS: Mapping[str, Foreign] = _BOTH | {
    "messages": Foreign("a completion has a `prompt`"),
    "max_completion_tokens": Foreign("see `max_tokens`"),
    "top_logprobs": Foreign("see `logprobs`", ("0",)),
    "add_special_tokens": Foreign("prompts are tokenised as the tokenizer does it", _TRUE),
}
OF_TOKENS: Mapping[str, Foreign] = {
    "tools": Foreign(_NO_TOOLS, _EMPTY_LIST),
    "chat_template": Foreign(_NO_TEMPLATE_CHOICE),
    "chat_template_kwargs": Foreign(_NO_TEMPLATE_CHOICE, _EMPTY_OBJECT),
    "add_generation_prompt": Foreign(_NO_TEMPLATE_CHOICE, _TRUE),
    "continue_final_message": Foreign(_NO_TEMPLATE_CHOICE, _FALSE),
    "return_token_strs": Foreign("see `/detokenize`", _FALSE),
}
_DROPPED = Foreign("the model is not shown it", dropped=True)
OF_MESSAGES: Mapping[str, Foreign] = {
    "refusal": Foreign("messages are text alone; give it as `content`", ('""',)),
    "audio": Foreign(_ONLY_TEXT, _EMPTY_OBJECT),
    "annotations": Foreign(_NO_TOOLS, _EMPTY_LIST),
    "function_call": Foreign(_NO_TOOLS, _EMPTY_OBJECT),
    "tool_calls": Foreign(_NO_TOOLS, _EMPTY_LIST),
    "tool_call_id": Foreign(_NO_TOOLS, ('""',)),
    "tools": Foreign(_NO_TOOLS, _EMPTY_LIST),
    "parsed": _DROPPED,
    "provider_specific_fields": _DROPPED,
    "reasoning_content": _DROPPED,
    "reasoning": _DROPPED,
}
OF_PARTS: Mapping[str, Foreign] = {
    "cache_control": _DROPPED,
    **dict.fromkeys(("image_url", "input_audio", "file"), Foreign(_ONLY_TEXT)),
}
VALUES: Mapping[str, str] = {
    **dict.fromkeys(("tool", "function"), _NO_TOOLS),
    **dict.fromkeys(
        ("image_url", "input_audio", "file", "video_url", "audio_url", "image"), _ONLY_TEXT
    ),
}
"""Roles of messages and types of their parts that are refused, with the reason."""
