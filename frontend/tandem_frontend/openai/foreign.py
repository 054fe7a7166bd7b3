"""Fields and types of tools that other servers and clients' own objects have and requests here do
not. The rule: what would change the meaning of an answer is refused, with the reason; what is only
a declaration, a hint or an offer is dropped, and the answer's head names it. docs/api.md lists all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

_LONGEST_HARMLESS = 64
"""Bytes of JSON: a longer value is not even looked at."""
_LONGEST_OFFERS = 1024
"""Bytes of JSON: a longer list of offers is not even looked at."""


class Foreign(NamedTuple):
    """A field that is known and not offered."""

    reason: str
    """Why it is refused, or dropped."""
    harmless: tuple[str, ...] = ()
    """Values, as JSON, that ask for what is done anyway; `null` is one of every field."""
    dropped: bool = False
    """Every value is passed over, and named: the answer means the same without it."""
    offers: frozenset[str] = frozenset()
    """A list of nothing but these is passed over, and named."""

    def is_harmless(self, value: msgspec.Raw) -> bool:
        """Whether the value asks for nothing but what is done anyway."""
        text = memoryview(value)
        if text.nbytes > _LONGEST_HARMLESS:
            return False
        return msgspec.json.encode(msgspec.json.decode(text)).decode() in ("null", *self.harmless)

    def is_dropped(self, value: msgspec.Raw) -> bool:
        """Whether the value is passed over, and named."""
        if self.dropped or not self.offers or memoryview(value).nbytes > _LONGEST_OFFERS:
            return self.dropped
        given = msgspec.json.decode(value)
        return isinstance(given, list) and all(
            isinstance(each, str) and each in self.offers for each in given
        )


NO_BUILT_IN = "no tool is built in"
_OF_CHATS = "only chats take this field"
ONLY_TEXT = "only text is offered"
_THINKING = "see `reasoning_effort`, `thinking_token_budget` and `chat_template_kwargs`"
_ADAPTERS = "`model` names an adapter, as model:adapter"
NO_INSIDES = "answers tell nothing of the engine's insides"
_NO_TEMPLATE_CHOICE = "the model's own chat template writes the prompt"
ROUTED_HERE = "the router chooses workers"
_NO_CUSTOM = "tools are functions with a JSON Schema"
TRUE, FALSE, _EITHER = ("true",), ("false",), ("true", "false")
EMPTY_OBJECT, EMPTY_LIST = ("{}",), ("[]",)


def all_are(foreign: Foreign, names: str) -> dict[str, Foreign]:
    """One rule for the fields of these names, which have spaces between them."""
    return dict.fromkeys(names.split(), foreign)


def hint(reason: str, harmless: tuple[str, ...] = ()) -> Foreign:
    """A declaration, a hint or an offer."""
    return Foreign(reason, harmless, dropped=True)


EDITS = hint(
    "prompts are never cut: an edit is an offer to shorten them",
    ("{}", "[]", '{"edits":[]}'),
)
VERBOSITY = hint("models have no such setting", ('"medium"',))
MODEL_NOT_SHOWN = hint("the model does not see this field")
NOTHING_KEPT = hint("this server neither stores nor shows the field")

OF_GENERATION: dict[str, Foreign] = {
    # OpenAI's
    "web_search_options": Foreign(NO_BUILT_IN),
    "modalities": Foreign(ONLY_TEXT, ('["text"]',)),
    "audio": Foreign(ONLY_TEXT),
    "store": Foreign("this server stores no answers", FALSE),
    "prediction": Foreign("predicted outputs are not offered"),
    "verbosity": VERBOSITY,
    "suffix": Foreign("insertion is not offered", ('""',)),
    # vLLM's and SGLang's
    "use_beam_search": Foreign("beam search is not offered", FALSE),
    "length_penalty": Foreign("beam search is not offered", ("1", "1.0")),
    "skip_special_tokens": Foreign("texts are without special tokens; see `detokenize`", TRUE),
    "spaces_between_special_tokens": Foreign("texts are without special tokens", TRUE),
    **all_are(
        Foreign("texts end before their stop string", FALSE),
        "include_stop_str_in_output no_stop_trim",
    ),
    "stop_regex": Foreign("see `stop`"),
    **all_are(Foreign("prompts are never cut"), "truncate_prompt_tokens truncation_side"),
    "logprob_token_ids": Foreign("log-probabilities are those of the likeliest tokens"),
    "allowed_token_ids": Foreign("see `logit_bias`"),
    "bad_words": Foreign("see `logits_processors`", EMPTY_LIST),
    "documents": Foreign(_NO_TEMPLATE_CHOICE, EMPTY_LIST),
    "chat_template": Foreign(_NO_TEMPLATE_CHOICE),
    "task": Foreign(_NO_TEMPLATE_CHOICE),
    **all_are(
        Foreign(ONLY_TEXT, EMPTY_OBJECT),
        "media_io_kwargs mm_processor_kwargs images_config video_config",
    ),
    **all_are(Foreign(ONLY_TEXT), "max_dynamic_patch min_dynamic_patch image_data"),
    "use_audio_in_video": Foreign(ONLY_TEXT, FALSE),
    "structural_tag": Foreign("see `guided_json` and the other fields of forms"),
    "guided_decoding_backend": Foreign("forms are compiled by one backend"),
    "guided_whitespace_pattern": Foreign("JSON comes on one line"),
    "custom_logit_processor": Foreign("no field is code; see `logits_processors`"),
    "custom_params": Foreign("see `logits_processors`", EMPTY_OBJECT),
    "custom_labels": Foreign("metrics have no labels of clients", EMPTY_OBJECT),
    "input_ids": Foreign("a chat is messages; see `/v1/completions`"),
    "prompt_embeds": Foreign("prompts are texts or token ids"),
    "stream_reasoning": Foreign("reasoning streams as the answer does", _EITHER),
    **all_are(
        Foreign("see `return_token_ids`", FALSE),
        "return_prompt_token_ids return_tokens_as_token_ids",
    ),
    "return_prompt_text": Foreign("the prompt as it was written is not shown", FALSE),
    "return_token_offsets": Foreign("answers have no offsets of tokens", FALSE),
    "return_mm_kwargs": Foreign(ONLY_TEXT, TRUE),
    "return_meta_info": Foreign("see `tandem.report`", FALSE),
    "return_cached_tokens_details": Foreign("see `usage`", FALSE),
    **all_are(
        Foreign(NO_INSIDES, FALSE),
        "return_spec_tokens_details return_hidden_states return_routed_experts "
        "return_input_ids_in_sglext return_output_ids_in_sglext return_sampling_mask",
    ),
    **all_are(Foreign(NO_INSIDES, ("0",)), "routed_experts_start_len routed_experts_prompt_start"),
    "sampling_logprobs_mode": Foreign(NO_INSIDES),
    "watermarking": Foreign("answers have no watermark", FALSE),
    "repetition_detection": Foreign("see output hooks"),
    "stream_interval": Foreign("chunks leave as they come", ("1",)),
    "lora_path": Foreign(_ADAPTERS),
    "session_params": Foreign("every request stands for itself", EMPTY_OBJECT),
    "vllm_xargs": Foreign("see `logits_processors`", EMPTY_OBJECT),
    **all_are(
        Foreign(ROUTED_HERE),
        "kv_transfer_params ec_transfer_params bootstrap_host bootstrap_port "
        "bootstrap_room routed_dp_rank disagg_prefill_dp_rank data_parallel_rank",
    ),
    # what still others call things
    **all_are(Foreign("give it as a message of the role `system`"), "system instructions"),
    "input": Foreign("see `messages` and `prompt`"),
    "images": Foreign(ONLY_TEXT, EMPTY_LIST),
    "return_logprob": Foreign("see `logprobs`", FALSE),
    "top_logprobs_num": Foreign("see `logprobs` and `top_logprobs`", ("0",)),
    "logprob_start_len": Foreign("see `echo` and `prompt_logprobs`", ("-1",)),
    "token_ids_logprob": Foreign("log-probabilities are those of the likeliest tokens"),
    "return_text_in_logprobs": Foreign("tokens are shown as text", _EITHER),
    **all_are(Foreign("see `max_tokens`"), "max_new_tokens max_output_tokens n_predict"),
    "stop_sequences": Foreign("see `stop`", EMPTY_LIST),
    "grammar": Foreign("see `guided_grammar`"),
    "typical_p": Foreign("see `top_p`", ("1", "1.0")),
    **all_are(Foreign(_THINKING), "thinking enable_thinking reasoning"),
    "text": Foreign("see `response_format`", EMPTY_OBJECT),
    "output_config": Foreign("see `response_format` and `reasoning_effort`", EMPTY_OBJECT),
}
OF_CHATS: Mapping[str, Foreign] = OF_GENERATION | {
    "prompt": Foreign("a chat is `messages`"),
    "echo": Foreign("only completions take this field", FALSE),
    "add_special_tokens": Foreign(_NO_TEMPLATE_CHOICE, FALSE),
}
OF_COMPLETIONS: Mapping[str, Foreign] = OF_GENERATION | {
    "messages": Foreign("a completion has a `prompt`"),
    "tools": Foreign(_OF_CHATS, EMPTY_LIST),
    "tool_choice": Foreign(_OF_CHATS, ('"none"', '"auto"')),
    "parallel_tool_calls": Foreign(_OF_CHATS, _EITHER),
    "functions": Foreign(_OF_CHATS, EMPTY_LIST),
    "function_call": Foreign(_OF_CHATS, ('"none"', '"auto"')),
    "reasoning_effort": Foreign(_OF_CHATS, ('"none"',)),
    "thinking_token_budget": Foreign(_OF_CHATS, ("-1",)),
    "include_reasoning": Foreign(_OF_CHATS, TRUE),
    "separate_reasoning": Foreign(_OF_CHATS, _EITHER),
    "chat_template_kwargs": Foreign(_OF_CHATS, EMPTY_OBJECT),
    "add_generation_prompt": Foreign(_OF_CHATS, TRUE),
    "continue_final_message": Foreign(_OF_CHATS, FALSE),
    "max_completion_tokens": Foreign("see `max_tokens`"),
    "top_logprobs": Foreign("see `logprobs`", ("0",)),
    "add_special_tokens": Foreign("prompts are tokenised as the tokenizer does it", TRUE),
}
OF_TOKENS: Mapping[str, Foreign] = {
    "chat_template": Foreign(_NO_TEMPLATE_CHOICE),
    "return_token_strs": Foreign("see `/detokenize`", FALSE),
}
OF_MESSAGES: Mapping[str, Foreign] = {
    "refusal": Foreign("messages are text alone; give it as `content`", ('""',)),
    "audio": Foreign(ONLY_TEXT, EMPTY_OBJECT),
    "annotations": Foreign(NO_BUILT_IN, EMPTY_LIST),
    "tools": Foreign("tools are the request's, not a message's", EMPTY_LIST),
    "parsed": MODEL_NOT_SHOWN,
    "provider_specific_fields": MODEL_NOT_SHOWN,
}
OF_PARTS: Mapping[str, Foreign] = {
    **all_are(MODEL_NOT_SHOWN, "cache_control prompt_cache_breakpoint"),
    **all_are(Foreign(ONLY_TEXT), "image_url input_audio file"),
}
OF_TOOLS: Mapping[str, Foreign] = {
    "cache_control": MODEL_NOT_SHOWN,
    "custom": Foreign(_NO_CUSTOM),
}
OF_FUNCTIONS: Mapping[str, Foreign] = {"cache_control": MODEL_NOT_SHOWN}
OF_CALLS: Mapping[str, Foreign] = {
    "custom": Foreign(_NO_CUSTOM),
    "provider_specific_fields": MODEL_NOT_SHOWN,
    "extra_content": MODEL_NOT_SHOWN,
}
OF_CALLED: Mapping[str, Foreign] = {"parsed_arguments": MODEL_NOT_SHOWN}
OF_NVEXT: Mapping[str, Foreign] = {
    "greed_sampling": Foreign("see `temperature`", FALSE),
    "use_raw_prompt": Foreign(_NO_TEMPLATE_CHOICE, FALSE),
    "token_data": Foreign("see `/v1/completions`, whose prompts may be token ids"),
    "max_thinking_tokens": Foreign("see `thinking_token_budget`"),
    **all_are(
        hint(ROUTED_HERE),
        "backend_instance_id prefill_worker_id decode_worker_id dp_rank prefill_dp_rank",
    ),
    "cache_control": hint("caches keep the prefixes that any request used last"),
    "annotations": hint("streams have no events beside the API's own", EMPTY_LIST),
    "extra_fields": hint("see `tandem.report`", EMPTY_LIST),
    "request_timestamp_ms": hint("requests are timed by the server's own clock"),
}
OF_AGENT_HINTS: Mapping[str, Foreign] = {
    "strict_priority": hint("see `priority`: one queue has one order"),
    "speculative_prefill": hint("prompts are computed when they come", FALSE),
    "latency_sensitivity": hint("see `priority`"),
}
OF_SESSION_CONTROL: Mapping[str, Foreign] = {
    "timeout": hint("a session is forgotten after enough other sessions have come"),
}
BUILT_IN_TOOLS = frozenset(
    (
        *("web_search", "web_search_preview", "web_fetch", "file_search", "code_interpreter"),
        *("code_execution", "computer_use_preview", "computer", "image_generation", "mcp"),
        *("local_shell", "shell", "apply_patch", "bash", "text_editor", "memory", "advisor"),
        *("tool_search", "tool_search_tool_regex", "tool_search_tool_bm25", "mcp_toolset"),
    )
)
"""Types of tools that servers elsewhere have built in: offers, which are left out. Versions, as the
date behind `web_search_20250305`, are left out of the names.
"""
TOOL_TYPES = frozenset(("function", "custom", "namespace"))
"""Types of clients' own tools in some dialect: others refuse them, or leave them out."""
BUILT_IN_CALLS = frozenset(
    (
        *("web_search_call", "file_search_call", "image_generation_call", "tool_search_call"),
        *("mcp_list_tools", "tool_search_output"),
    )
)
"""Types of items that say what tools of another server did, without what they found: left out."""
OF_CHAT_TOOLS = BUILT_IN_TOOLS | {"custom"}
LEFT_OUT = OF_CHAT_TOOLS | BUILT_IN_CALLS
"""Types of tools and items that some list is read without."""
VALUES: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("image_url", "image", "input_image", "image_embeds", "image_pil"),
            *("video_url", "video", "input_video"),
            *("audio_url", "audio", "input_audio", "audio_embeds"),
            *("file", "input_file", "document", "refusal"),
        ),
        ONLY_TEXT,
    ),
    "custom": _NO_CUSTOM,
    "item_reference": "this server stores no items; send the item itself",
    "compaction": "this server cannot read a compaction; send the items themselves",
    **dict.fromkeys(
        (
            *BUILT_IN_TOOLS,
            *("code_interpreter_call", "computer_call", "mcp_call", "local_shell_call"),
            *("shell_call", "apply_patch_call", "server_tool_use", "web_search_tool_result"),
        ),
        NO_BUILT_IN,
    ),
}
"""Types of messages' parts, of items, and of tools that must be called, that are refused, with the
reason. Versions are left out here too.
"""
