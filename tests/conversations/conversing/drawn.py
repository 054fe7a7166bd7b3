"""Random conversations as clients send them: turns that extend the ones before, and changes in the
midst of what was said.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from conversing.texts import Texts

Message = dict[str, Any]
_MOST_TURNS: Final = 6
_MOST_CHARACTERS: Final = 60_000


class Asked(NamedTuple):
    """One request of a conversation."""

    body: dict[str, Any]
    """Of a chat."""
    tenant: str
    lora_adapter: str


class Drawing:
    """Draws conversations for one store, of which some begin alike."""

    def __init__(
        self, draw: random.Random, texts: Texts, *, model: str, tools: bool, size: int
    ) -> None:
        """`tools`: the template shows them. `size`: how many times as long as usual texts are."""
        self.draw = draw
        self.texts = texts
        self.model = model
        self.tools = tools
        self.size = size
        self._instructions = [self.text() for _ in range(2)]

    def text(self) -> str:
        return self.texts.text(self.size)

    def instructions(self) -> str:
        """A text for the first message, which other conversations may have too."""
        return self.draw.choice([*self._instructions, self.text()])

    def tool(self, number: int) -> dict[str, Any]:
        said = {"type": "string", "description": self.texts.text()}
        parameters = {"type": "object", "properties": {"a": said, "b": {"type": "integer"}}}
        function = {"name": f"tool_{number}", "description": self.texts.text()}
        return {"type": "function", "function": {**function, "parameters": parameters}}

    def conversation(self) -> Iterator[Asked]:
        """The requests of one conversation, in their order."""
        chat = _Chat(self)
        for turn in range(self.draw.randint(2, _MOST_TURNS)):
            if turn and self.draw.random() < 0.35:
                self.draw.choice(_CHANGES)(chat)
            yield chat.asked()
            chat.answer()
            chat.ask()
            if chat.characters > _MOST_CHARACTERS:
                return


class _Chat:
    def __init__(self, drawing: Drawing) -> None:
        self.drawing = drawing
        self.draw = drawing.draw
        self.tools: list[dict[str, Any]] = []
        self.options: dict[str, Any] = {}
        self.fields: dict[str, Any] = {}
        self.tenant = self.draw.choice("aab")
        self.adapter = self.draw.choice(["", "", "x"])
        self.messages: list[Message] = []
        if self.draw.random() < 0.6:
            self.messages.append({"role": "system", "content": drawing.instructions()})
        if drawing.tools and self.draw.random() < 0.5:
            self.tools = [drawing.tool(number) for number in range(self.draw.randint(1, 3))]
        if self.draw.random() < 0.2:
            self.fields["cache_salt"] = self.draw.choice("st")
        self.messages.append({"role": "user", "content": drawing.text()})

    @property
    def characters(self) -> int:
        return sum(len(message["content"] or "") for message in self.messages)

    def asked(self) -> Asked:
        """The request of this turn, which now and then ends in another way than usual."""
        body = {"model": self.drawing.model, "messages": copy.deepcopy(self.messages)}
        body |= self.fields
        if self.tools:
            body |= {"tools": self.tools, "tool_choice": "none"}
        if self.options:
            body["chat_template_kwargs"] = self.options
        ending = self.draw.random()
        if ending < 0.05:
            body["add_generation_prompt"] = False
        elif ending < 0.12:
            body["messages"].append({"role": "assistant", "content": f"So {self.drawing.text()}"})
            body["continue_final_message"] = True
        tenant = self.tenant if self.draw.random() < 0.95 else "other"
        return Asked(body, tenant, self.adapter)

    def answer(self) -> None:
        """What the assistant said, as a client sends it again: with its thought or without."""
        said: Message = {"role": "assistant", "content": self.drawing.text()}
        thought = self.draw.random()
        if thought < 0.25:
            said["content"] = f"<think>\n{self.drawing.text()}\n</think>\n\n{said['content']}"
        elif thought < 0.5:
            said["reasoning_content"] = self.drawing.text()
        self.messages.append(said)
        if self.tools and self.draw.random() < 0.4:
            said["tool_calls"] = [self._call(n) for n in range(self.draw.choice((1, 1, 1, 2)))]
            for call in said["tool_calls"]:
                result = {"role": "tool", "tool_call_id": call["id"]}
                self.messages.append({**result, "content": self.drawing.text()})

    def ask(self) -> None:
        """What the user says next; where tools were called, their results are enough."""
        if self.messages[-1]["role"] != "tool" or self.draw.random() < 0.2:
            self.messages.append({"role": "user", "content": self.drawing.text()})

    def _call(self, number: int) -> dict[str, Any]:
        arguments = {"a": self.drawing.texts.text(), "b": number}
        function = {"name": self.draw.choice(self.tools)["function"]["name"]}
        id = f"call{self.draw.randrange(10**5):05}"
        return {"id": id, "type": "function", "function": {**function, "arguments": arguments}}

    def edit(self) -> None:
        message = self.draw.choice(self.messages)
        message["content"] = self.drawing.texts.changed(message["content"])

    def cut_result(self) -> None:
        message = self.draw.choice(self.messages)
        message["content"] = message["content"][: self.draw.randint(0, 40)]

    def go_back(self) -> None:
        """The conversation goes on from one of its earlier questions, where any is left."""
        places = [at for at, each in enumerate(self.messages) if each["role"] == "user"]
        if places:
            del self.messages[self.draw.choice(places) + 1 :]

    def forget(self) -> None:
        """A question is left out with its answer, or what is there in their place."""
        at = self.draw.randrange(len(self.messages))
        if len(self.messages) > at + 2:
            del self.messages[at : at + 2]

    def drop_thoughts(self) -> None:
        for message in self.messages:
            message.pop("reasoning_content", None)
            message["content"] = message["content"].rpartition("</think>")[2]

    def change_tools(self) -> None:
        if self.tools and self.draw.random() < 0.5:
            self.tools.pop(self.draw.randrange(len(self.tools)))
        elif self.drawing.tools:
            self.tools.insert(0, self.drawing.tool(9 + len(self.messages)))

    def change_options(self) -> None:
        self.options["enable_thinking"] = not self.options.get("enable_thinking", True)

    def change_salt(self) -> None:
        self.fields["cache_salt"] = self.draw.choice("stu")
        self.adapter = self.draw.choice(["", "x", "y"])


_CHANGES: tuple[Callable[[_Chat], None], ...] = (
    _Chat.edit,
    _Chat.edit,
    _Chat.cut_result,
    _Chat.go_back,
    _Chat.forget,
    _Chat.drop_thoughts,
    _Chat.change_tools,
    _Chat.change_options,
    _Chat.change_salt,
)
