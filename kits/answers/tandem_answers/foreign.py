"""Fields that other servers' responses and messages, and clients' own objects, have and those here
do not, by the rule of the frontend's own tables.
"""

from __future__ import annotations

from collections.abc import Mapping

from tandem_frontend.openai.foreign import (
    EDITS,
    EMPTY_LIST,
    EMPTY_OBJECT,
    FALSE,
    MODEL_NOT_SHOWN,
    NO_BUILT_IN,
    NO_INSIDES,
    NOTHING_KEPT,
    OF_GENERATION,
    ONLY_TEXT,
    ROUTED_HERE,
    TRUE,
    VERBOSITY,
    Foreign,
    all_are,
    hint,
)

_FINDINGS = frozenset(
    (
        *("reasoning.encrypted_content", "file_search_call.results", "web_search_call.results"),
        *("web_search_call.action.sources", "code_interpreter_call.outputs"),
        *("computer_call_output.output.image_url", "message.input_image.image_url"),
    )
)
"""What an answer would include of tools that other servers have built in, and of images."""
_NOT_STORED = "this server stores no answers; send the whole conversation as `input`"
_ELSEWHERE = "see `/v1/chat/completions`"
_CHATS_ALONE = """
best_of cache_salt detokenize ebnf extra_key frequency_penalty guided_choice guided_grammar
guided_json guided_regex ignore_eos include_reasoning json_schema logit_bias logits_processors min_p
min_tokens n presence_penalty priority prompt_logprobs regex repetition_penalty resume seed
separate_reasoning stop stop_token_ids structured_outputs tandem thinking_token_budget timeout
"""
_OF_CHATS_ALONE = all_are(Foreign(_ELSEWHERE), _CHATS_ALONE) | {
    "return_token_ids": Foreign(_ELSEWHERE, FALSE),
    "chat_template_kwargs": Foreign(_ELSEWHERE, EMPTY_OBJECT),
    "add_generation_prompt": Foreign(_ELSEWHERE, TRUE),
    "continue_final_message": Foreign(_ELSEWHERE, FALSE),
    "echo": Foreign("only completions take this field", FALSE),
}
OF_RESPONSES: Mapping[str, Foreign] = (
    OF_GENERATION
    | _OF_CHATS_ALONE
    | {
        "top_k": Foreign(_ELSEWHERE),
        "store": Foreign(_NOT_STORED, FALSE),
        "previous_response_id": Foreign(_NOT_STORED),
        "conversation": Foreign(_NOT_STORED),
        "background": Foreign("answers are given at once; see `stream`", FALSE),
        "prompt": Foreign("no prompts are stored here; see `instructions` and `input`"),
        "truncation": hint("prompts are never cut", ('"disabled"',)),
        "context_management": EDITS,
        "client_metadata": NOTHING_KEPT,
        "include": Foreign(
            "an answer includes all that `include` could add, except log-probabilities",
            ("[]", '["reasoning.encrypted_content"]'),
            offers=_FINDINGS,
        ),
        "top_logprobs": Foreign("only chats give log-probabilities", ("0",)),
        "logprobs": Foreign("only chats give log-probabilities", FALSE),
        "max_tool_calls": hint("the field bounds built-in tools, and this server has none"),
        "stream_options": Foreign(
            "chunks are not padded, and streams end with their usage",
            ("{}", '{"include_obfuscation":false}'),
        ),
        "max_tokens": Foreign("see `max_output_tokens`"),
        "max_completion_tokens": Foreign("see `max_output_tokens`"),
        "messages": Foreign("see `input`"),
        "functions": Foreign("see `tools`", EMPTY_LIST),
        "function_call": Foreign("see `tool_choice`"),
        "response_format": Foreign("see `text`"),
        "reasoning_effort": Foreign("see `reasoning`"),
        **all_are(MODEL_NOT_SHOWN, "prompt_cache_retention safety_identifier"),
    }
)
_AT_ONCE = Foreign("calls are answered before the model goes on", FALSE)
OF_ITEMS: Mapping[str, Foreign] = {
    **all_are(MODEL_NOT_SHOWN, "phase created_by caller provider_specific_fields"),
    **all_are(_AT_ONCE, "async async_"),  # as Python's clients may call it
}
OF_FLAT_TOOLS: Mapping[str, Foreign] = {
    **all_are(MODEL_NOT_SHOWN, "cache_control allowed_callers defer_loading"),
    "output_schema": hint("templates show what a tool takes, not what it gives"),
    "async": _AT_ONCE,
}
_OF_EVERY_MESSAGE: dict[str, Foreign] = {
    "cache_control": MODEL_NOT_SHOWN,
    "user_profile_id": MODEL_NOT_SHOWN,
    "workspace_id": MODEL_NOT_SHOWN,
    "inference_geo": Foreign(ROUTED_HERE),
    "container": hint(NO_BUILT_IN),
    "mcp_servers": hint("this server calls no other servers", EMPTY_LIST),
    "context_management": EDITS,
    "speed": Foreign("all requests run at one speed", ('"standard"',)),
    "diagnostics": Foreign(NO_INSIDES),
    "output_format": Foreign("see `output_config.format`"),
    "functions": Foreign("see `tools`", EMPTY_LIST),
    "prompt": Foreign("see `messages`"),
    "input": Foreign("see `messages`"),
    "instructions": Foreign("see `system`"),
    "reasoning_effort": Foreign("see `output_config.effort`"),
    "response_format": Foreign("see `output_config.format`"),
}
OF_COUNTS: Mapping[str, Foreign] = _OF_EVERY_MESSAGE | all_are(
    hint("a count generates no answer"),
    "kv_hints max_tokens metadata nvext service_tier stop_sequences stream temperature top_k top_p",
)
OF_TURNS: Mapping[str, Foreign] = (
    OF_GENERATION
    | _OF_CHATS_ALONE
    | _OF_EVERY_MESSAGE
    | {
        "stop": Foreign("see `stop_sequences`"),
        "max_completion_tokens": Foreign("see `max_tokens`"),
        "parallel_tool_calls": Foreign("see `tool_choice.disable_parallel_tool_use`"),
        "logprobs": Foreign("only chats give log-probabilities", FALSE),
        "top_logprobs": Foreign("only chats give log-probabilities", ("0",)),
        "stream_options": Foreign("streams end with their usage"),
        "function_call": Foreign("see `tool_choice`"),
        **all_are(hint("see `metadata.user_id`"), "prompt_cache_key user"),
    }
)
OF_BLOCKS: Mapping[str, Foreign] = {
    **all_are(MODEL_NOT_SHOWN, "cache_control caller citations toolset_name"),
    "source": Foreign(ONLY_TEXT),
}
OF_CLIENT_TOOLS: Mapping[str, Foreign] = {
    **all_are(MODEL_NOT_SHOWN, "cache_control allowed_callers defer_loading eager_input_streaming"),
    "input_examples": Foreign("templates show tools by their schema", EMPTY_LIST),
}
OF_TEXT: Mapping[str, Foreign] = {"verbosity": VERBOSITY}
OF_REASONING: Mapping[str, Foreign] = all_are(
    hint("no summaries are made: the reasoning itself is in the answer", ('"auto"',)),
    "summary generate_summary",
)
