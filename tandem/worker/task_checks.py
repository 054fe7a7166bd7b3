"""How much a task may ask for beside its prompt, and what numbers it may hold.

The frontend's API has the same bounds or narrower ones; a worker trusts no check but its own.
"""

from __future__ import annotations

from tandem import extra_fields, kv_hints
from tandem.errors import InvalidRequestError
from tandem.keys import MAX_NAME
from tandem.message_limits import MAX_PROMPT_LOGPROBS
from tandem.sampling import MOST_STOP_WORD_TOKENS
from tandem.token_limits import check_token_ids
from tandem.v1 import common_pb2, worker_pb2

MOST_STOPS = 64
MOST_STOP_CHARACTERS = 64 * 1024
MOST_MARK_CHARACTERS = 256
MOST_SILENT_TEXTS = 16
MOST_STOP_TOKEN_IDS = 1024
MOST_STOP_WORDS_TOKENS = 1024
"""All stop words together have no more."""
MOST_LOGPROBS = 20
MOST_PROCESSORS = 64
MOST_METADATA = 64
MOST_METADATA_CHARACTERS = 64 * 1024
MOST_SALT_CHARACTERS = 256
MOST_SHOWN_SPECIAL_TOKENS = 64
MOST_RUNS = 1000
"""Runs of one sequence that classifiers blocked."""
MOST_TOKENS = 2**31 - 1


def check(task: common_pb2.Task, limits: worker_pb2.Limits) -> None:
    """Raises InvalidRequestError, naming the field."""
    _check_sampling(task.sampling, limits)
    _at_most(MAX_NAME, len(task.tenant), "tenant")
    _at_most(MOST_SALT_CHARACTERS, len(task.cache_salt), "cache_salt")
    if task.HasField("logits"):
        _at_most(MOST_PROCESSORS, len(task.logits.processors), "logits_processors")
    if task.metadata:
        _at_most(MOST_METADATA, len(task.metadata), "metadata")
        characters = sum(len(key) + len(value) for key, value in task.metadata.items())
        _at_most(MOST_METADATA_CHARACTERS, characters, "metadata")
    extra_fields.read(task.extra_fields)
    if task.kv_hints:
        kv_hints.read(task.kv_hints)
    if shown := task.shown_special_tokens:
        _at_most(MOST_SHOWN_SPECIAL_TOKENS, len(shown), "shown_special_tokens")
        check_token_ids(shown, limits.vocabulary, param="shown_special_tokens")
    if task.HasField("regeneration"):
        _check_regeneration(task.regeneration, limits.context_length)


def check_prompt_logprobs(sampling: common_pb2.SamplingParams, prompt_tokens: int) -> None:
    """Raises InvalidRequestError where they are asked for and would be too many."""
    if sampling.HasField("prompt_logprobs"):
        count = prompt_tokens * (1 + sampling.prompt_logprobs)
        _at_most(MAX_PROMPT_LOGPROBS, count, "prompt_logprobs")


def _check_sampling(sampling: common_pb2.SamplingParams, limits: worker_pb2.Limits) -> None:
    _at_most(MOST_LOGPROBS, sampling.logprobs, "logprobs")
    _at_most(MOST_LOGPROBS, sampling.prompt_logprobs, "prompt_logprobs")
    _at_most(MOST_STOP_TOKEN_IDS, len(sampling.stop_token_ids), "stop_token_ids")
    _at_most(limits.vocabulary, len(sampling.logit_bias), "logit_bias")
    if sampling.stop:
        _at_most(MOST_STOPS, len(sampling.stop), "stop")
        _at_most(MOST_STOP_CHARACTERS, sum(map(len, sampling.stop)), "stop")
    if sampling.HasField("thought"):
        _check_thought(sampling.thought)
    if sampling.stop_words:
        lengths = [len(word.token_id) for word in sampling.stop_words]
        _at_most(MOST_STOP_WORD_TOKENS, max(lengths), "stop_words")
        _at_most(MOST_STOP_WORDS_TOKENS, sum(lengths), "stop_words")


def _check_thought(thought: common_pb2.Thought) -> None:
    _at_most(MOST_SILENT_TEXTS, len(thought.silent), "thought")
    for mark in (thought.begin, thought.end, *thought.silent):
        if not mark:
            raise InvalidRequestError("thought: a mark must not be empty", param="thought")
        _at_most(MOST_MARK_CHARACTERS, len(mark), "thought")


def _check_regeneration(again: common_pb2.Regeneration, context_length: int) -> None:
    _at_most(MOST_RUNS, again.count, "regeneration.count")
    # Each run generates no more than a context holds.
    spent = min(again.count * context_length, MOST_TOKENS - context_length)
    _at_most(spent, again.spent_tokens, "regeneration.spent_tokens")


def _at_most(most: int, given: int, param: str) -> None:
    if given > most:
        raise InvalidRequestError(f"{param}: {given} is more than {most}", param=param)
