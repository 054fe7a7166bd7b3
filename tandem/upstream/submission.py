"""A checked request, ready for the router: one Submit for each prompt."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from tandem import prefix_blocks
from tandem.endings import WithheldReason
from tandem.errors import TooLargeError
from tandem.logits.spec import PARAM
from tandem.message_limits import MAX_TASK_BYTES
from tandem.v1 import common_pb2, router_pb2

_PLACE = re.compile(rf"{PARAM}\[(\d+)\]")


class Prompt(Struct, kw_only=True):
    tokens: int
    """The number of the prompt's tokens."""
    max_tokens: int
    task: bytes
    """Fields that its task has beside those in common: joined, the bytes are one message. Nothing,
    once nobody is to run it any more.
    """
    echo: str | None = None
    """What the client wrote, or what its token ids stand for, where it is to be shown again."""
    shown_ids: bytes = b""
    """Its token ids as a list of JSON, where the answer is to show them; else nothing."""

    blocks: bytes = b""
    """What stands for its blocks: see tandem/prefix_blocks.py."""

    @staticmethod
    def of(
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        cache_salt: str = "",
        lora_adapter: str = "",
        echo: str | None = None,
        shows_ids: bool = False,
    ) -> Prompt:
        """A prompt of these tokens, which caches know by that salt and adapter."""
        task = common_pb2.Task(
            prompt_token_ids=token_ids, sampling=common_pb2.SamplingParams(max_tokens=max_tokens)
        )
        return Prompt(
            tokens=len(token_ids),
            max_tokens=max_tokens,
            task=task.SerializeToString(),
            echo=echo,
            shown_ids=msgspec.json.encode(list(token_ids)) if shows_ids else b"",
            blocks=prefix_blocks.packed(token_ids, cache_salt, lora_adapter),
        )


class Submission(Struct, frozen=True, kw_only=True):
    id: str
    """What the answer is called; it is ours, and never used twice."""
    trace_id: str
    model: str
    lora_adapter: str = ""
    """Which of the model's runs it; empty: the model alone."""
    tokenizer_sha256: str
    """Its prompts' token ids are of this tokenizer."""
    prompts: Sequence[Prompt]
    n: int
    sampling: common_pb2.SamplingParams
    """Without max_tokens, which each prompt has for itself."""
    logits: common_pb2.LogitsSpec | None
    embedding_bias: common_pb2.EmbeddingBias | None = None
    processor_fields: Sequence[str] = ()
    """What the client calls each of `logits`; empty: as they are called here."""
    streaming: bool
    want_usage: bool = False
    """A stream ends with its usage."""
    want_running_usage: bool = False
    """Each event of a stream has the usage so far."""
    shown_special_tokens: Sequence[int] = ()
    """Special tokens that hooks, stop strings and the client see as their text."""
    want_text: bool = True
    """Whether the answer has its text. Hooks and stop strings read that text either way."""
    want_token_ids: bool
    """Whether the answer has the ids of its tokens, as hooks let them go."""
    want_prompt_logprobs: bool = False
    """The answer has those of the prompt by themselves."""
    want_report: bool
    want_external_scores: bool
    metadata: Mapping[str, str]
    """The client's own, for classifiers."""
    extra_fields: str = ""
    """A JSON object, likewise: tandem/extra_fields.py bounds it."""
    withheld_reason: WithheldReason
    """The finish_reason of a choice that a hook or a classifier ended."""
    timeout_seconds: float
    priority: int
    tenant: str = ""
    """The name of the client's key; empty: no key was asked."""
    weight: int = 1
    """How much that key gets beside others."""
    cache_salt: str = ""
    """Prefix caches are shared with requests that have the same one."""
    kv_hints: str = ""
    """An envelope of hints for the engines' KV caches, as JSON: tandem/kv_hints.py bounds it."""
    session: str = ""
    """What the client calls what this is a part of: such requests go on from each other."""
    ends_session: bool = False
    """No request of that session follows."""
    expected_tokens: int = 0
    """What each output is likely to have, as the client expects it; 0: nothing is known."""
    resume: bool = False
    """Where a decode worker is lost, another pair may go on."""
    context_only: bool = False
    """Prefill alone is to run."""
    voucher: bytes = b""
    """What an earlier context-only one left, for decode alone to go on from."""

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.n

    @property
    def echoes(self) -> list[str]:
        """What each choice begins with, where its prompt is to be shown again; else nothing."""
        return [p.echo for p in self.prompts if p.echo is not None for _ in range(self.n)]

    @property
    def echoes_logprobs(self) -> bool:
        """Each choice's log-probabilities begin with those of the prompt that it shows again."""
        return bool(self.echoes) and self.sampling.HasField("logprobs")

    @property
    def shown_again(self) -> int:
        """Bytes of the prompts that the answer has, once for each choice: texts and token ids."""
        shown = 0
        for prompt in self.prompts:
            shown += len(prompt.shown_ids) + len(prompt.echo or "")
        return self.n * shown

    @property
    def held_bytes(self) -> int:
        """Bytes that the prompts take while the request is open."""
        prompts = sum(len(prompt.task) + len(prompt.blocks) for prompt in self.prompts)
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
        return prefix_blocks.session_number(self.session, self.cache_salt, self.lora_adapter)

    @property
    def full_model(self) -> str:
        """What runs it: the model, and the adapter after a colon."""
        return f"{self.model}:{self.lora_adapter}" if self.lora_adapter else self.model

    @property
    def processor_names(self) -> set[str]:
        """The logits processors that it asks for."""
        return set() if self.logits is None else {each.name for each in self.logits.processors}

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
        """What the tasks of all prompts have in common, serialised."""
        return common_pb2.Task(
            trace_id=self.trace_id,
            model=self.model,
            sampling=self.sampling,
            logits=self.logits,
            embedding_bias=self.embedding_bias,
            streaming=self.streaming,
            want_text=self.want_text,
            want_token_ids=self.want_token_ids,
            want_report=self.want_report,
            want_external_scores=self.want_external_scores,
            metadata=self.metadata or None,  # protobuf takes a mapping in Python, be it empty
            extra_fields=self.extra_fields,
            tenant=self.tenant,
            cache_salt=self.cache_salt,
            kv_hints=self.kv_hints,
            shown_special_tokens=self.shown_special_tokens,
            lora_adapter=self.lora_adapter,
        ).SerializeToString()

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
        chosen = self.prompts[prompt]
        return router_pb2.Submit(
            first_sequence=first_sequence,
            n=self.n,
            trace_id=self.trace_id,
            model=self.model,
            tokenizer_sha256=self.tokenizer_sha256,
            prompt_tokens=chosen.tokens,
            prompt_blocks=chosen.blocks,
            session=self.session_number,
            ends_session=self.ends_session,
            max_tokens=chosen.max_tokens,
            expected_tokens=min(self.expected_tokens, chosen.max_tokens),
            timeout_ms=max(1, min(round(seconds * 1000), 2**32 - 1)),
            priority=self.priority,
            want_report=self.want_report,
            resume=self.resume,
            prompt_logprobs=self.sampling.HasField("prompt_logprobs"),
            task=common + chosen.task,
            parent_span=parent_span,
            tenant=self.tenant,
            weight=self.weight,
            context_only=self.context_only,
            voucher=self.voucher,
        )
