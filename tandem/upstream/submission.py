"""A checked request, ready for the router: one Submit for each prompt."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from tandem import prefix_blocks
from tandem.endings import WithheldReason
from tandem.errors import TooLargeError
from tandem.little_endian import TOKEN_ID_BYTES, to_bytes
from tandem.logits.spec import PARAM
from tandem.message_limits import MAX_TASK_BYTES
from tandem.v1 import common_pb2, router_pb2
from tandem.wire import frames, prompt_chunks

_TOKEN_IDS: Final = frames.head(common_pb2.Task, "prompt_token_ids")
_PLACE = re.compile(rf"{PARAM}\[(\d+)\]")


class SubmittedPrompt(Struct, kw_only=True):
    tokens: int
    max_tokens: int
    task: bytes
    """Fields that its task has beside those in common: joined, the bytes are one message. Nothing,
    once nobody is to run it any more.
    """
    echo: str | None = None
    """What the client wrote, or what its token ids stand for, where it is to be shown again."""
    shown_ids: bytes = b""
    """The prompt's token ids as a list of JSON, where the answer is to show them; else nothing."""

    blocks: bytes = b""
    """What stands for its blocks: see tandem/prefix_blocks.py."""
    chunks: bytes = b""
    """The names of its chunks, joined: see tandem/wire/prompt_chunks.py."""

    @staticmethod
    def of(
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        cache_salt: str = "",
        lora_adapter: str = "",
        echo: str | None = None,
        shows_ids: bool = False,
    ) -> SubmittedPrompt:
        """A prompt of these tokens, which caches know by that salt and adapter."""
        packed, key = to_bytes(array("I", token_ids)), prompt_chunks.key_of(cache_salt)
        return SubmittedPrompt.of_packed(
            [packed],
            max_tokens=max_tokens,
            echo=echo,
            shown_ids=msgspec.json.encode(list(token_ids)) if shows_ids else b"",
            blocks=prefix_blocks.packed(token_ids, cache_salt, lora_adapter),
            chunks=b"".join(prompt_chunks.names_of(memoryview(packed), key)),
        )

    @staticmethod
    def of_packed(
        token_ids: Sequence[bytes],
        *,
        blocks: bytes,
        chunks: bytes,
        max_tokens: int,
        echo: str | None = None,
        shown_ids: bytes = b"",
    ) -> SubmittedPrompt:
        """A prompt whose token ids, blocks and names of chunks are packed already."""
        sampling = common_pb2.Task(sampling=common_pb2.SamplingParams(max_tokens=max_tokens))
        size = sum(map(len, token_ids))
        head = _TOKEN_IDS + frames.write_varint(size)
        return SubmittedPrompt(
            tokens=size // TOKEN_ID_BYTES,
            max_tokens=max_tokens,
            task=b"".join((head, *token_ids, sampling.SerializeToString())),
            echo=echo,
            shown_ids=shown_ids,
            blocks=blocks,
            chunks=chunks,
        )


class Submission(Struct, frozen=True, kw_only=True):
    id: str
    """What the answer is called; it is ours, and never used twice."""
    prompts: Sequence[SubmittedPrompt]
    task: common_pb2.Task
    """What the tasks of all prompts have in common: all but the prompt and `max_tokens`."""
    submit: router_pb2.Submit
    """What routers are told of each prompt, beside what its task says and what is the prompt's."""
    processor_fields: Sequence[str] = ()
    """What the client calls each logits processor; empty: as they are called here."""
    want_usage: bool = False
    """A stream ends with its usage."""
    want_running_usage: bool = False
    """Each event of a stream has the usage so far."""
    want_prompt_logprobs: bool = False
    """The answer has those of the prompt by themselves."""
    withheld_reason: WithheldReason
    """The finish_reason of a choice that a hook or a classifier ended."""
    timeout_seconds: float
    session: str = ""
    """What the client calls what this is a part of: such requests go on from each other."""

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.submit.n

    @property
    def echoes(self) -> list[str]:
        """What each choice begins with, where its prompt is to be shown again; else nothing."""
        return [p.echo for p in self.prompts if p.echo is not None for _ in range(self.submit.n)]

    @property
    def echoes_logprobs(self) -> bool:
        """Each choice's log-probabilities begin with those of the prompt that it shows again."""
        return bool(self.echoes) and self.task.sampling.HasField("logprobs")

    @property
    def shown_again(self) -> int:
        """Bytes of the prompts that the answer has, once for each choice: texts and token ids."""
        shown = 0
        for prompt in self.prompts:
            shown += len(prompt.shown_ids) + len(prompt.echo or "")
        return self.submit.n * shown

    @property
    def held_bytes(self) -> int:
        """Bytes that the prompts take while the request is open."""
        prompts = sum(len(p.task) + len(p.blocks) + len(p.chunks) for p in self.prompts)
        return prompts + self.shown_again

    @property
    def prompt_tokens(self) -> int:
        return sum(prompt.tokens for prompt in self.prompts)

    @property
    def context_tokens(self) -> int:
        """What its longest prompt and its completion take of a context."""
        return max(prompt.tokens + prompt.max_tokens for prompt in self.prompts)

    @property
    def session_number(self) -> int:
        """What stands for its session; 0: it has none."""
        if not self.session:
            return 0
        task = self.task
        return prefix_blocks.session_number(self.session, task.cache_salt, task.lora_adapter)

    @property
    def full_model(self) -> str:
        """What runs it: the model, and the adapter after a colon."""
        model, adapter = self.task.model, self.task.lora_adapter
        return f"{model}:{adapter}" if adapter else model

    @property
    def processor_names(self) -> set[str]:
        return {each.name for each in self.task.logits.processors}

    def client_param(self, param: str) -> str:
        """A request field as the client named it, from how a worker names it."""
        place = _PLACE.fullmatch(param)
        if place is None or not self.processor_fields:
            return param
        return self.processor_fields[min(int(place[1]), len(self.processor_fields) - 1)]

    def check_size(self, common: bytes, *, most: int) -> None:
        """Raises TooLargeError where the tasks of all prompts together are more than `most` bytes,
        or one of them more than a message holds; and so with the prompts that are shown again.
        """
        prompts = [len(prompt.task) for prompt in self.prompts]
        largest, total = max(prompts), sum(prompts)
        if len(common) + largest > MAX_TASK_BYTES:
            raise TooLargeError(f"The request takes more than {MAX_TASK_BYTES} bytes")
        total += len(prompts) * len(common) + self.shown_again
        if total > most:
            raise TooLargeError(
                f"{len(prompts)} prompts take {total} bytes together; at most {most} are offered"
            )

    def common_task(self) -> bytes:
        return self.task.SerializeToString()

    def to_submit(
        self,
        prompt: int,
        first_sequence: int,
        *,
        common: bytes,
        seconds: float,
        parent_span: int,
    ) -> router_pb2.Submit:
        """One of `prompts`, by its position, for a router that has `seconds` for it. `common`: what
        `common_task` gave. `parent_span`: the request's; 0: it is not traced.
        """
        chosen, task = self.prompts[prompt], self.task
        submit = router_pb2.Submit(
            first_sequence=first_sequence,
            trace_id=task.trace_id,
            model=task.model,
            prompt_tokens=chosen.tokens,
            prompt_blocks=chosen.blocks,
            session=self.session_number,
            max_tokens=chosen.max_tokens,
            timeout_ms=max(1, min(round(seconds * 1000), 2**32 - 1)),
            want_report=task.want_report,
            want_cost=task.want_cost,
            prompt_logprobs=task.sampling.HasField("prompt_logprobs"),
            task=common + chosen.task,
            parent_span=parent_span,
            tenant=task.tenant,
        )
        submit.MergeFrom(self.submit)
        submit.expected_tokens = min(submit.expected_tokens, chosen.max_tokens)
        return submit
