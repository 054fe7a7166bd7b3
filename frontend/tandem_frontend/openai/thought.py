"""Where a thought begins and ends in the answer of one request.

Made once, of the model's family, its template and the prompt; forms, budgets, tools' calls and the
answer's parser ask the same one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec

from tandem_frontend.openai.answer_parsers import Thinking

SWITCHES = ("enable_thinking", "thinking")
"""What templates call the switch of models that may also answer at once."""


class Thought(msgspec.Struct, frozen=True, kw_only=True):
    """The markers of a thought, and whether the answer has one."""

    begin: str
    end: str
    state: Literal["opened", "possible", "off"]
    """Whether the prompt ends within the thought, the model may begin one, or has none to think:
    the prompt has closed it, or the request has switched it off."""

    @property
    def opened(self) -> bool:
        return self.state == "opened"

    @property
    def thinking(self) -> Thinking:
        return Thinking(self.begin, self.end)


def thought_of(
    thinking: Thinking | None,
    prompt: str,
    *,
    options: Mapping[str, Any],
    variables: Collection[str],
) -> Thought | None:
    """None: the model does not think. `options`: what the request tells the template. `variables`:
    what the template asks for by name; a switch that it does not read switches nothing off.
    """
    if thinking is None:
        return None
    end = prompt.rstrip()
    off = any(options.get(name) is False for name in SWITCHES if name in variables)
    state: Literal["opened", "possible", "off"] = "off" if off else "possible"
    if end.endswith(thinking.begin.rstrip()):
        state = "opened"
    elif end.endswith(thinking.end.rstrip()):
        state = "off"
    return Thought(begin=thinking.begin, end=thinking.end, state=state)
