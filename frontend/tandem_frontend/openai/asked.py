"""A request as the router gets it, and what this frontend alone must know to answer it."""

from __future__ import annotations

from typing import Any

import msgspec

from tandem.keys.grant import Grant
from tandem.prefix_blocks import session_text
from tandem.upstream.submission import Submission
from tandem.v1 import common_pb2
from tandem_frontend.openai.answer_parsers import ModelFamily, written
from tandem_frontend.openai.answers import AnsweredTier
from tandem_frontend.openai.prefixes import ReadText
from tandem_frontend.openai.thought import Thought
from tandem_frontend.read_steps import ReadStep


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a request beside its body."""

    id: str = ""
    trace_id: str = ""
    grant: Grant | None = None
    """Belongs to the key that the request came with; None: no key was asked."""
    salt: str = ""
    lora_adapter: str = ""
    """The adapter of the model that the request asks for; empty: none."""


class Parsing(msgspec.Struct, frozen=True, kw_only=True):
    """How an answer's text is taken apart; their package says what the families' formats are."""

    family: str
    most_held: int
    """Characters that may be held back until it is clear whether they are a call."""
    reasoning: bool = False
    """Reasoning is told from the answer."""
    thought: Thought | None = None
    """Where the model's reasoning begins and ends; None: it does not reason."""
    shows_reasoning: bool = True
    tools: dict[str, dict[str, Any]] | None = None
    """Schemas of the parameters of tools that may be called; None: all calls are text."""
    forced: bool = False
    """A grammar makes the model write its calls as plain JSON."""
    single: bool = False
    """The first call alone is shown."""
    older: bool = False
    """A call is answered as OpenAI's older `function_call`."""

    @property
    def writes(self) -> ModelFamily:
        """How the answer is written: the family, with the reasoning that this model has."""
        return written(self.family, None if self.thought is None else self.thought.thinking)

    @property
    def opened(self) -> bool:
        """The prompt ended within the reasoning."""
        return self.thought is not None and self.thought.opened

    @property
    def unmarked(self) -> bool:
        """The model may reason without a marker at the beginning."""
        return self.thought is not None and self.thought.state == "possible"

    def thought_marks(self) -> common_pb2.Thought | None:
        """The markers by which workers tell reasoning from content; None: all text is content."""
        family = self.writes
        if not self.reasoning or family.thinking is None:
            return None
        return common_pb2.Thought(
            begin=family.thinking.begin,
            end=family.thinking.end,
            opened=self.opened,
            silent=family.silent,
        )


class Asked(Submission, frozen=True, kw_only=True):
    """A checked request, and how its answer is taken apart."""

    parsing: Parsing | None = None
    """None: the text is the answer."""
    alias: str = ""
    """What the client calls the model; empty: as it is called here."""
    passed_over: tuple[str, ...] = ()
    """Names of fields and tools that the answer does without, as their client calls them."""
    repeated: bytes = b""
    """What its answer says again of it: members of an object, as JSON."""
    read: tuple[ReadText | None, ...] = ()
    """What was tokenised of each prompt, with which a PrefixStore completes the prompt; None, or
    empty: the prompt is complete."""
    steps: tuple[ReadStep, ...] = ()
    known_tokens: int = 0
    """Tokens of the prompts that were not read again."""
    says_tier: bool = False
    """The client named a `service_tier`, so that a chat's answer names one."""
    session_is_user: bool = False
    """The session has no name but the client's `user`, which is somebody, and no conversation."""

    @property
    def shown_model(self) -> str:
        return self.alias or self.task.model

    @property
    def conversation_id(self) -> str:
        """The session as people are told of it, never in the client's words; empty: there is none,
        or a person's.
        """
        number = 0 if self.session_is_user else self.session_number
        return session_text(number) if number else ""

    @property
    def tier(self) -> AnsweredTier:
        """The class of the queue that the request was really in, by its priority there."""
        if priority := self.submit.priority:
            return "priority" if priority > 0 else "flex"
        return "default"

    @property
    def held_bytes(self) -> int:
        """Bytes of the open request's prompts, and of the fields that the answer repeats."""
        return super().held_bytes + len(self.repeated)
