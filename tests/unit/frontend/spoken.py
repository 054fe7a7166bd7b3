"""What the tests of the dialects have in common: a model that says what it is told to."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fake_router import Reply

from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2, router_pb2

BERN = '{"place": "Bern"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {BERN}}}\n</tool_call>'
THOUGHT = "<think>\nBern is a city.\n</think>"
TEXT = THOUGHT + "Let me see.\n" + CALL + "\nDone. " + CALL[:-9]
"""A thought, a text, a call, a text, and a call that breaks off."""


def rows_of(text: str, cuts: Iterable[int]) -> list[str]:
    """The text, cut at those places."""
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    return [text[begin:end] for begin, end in itertools.pairwise(places)]


class Script:
    """What the model says next, cut into rows, and what it was asked."""

    def __init__(self) -> None:
        self.rows: tuple[str, ...] = ()
        self.end: dict[str, Any] = {}
        self.error: common_pb2.Error | None = None
        self.withheld = self.blocked = ""
        self.tasks: list[common_pb2.Task] = []
        self.submits: list[router_pb2.Submit] = []

    def says(
        self,
        *rows: str,
        error: common_pb2.Error | None = None,
        withheld: str = "",
        blocked: str = "",
        **end: Any,
    ) -> None:
        """`withheld`: why the router ended it. `blocked`: why its decode worker did."""
        self.rows, self.error, self.end = rows, error, end
        self.withheld, self.blocked = withheld, blocked

    async def __call__(self, reply: Reply) -> None:
        self.tasks.append(reply.task)
        self.submits.append(reply.submit)
        for output in range(reply.submit.n):
            for text in self.rows:
                reply.text(text, output=output)
                await reply.flush()
            if self.error is not None or self.withheld:
                reply.end(output=output, error=self.error, stop_reason=self.withheld)
            elif self.blocked:
                reply.finish(output=output, withheld=True, stop_reason=self.blocked)
            else:
                reply.finish(output=output, **{"completion_tokens": len(self.rows)} | self.end)
        await reply.flush()

    def prompt(self, model_path: Path) -> str:
        """The text of the last request's prompt."""
        return Tokenizer.load(model_path).decode(self.tasks[-1].prompt_token_ids)
