"""Where a chat template takes the instructions of a chat. Found once, by rendering: templates
refuse what they do not take, or pass over it in silence, and an instruction is never lost so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

Message: TypeAlias = dict[str, Any]
"""As templates take it: `role` and `content`, and what else it has."""
Render: TypeAlias = Callable[[Sequence[Message]], str]
"""Raises anything where the template refuses the messages."""
_INSTRUCTIONS = ("system", "developer")
_GAP = "\n\n"
"""Between texts that become one."""


class SystemMessages(NamedTuple):
    """What a template does with messages of the roles `system` and `developer`."""

    developer: bool = True
    """`developer` is a role of its own."""
    system: bool = True
    """An instruction before all other messages is shown."""
    several: bool = True
    """Several instructions in a row are shown."""
    later: bool = True
    """An instruction between the turns is shown."""

    @staticmethod
    def of(source: str, renders: Sequence[Render]) -> SystemMessages:
        """`source`: the text of the templates that render."""

        def shown(*roles: str) -> bool:
            return all(_shown(render, roles) for render in renders)

        if not shown("user"):
            return SystemMessages()  # nothing can be found out: its errors tell what it takes
        system = shown("system", "user")
        developer = "developer" in source and shown("developer", "user")
        roles = (*(("system",) if system else ()), *(("developer",) if developer else ()))
        pairs = [(one, other) for one in roles for other in roles]
        return SystemMessages(
            developer=developer,
            system=system or developer,
            several=all(shown(*pair, "user") for pair in pairs),
            later=all(shown(one, "user", "assistant", other, "user") for one, other in pairs),
        )

    def placed(self, messages: Sequence[Message]) -> list[Message]:
        """The messages as the template takes them. What it has no place for is added to the first
        system message, and that to the first message of the user where it takes none.
        """
        if not self.system:
            return _into_user(messages)
        placed: list[Message] = []
        moved: list[Message] = []
        leading = True
        for place, message in enumerate(messages):
            if message["role"] not in _INSTRUCTIONS:
                leading = False
                placed.append(message)
                continue
            if message["role"] == "developer" and not self.developer:
                message = {**message, "role": "system"}
            shown = place == 0 or (self.several if leading else self.later)
            (placed if shown else moved).append(message)
        if not moved:
            return placed
        texts = [message["content"] for message in moved if message["content"]]
        if placed and placed[0]["role"] in _INSTRUCTIONS:
            texts = [text for text in (placed[0]["content"], *texts) if text]
            return [{**placed[0], "content": _GAP.join(texts)}, *placed[1:]]
        return [{"role": "system", "content": _GAP.join(texts)}, *placed]


def _into_user(messages: Sequence[Message]) -> list[Message]:
    """With all instructions at the beginning of the user's first message."""
    texts = [each["content"] for each in messages if each["role"] in _INSTRUCTIONS]
    left = [each for each in messages if each["role"] not in _INSTRUCTIONS]
    if not any(texts):
        return left
    for place, message in enumerate(left):
        if message["role"] == "user":
            content = _GAP.join(text for text in (*texts, message["content"]) if text)
            return [*left[:place], {**message, "content": content}, *left[place + 1 :]]
    return [{"role": "user", "content": _GAP.join(filter(None, texts))}, *left]


def _shown(render: Render, roles: Sequence[str]) -> bool:
    """Whether a chat of these roles is rendered with all that is said, in its order."""
    messages = [{"role": role, "content": f"said-{place}"} for place, role in enumerate(roles)]
    try:
        text = render(messages)
    except Exception:  # noqa: BLE001 - the template is the model's code, not ours
        return False
    places = [text.find(str(message["content"])) for message in messages]
    return -1 not in places and places == sorted(places)
