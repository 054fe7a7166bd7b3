"""`tandem chat`: talk to a running frontend from a terminal."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tandem.cli import options, run_state
from tandem.cli.answer import StreamedAnswer, follow
from tandem.cli.client import ApiError, Client
from tandem.cli.commands import Command
from tandem.cli.console import Console
from tandem.cli.up import SIMULATED
from tandem.errors import ConfigError

Message = dict[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("message", nargs="?", help="A message to send; without one, a conversation is held.")
    add(
        "--url",
        default="",
        help="URL of the frontend. [the stack of --run-dir,"
        f" else http://127.0.0.1:{options.DEFAULT_PORT}]",
    )
    options.add_run_dir(parser)
    add("--model", default="", help="Model to ask. [the first one that is served]")
    add(
        "--system", default="", metavar="TEXT", help="A system message that goes before all others."
    )
    add("--max-tokens", type=int, default=256, help="Most tokens of an answer. [%(default)s]")
    add("--temperature", type=float, help="Temperature of sampling. [the model's]")
    add(
        "--trace",
        action="store_true",
        help="Show behind an answer where its time went, with the workers and their hooks. The"
        " frontend's setting allow_reports must be on, as `tandem up` has it.",
    )
    options.add_trust(parser)


def chat(arguments: argparse.Namespace, console: Console) -> int:
    """Raises ApiError and StartError."""
    if arguments.json and not arguments.message:
        raise ConfigError("--json is for one answer: give a message")
    key = options.api_key(arguments.api_key_env)
    url = arguments.url or _url_of(arguments.run_dir)
    client = Client(url, api_key=key, ca_file=arguments.ca_file)
    cards = {card["id"]: card for card in client.get("/v1/models")["data"]}
    model = arguments.model or next(iter(cards), "")
    if not model:
        raise ApiError(f"{url} serves no model now")
    if cards.get(model, {}).get("simulated"):
        console.line(console.dim(SIMULATED))
    conversation = _Conversation(client, arguments, model, console)
    if arguments.message:
        answer = conversation.ask(arguments.message)
        console.result({"model": model, **asdict(answer)})
    else:
        conversation.hold()
    return 0


def _url_of(run_dir: Path) -> str:
    """Where the stack of a folder is, if one is up. Raises StartError."""
    state = run_state.read(run_dir)
    up = state is not None and state.running()
    return state.url if state and up else f"http://127.0.0.1:{options.DEFAULT_PORT}"


class _Conversation:
    """Messages of one model and its user, each sent with all before it."""

    def __init__(
        self, client: Client, arguments: argparse.Namespace, model: str, console: Console
    ) -> None:
        self._client = client
        self._console = console
        self._body: dict[str, Any] = {"model": model, "max_tokens": arguments.max_tokens}
        if arguments.temperature is not None:
            self._body["temperature"] = arguments.temperature
        if arguments.trace:
            self._body["tandem"] = {"report": True}
        system = arguments.system
        self._messages: list[Message] = [_message("system", system)] if system else []

    def ask(self, text: str) -> StreamedAnswer:
        """Send a message and show the answer as it comes. A message whose answer fails, or is
        interrupted, is no part of the conversation. Raises ApiError.
        """
        messages = [*self._messages, _message("user", text)]
        answer = follow(self._client, {**self._body, "messages": messages}, self._console)
        if "tandem" in self._body:
            self._console.line()
            answer.show(self._console)
        self._messages = [*messages, _message("assistant", answer.text)]
        return answer

    def hold(self) -> None:
        """Ask what is typed, until an empty line or the end of the input."""
        console = self._console
        hint = f"{self._body['model']}: type a message; an empty line or Ctrl-D ends."
        console.line(console.dim(hint))
        while True:
            try:
                text = input("> ").strip()
            except (EOFError, KeyboardInterrupt):
                console.line()
                return
            if not text:
                return
            try:
                self.ask(text)
            except ApiError as error:
                console.failed(str(error))
            except KeyboardInterrupt:
                continue


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


COMMAND = Command(
    add_arguments, chat, example='tandem chat "Tell me about the assert statement." --trace'
)
