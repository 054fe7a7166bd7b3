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
"""The same of a list of offers."""


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


_NO_BUILT_IN = "no tool is built in"
_OF_CHATS = "chats alone have it"
_ONLY_TEXT = "only text is offered"
_THINKING = "see `reasoning_effort`, `thinking_token_budget` and `chat_template_kwargs`"
_ADAPTERS = "`model` names an adapter, as model:adapter"
_NO_INSIDES = "it tells of the engine's insides, which answers do not"
_NO_TEMPLATE_CHOICE = "the model's own chat template writes the prompt"
_ROUTED_HERE = "the router chooses workers"
_NO_CUSTOM = "tools are functions with a JSON Schema"
_TRUE, _FALSE, _EITHER = ("true",), ("false",), ("true", "false")
_EMPTY_OBJECT, _EMPTY_LIST = ("{}",), ("[]",)


def _hint(reason: str, harmless: tuple[str, ...] = ()) -> Foreign:
    """A declaration, a hint or an offer."""
    return Foreign(reason, harmless, dropped=True)


_EDITS = _hint(
    "prompts are never cut: an edit is an offer to shorten them",
    ("{}", "[]", '{"edits":[]}'),
)
_VERBOSITY = _hint("models have no such setting", ('"medium"',))
_MODEL_NOT_SHOWN = _hint("the model is not shown it")
_NOTHING_KEPT = _hint("nothing of it is kept or shown")

_BOTH: dict[str, Foreign] = {
    # OpenAI's
    "web_search_options": Foreign(_NO_BUILT_IN),
    "modalities": Foreign(_ONLY_TEXT, ('["text"]',)),
    "audio": Foreign(_ONLY_TEXT),
    "store": Foreign("nothing is stored here", _FALSE),
    "prediction": Foreign("predicted outputs are not offered"),
    "verbosity": _VERBOSITY,
    "suffix": Foreign("insertion is not offered", ('""',)),
    # vLLM's and SGLang's
    "use_beam_search": Foreign("beam search is not offered", _FALSE),
    "length_penalty": Foreign("beam search is not offered", ("1", "1.0")),
    "skip_special_tokens": Foreign("texts are without special tokens; see `detokenize`", _TRUE),
    "spaces_between_special_tokens": Foreign("texts are without special tokens", _TRUE),
    "include_stop_str_in_output": Foreign("texts end before their stop string", _FALSE),
    "no_stop_trim": Foreign("texts end before their stop string", _FALSE),
    "stop_regex": Foreign("it is not offered; see `stop`"),
    "truncate_prompt_tokens": Foreign("prompts are never cut"),
    "truncation_side": Foreign("prompts are never cut"),
    "logprob_token_ids": Foreign("log-probabilities are those of the likeliest tokens"),
    "allowed_token_ids": Foreign("it is not offered; see `logit_bias`"),
    "bad_words": Foreign("it is not offered; see `logits_processors`", _EMPTY_LIST),
    "documents": Foreign(_NO_TEMPLATE_CHOICE, _EMPTY_LIST),
    "chat_template": Foreign(_NO_TEMPLATE_CHOICE),
    "task": Foreign(_NO_TEMPLATE_CHOICE),
    "media_io_kwargs": Foreign(_ONLY_TEXT, _EMPTY_OBJECT),
    "mm_processor_kwargs": Foreign(_ONLY_TEXT, _EMPTY_OBJECT),
    "max_dynamic_patch": Foreign(_ONLY_TEXT),
    "min_dynamic_patch": Foreign(_ONLY_TEXT),
    "use_audio_in_video": Foreign(_ONLY_TEXT, _FALSE),
    "images_config": Foreign(_ONLY_TEXT, _EMPTY_OBJECT),
    "video_config": Foreign(_ONLY_TEXT, _EMPTY_OBJECT),
    "structural_tag": Foreign("see `guided_json` and the other fields of forms"),
    "guided_decoding_backend": Foreign("forms are compiled by one backend"),
    "guided_whitespace_pattern": Foreign("JSON comes on one line"),
    "custom_logit_processor": Foreign("no field is code; see `logits_processors`"),
    "custom_params": Foreign("see `logits_processors`", _EMPTY_OBJECT),
    "custom_labels": Foreign("metrics have no labels of clients", _EMPTY_OBJECT),
    "input_ids": Foreign("a chat is messages; see `/v1/completions`"),
    "prompt_embeds": Foreign("prompts are texts or token ids"),
    "stream_reasoning": Foreign("reasoning streams as the answer does", _EITHER),
    "return_prompt_token_ids": Foreign("see `return_token_ids`", _FALSE),
    "return_prompt_text": Foreign("the prompt as it was written is not shown", _FALSE),
    "return_tokens_as_token_ids": Foreign("see `return_token_ids`", _FALSE),
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
    "lora_path": Foreign(_ADAPTERS),
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
    "return_logprob": Foreign("see `logprobs`", _FALSE),
    "top_logprobs_num": Foreign("see `logprobs` and `top_logprobs`", ("0",)),
    "logprob_start_len": Foreign("see `echo` and `prompt_logprobs`", ("-1",)),
    "token_ids_logprob": Foreign("log-probabilities are those of the likeliest tokens"),
    "return_text_in_logprobs": Foreign("tokens are shown as text", _EITHER),
    "max_new_tokens": Foreign("see `max_tokens`"),
    "max_output_tokens": Foreign("see `max_tokens`"),
    "n_predict": Foreign("see `max_tokens`"),
    "stop_sequences": Foreign("see `stop`", _EMPTY_LIST),
    "grammar": Foreign("see `guided_grammar`"),
    "typical_p": Foreign("it is not offered; see `top_p`", ("1", "1.0")),
    "thinking": Foreign(_THINKING),
    "enable_thinking": Foreign(_THINKING),
    "reasoning": Foreign(_THINKING),
    "text": Foreign("see `response_format`", _EMPTY_OBJECT),
    "output_config": Foreign("see `response_format` and `reasoning_effort`", _EMPTY_OBJECT),
}
OF_CHATS: Mapping[str, Foreign] = _BOTH | {
    "prompt": Foreign("a chat is `messages`"),
    "echo": Foreign("only completions take this field", _FALSE),
    "add_special_tokens": Foreign(_NO_TEMPLATE_CHOICE, _FALSE),
}
OF_COMPLETIONS: Mapping[str, Foreign] = _BOTH | {
    "messages": Foreign("a completion has a `prompt`"),
    "tools": Foreign(_OF_CHATS, _EMPTY_LIST),
    "tool_choice": Foreign(_OF_CHATS, ('"none"', '"auto"')),
    "parallel_tool_calls": Foreign(_OF_CHATS, _EITHER),
    "functions": Foreign(_OF_CHATS, _EMPTY_LIST),
    "function_call": Foreign(_OF_CHATS, ('"none"', '"auto"')),
    "reasoning_effort": Foreign(_OF_CHATS, ('"none"',)),
    "thinking_token_budget": Foreign(_OF_CHATS, ("-1",)),
    "include_reasoning": Foreign(_OF_CHATS, _TRUE),
    "separate_reasoning": Foreign(_OF_CHATS, _EITHER),
    "chat_template_kwargs": Foreign(_OF_CHATS, _EMPTY_OBJECT),
    "add_generation_prompt": Foreign(_OF_CHATS, _TRUE),
    "continue_final_message": Foreign(_OF_CHATS, _FALSE),
    "max_completion_tokens": Foreign("see `max_tokens`"),
    "top_logprobs": Foreign("see `logprobs`", ("0",)),
    "add_special_tokens": Foreign("prompts are tokenised as the tokenizer does it", _TRUE),
}
OF_TOKENS: Mapping[str, Foreign] = {
    "chat_template": Foreign(_NO_TEMPLATE_CHOICE),
    "return_token_strs": Foreign("see `/detokenize`", _FALSE),
}
_FINDINGS = frozenset(
    (
        *("reasoning.encrypted_content", "file_search_call.results", "web_search_call.results"),
        *("web_search_call.action.sources", "code_interpreter_call.outputs"),
        *("computer_call_output.output.image_url", "message.input_image.image_url"),
    )
)
"""What an answer would include of tools that other servers have built in, and of images."""
_NOT_STORED = "nothing is stored here; send the whole conversation as `input`"
_ELSEWHERE = "see `/v1/chat/completions`"
_CHATS_ALONE = (
    *(
        "best_of",
        "cache_salt",
        "detokenize",
        "ebnf",
        "extra_key",
        "frequency_penalty",
        "guided_choice",
    ),
    *(
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "ignore_eos",
        "include_reasoning",
    ),
    *(
        "json_schema",
        "logit_bias",
        "logits_processors",
        "min_p",
        "min_tokens",
    ),
    *(
        "n",
        "presence_penalty",
        "priority",
        "prompt_logprobs",
        "regex",
        "repetition_penalty",
        "resume",
    ),
    *(
        "seed",
        "separate_reasoning",
        "stop",
        "stop_token_ids",
        "structured_outputs",
    ),
    *(
        "tandem",
        "thinking_token_budget",
        "timeout",
    ),
)
_OF_CHATS_ALONE = dict.fromkeys(_CHATS_ALONE, Foreign(_ELSEWHERE)) | {
    "return_token_ids": Foreign(_ELSEWHERE, _FALSE),
    "chat_template_kwargs": Foreign(_ELSEWHERE, _EMPTY_OBJECT),
    "add_generation_prompt": Foreign(_ELSEWHERE, _TRUE),
    "continue_final_message": Foreign(_ELSEWHERE, _FALSE),
    "echo": Foreign("only completions take this field", _FALSE),
}
OF_RESPONSES: Mapping[str, Foreign] = (
    _BOTH
    | _OF_CHATS_ALONE
    | {
        "top_k": Foreign(_ELSEWHERE),
        "store": Foreign(_NOT_STORED, _FALSE),
        "previous_response_id": Foreign(_NOT_STORED),
        "conversation": Foreign(_NOT_STORED),
        "background": Foreign("answers are given at once; see `stream`", _FALSE),
        "prompt": Foreign("no prompts are stored here; see `instructions` and `input`"),
        "truncation": _hint("prompts are never cut", ('"disabled"',)),
        "context_management": _EDITS,
        "client_metadata": _NOTHING_KEPT,
        "include": Foreign(
            "an answer includes all that `include` could add, except log-probabilities",
            ("[]", '["reasoning.encrypted_content"]'),
            offers=_FINDINGS,
        ),
        "top_logprobs": Foreign("only chats give log-probabilities", ("0",)),
        "logprobs": Foreign("only chats give log-probabilities", _FALSE),
        "max_tool_calls": _hint("the field bounds built-in tools, and this server has none"),
        "stream_options": Foreign(
            "nothing is padded, and streams end with their usage",
            ("{}", '{"include_obfuscation":false}'),
        ),
        "max_tokens": Foreign("see `max_output_tokens`"),
        "max_completion_tokens": Foreign("see `max_output_tokens`"),
        "messages": Foreign("see `input`"),
        "functions": Foreign("see `tools`", _EMPTY_LIST),
        "function_call": Foreign("see `tool_choice`"),
        "response_format": Foreign("see `text`"),
        "reasoning_effort": Foreign("see `reasoning`"),
        **dict.fromkeys(("prompt_cache_retention", "safety_identifier"), _MODEL_NOT_SHOWN),
    }
)
_AT_ONCE = Foreign("calls are answered before the model goes on", _FALSE)
OF_ITEMS: Mapping[str, Foreign] = {
    **dict.fromkeys(
        ("phase", "created_by", "caller", "provider_specific_fields"),
        _MODEL_NOT_SHOWN,
    ),
    **dict.fromkeys(("async", "async_"), _AT_ONCE),  # as Python's clients may call it
}
OF_FLAT_TOOLS: Mapping[str, Foreign] = {
    **dict.fromkeys(("cache_control", "allowed_callers", "defer_loading"), _MODEL_NOT_SHOWN),
    "output_schema": _hint("templates show what a tool takes, not what it gives"),
    "async": _AT_ONCE,
}
OF_MESSAGES: Mapping[str, Foreign] = {
    "refusal": Foreign("messages are text alone; give it as `content`", ('""',)),
    "audio": Foreign(_ONLY_TEXT, _EMPTY_OBJECT),
    "annotations": Foreign(_NO_BUILT_IN, _EMPTY_LIST),
    "tools": Foreign("tools are the request's, not a message's", _EMPTY_LIST),
    "parsed": _MODEL_NOT_SHOWN,
    "provider_specific_fields": _MODEL_NOT_SHOWN,
}
OF_PARTS: Mapping[str, Foreign] = {
    **dict.fromkeys(("cache_control", "prompt_cache_breakpoint"), _MODEL_NOT_SHOWN),
    **dict.fromkeys(("image_url", "input_audio", "file"), Foreign(_ONLY_TEXT)),
}
OF_TOOLS: Mapping[str, Foreign] = {
    "cache_control": _MODEL_NOT_SHOWN,
    "custom": Foreign(_NO_CUSTOM),
}
OF_FUNCTIONS: Mapping[str, Foreign] = {"cache_control": _MODEL_NOT_SHOWN}
OF_CALLS: Mapping[str, Foreign] = {
    "custom": Foreign(_NO_CUSTOM),
    "provider_specific_fields": _MODEL_NOT_SHOWN,
    "extra_content": _MODEL_NOT_SHOWN,
}
OF_CALLED: Mapping[str, Foreign] = {"parsed_arguments": _MODEL_NOT_SHOWN}
_OF_EVERY_MESSAGE: dict[str, Foreign] = {
    "cache_control": _MODEL_NOT_SHOWN,
    "user_profile_id": _MODEL_NOT_SHOWN,
    "workspace_id": _MODEL_NOT_SHOWN,
    "inference_geo": Foreign(_ROUTED_HERE),
    "container": _hint(_NO_BUILT_IN),
    "mcp_servers": _hint("this server calls no others", _EMPTY_LIST),
    "context_management": _EDITS,
    "speed": Foreign("all requests run at one speed", ('"standard"',)),
    "diagnostics": Foreign(_NO_INSIDES),
    "output_format": Foreign("see `output_config.format`"),
    "functions": Foreign("see `tools`", _EMPTY_LIST),
    "prompt": Foreign("see `messages`"),
    "input": Foreign("see `messages`"),
    "instructions": Foreign("see `system`"),
    "reasoning_effort": Foreign("see `output_config.effort`"),
    "response_format": Foreign("see `output_config.format`"),
}
OF_COUNTS: Mapping[str, Foreign] = _OF_EVERY_MESSAGE | dict.fromkeys(
    (
        *("kv_hints", "max_tokens", "metadata", "nvext", "service_tier", "stop_sequences"),
        *("stream", "temperature", "top_k", "top_p"),
    ),
    _hint("nothing is generated"),
)
OF_TURNS: Mapping[str, Foreign] = (
    _BOTH
    | _OF_CHATS_ALONE
    | _OF_EVERY_MESSAGE
    | {
        "stop": Foreign("see `stop_sequences`"),
        "max_completion_tokens": Foreign("see `max_tokens`"),
        "parallel_tool_calls": Foreign("see `tool_choice.disable_parallel_tool_use`"),
        "logprobs": Foreign("only chats give log-probabilities", _FALSE),
        "top_logprobs": Foreign("only chats give log-probabilities", ("0",)),
        "stream_options": Foreign("streams end with their usage"),
        "function_call": Foreign("see `tool_choice`"),
        **dict.fromkeys(("prompt_cache_key", "user"), _hint("see `metadata.user_id`")),
    }
)
OF_BLOCKS: Mapping[str, Foreign] = {
    **dict.fromkeys(("cache_control", "caller", "citations", "toolset_name"), _MODEL_NOT_SHOWN),
    "source": Foreign(_ONLY_TEXT),
}
OF_CLIENT_TOOLS: Mapping[str, Foreign] = {
    **dict.fromkeys(
        ("cache_control", "allowed_callers", "defer_loading", "eager_input_streaming"),
        _MODEL_NOT_SHOWN,
    ),
    "input_examples": Foreign("templates show tools by their schema", _EMPTY_LIST),
}
OF_NVEXT: Mapping[str, Foreign] = {
    "greed_sampling": Foreign("see `temperature`", _FALSE),
    "use_raw_prompt": Foreign(_NO_TEMPLATE_CHOICE, _FALSE),
    "token_data": Foreign("see `/v1/completions`, whose prompts may be token ids"),
    "max_thinking_tokens": Foreign("see `thinking_token_budget`"),
    **dict.fromkeys(
        ("backend_instance_id", "prefill_worker_id", "decode_worker_id", "dp_rank"),
        _hint(_ROUTED_HERE),
    ),
    "prefill_dp_rank": _hint(_ROUTED_HERE),
    "cache_control": _hint("caches keep what was used last, for whomever"),
    "annotations": _hint("streams have no events beside the API's own", _EMPTY_LIST),
    "extra_fields": _hint("see `tandem.report`", _EMPTY_LIST),
    "request_timestamp_ms": _hint("nothing is simulated"),
}
OF_AGENT_HINTS: Mapping[str, Foreign] = {
    "strict_priority": _hint("see `priority`: one queue has one order"),
    "speculative_prefill": _hint("prompts are computed when they come", _FALSE),
    "latency_sensitivity": _hint("see `priority`"),
}
OF_SESSION_CONTROL: Mapping[str, Foreign] = {
    "timeout": _hint("a session is forgotten after enough other sessions have come"),
}
OF_TEXT: Mapping[str, Foreign] = {"verbosity": _VERBOSITY}
OF_REASONING: Mapping[str, Foreign] = dict.fromkeys(
    ("summary", "generate_summary"),
    _hint("no summaries are made: the reasoning itself is in the answer", ('"auto"',)),
)
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
"""Types of clients' own tools, in some dialect: one that a dialect does not have is refused there,
or left out as `custom` is of chats.
"""
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
        _ONLY_TEXT,
    ),
    "custom": _NO_CUSTOM,
    "item_reference": "nothing is stored here; send the item itself",
    "compaction": "nobody here can read it; send the items themselves",
    **dict.fromkeys(
        (
            *BUILT_IN_TOOLS,
            *("code_interpreter_call", "computer_call", "mcp_call", "local_shell_call"),
            *("shell_call", "apply_patch_call", "server_tool_use", "web_search_tool_result"),
        ),
        _NO_BUILT_IN,
    ),
}
"""Types of messages' parts, of items, and of tools that must be called, that are refused, with the
reason. Versions are left out here too.
"""


_DROPPED = {*LEFT_OUT, "kv_hints"} | {
    name
    for table in (
        *(OF_CHATS, OF_COMPLETIONS, OF_TOKENS, OF_RESPONSES, OF_ITEMS, OF_FLAT_TOOLS, OF_MESSAGES),
        *(OF_PARTS, OF_TOOLS, OF_FUNCTIONS, OF_CALLS, OF_CALLED, OF_COUNTS, OF_TURNS, OF_BLOCKS),
        *(OF_CLIENT_TOOLS, OF_TEXT, OF_REASONING, OF_NVEXT, OF_AGENT_HINTS, OF_SESSION_CONTROL),
    )
    for name, each in table.items()
    if each.dropped or each.offers
}


def dropped_name(told: str) -> str | None:
    """The field or type that these tables drop, of what an answer's head tells, such as
    `messages[].cache_control` or `tools[web_search]`; None: they drop no such thing.
    """
    name = told.removesuffix("]").rpartition("[")[2].rpartition(".")[2]
    return name if name in _DROPPED else None
