"""Processors that need no code: every worker knows them by these names."""

READY: dict[str, str] = {
    "allowed_tokens": "tandem.logits.ready.tokens:AllowedTokens",
    "banned_sequences": "tandem.logits.ready.sequences:BannedSequences",
    "banned_tokens": "tandem.logits.ready.tokens:BannedTokens",
    "bias": "tandem.logits.ready.tokens:Bias",
    "choice": "tandem.logits.ready.choice:Choice",
    "ebnf": "tandem.logits.ready.grammar:Ebnf",
    "forced_prefix": "tandem.logits.ready.forced:ForcedPrefix",
    "forced_sequence": "tandem.logits.ready.forced:ForcedSequence",
    "json_schema": "tandem.logits.ready.grammar:JsonSchema",
    "max_new_tokens": "tandem.logits.ready.lengths:MaxNewTokens",
    "min_new_tokens": "tandem.logits.ready.lengths:MinNewTokens",
    "no_repeat_ngram": "tandem.logits.ready.sequences:NoRepeatNgram",
    "regex": "tandem.logits.ready.grammar:Regex",
    "repetition_penalty": "tandem.logits.ready.scaling:RepetitionPenalty",
    "stop_at_sentence": "tandem.logits.ready.lengths:StopAtSentence",
    "tagged": "tandem.logits.ready.tagged:Tagged",
    "temperature_schedule": "tandem.logits.ready.scaling:TemperatureSchedule",
    "thinking_budget": "tandem.logits.ready.thinking:ThinkingBudget",
    "watermark": "tandem.logits.ready.watermark:Watermark",
}
"""Name -> import path."""
FORMS = frozenset({"choice", "ebnf", "json_schema", "regex", "tagged"})
"""Processors that say what form an answer has, from its first token to its last."""


def is_ready_made(processor: object) -> bool:
    """Whether it is one of these, and no code of a deployment or a program."""
    cls = type(processor)
    return f"{cls.__module__}:{cls.__qualname__}" in _PATHS


_PATHS = frozenset(READY.values())
