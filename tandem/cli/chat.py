"""`tandem chat`: talk to a running frontend from a terminal."""

from __future__ import annotations

import argparse
from typing import Any

from tandem.cli import options
from tandem.cli.answer import CHAT, StreamedAnswer
from tandem.cli.client import ApiError, Client
from tandem.cli.commands import Command, adding
from tandem.cli.console import Console
from tandem.cli.up import SIMULATED

Message = dict[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = adding(parser)
    add("message", nargs="?", help="A message to send; without one, a conversation is held.")
    add("--url", default=f"http://127.0.0.1:{options.DEFAULT_PORT}", help="[%(default)s]")
    add("--model", default="", help="Model to ask. [the first one that is served]")
    add("--max-tokens", int, default=256, help="[%(default)s]")
    options.add_trust(parser)


def chat(arguments: argparse.Namespace, console: Console) -> int:
    key = options.api_key(arguments.api_key_env)
    client = Client(arguments.url, api_key=key, ca_file=arguments.ca_file)
    cards = {card["id"]: card for card in client.get("/v1/models")["data"]}
    model = arguments.model or next(iter(cards), "")
    if not model:
        raise ApiError(f"{arguments.url} serves no model now")
    if cards.get(model, {}).get("simulated"):
        console.line(console.dim(SIMULATED))
    if arguments.message:
        answer(client, model, [_user(arguments.message)], arguments.max_tokens, console)
        return 0
    return _converse(client, model, arguments.max_tokens, console)


def answer(
    client: Client, model: str, messages: list[Message], max_tokens: int, console: Console
) -> str:
    """Stream one answer to the terminal and return it. Raises ApiError."""
    body: dict[str, Any] = {"model": model, "messages": messages, "max_tokens": max_tokens}
    said = StreamedAnswer()
    try:
        for event in client.stream(CHAT, body):
            console.write(said.add(event, 0.0))
    finally:
        console.write("\n")
    return said.text


def _converse(client: Client, model: str, max_tokens: int, console: Console) -> int:
    console.line(console.dim(f"{model}: type a message; an empty line or Ctrl-D ends."))
    messages: list[Message] = []
    while True:
        try:
            text = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            console.line()
            return 0
        if not text:
            return 0
        messages.append(_user(text))
        try:
            said = answer(client, model, messages, max_tokens, console)
        except ApiError as error:
            console.failed(str(error))
            messages.pop()
            continue
        except KeyboardInterrupt:
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": said})


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


COMMAND = Command(add_arguments, chat)
