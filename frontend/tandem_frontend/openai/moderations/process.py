"""A process that judges texts, started by the frontend with the socket FD as its argument.

It runs the operator's classifiers on an event loop of its own, and ends when the frontend closes
the socket, or with the frontend.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Hashable

import uvloop

from tandem import extra_fields, logs
from tandem.errors import LoadError, StartError
from tandem.hooks.classifiers.classifier_set import ClassifierSet, Judgement
from tandem.hooks.classifiers.contract import ScoringContext
from tandem.hooks.classifiers.judgements import Judgements
from tandem.hooks.classifiers.settings import parse
from tandem.pool.child import connect, ignore_signals, read_message, receive
from tandem.pool.frames import frame
from tandem_frontend.openai.moderations import wire
from tandem_frontend.openai.moderations.categories import answer_of


def main() -> int:
    ignore_signals()
    stream = connect()
    boot = receive(stream)
    if boot is not None:
        uvloop.run(_serve(stream, wire.boots.decode(boot)))
    return 0


async def _serve(stream: socket.socket, boot: wire.JudgeBoot) -> None:
    sys.path[:] = boot.import_path
    logs.configure("frontend", format=boot.log_format, level=boot.log_level)
    try:
        classifiers = await _load(boot)
    except StartError as error:
        stream.sendall(frame(wire.encoder.encode(wire.JudgeLoaded(error=str(error)))))
        return
    runners = classifiers.runners
    seconds = max(runner.caller.seconds for runner in runners)
    loaded = wire.JudgeLoaded(names=tuple(runner.name for runner in runners), seconds=seconds)
    stream.sendall(frame(wire.encoder.encode(loaded)))
    reader, writer = await asyncio.open_unix_connection(sock=stream)

    def deliver(call: Hashable, judgement: Judgement) -> None:
        assert isinstance(call, int)
        writer.write(
            frame(wire.encoder.encode(wire.JudgeAnswer(call=call, said=answer_of(judgement))))
        )

    judgements = Judgements(classifiers, deliver)
    while (payload := await read_message(reader)) is not None:
        asked = wire.asks.decode(payload)
        if isinstance(asked, wire.ModerationCancel):
            judgements.cancel(asked.call)
        else:
            judgements.ask(asked.call, _context(asked, boot.model))
    await judgements.close()
    await classifiers.shutdown()


async def _load(boot: wire.JudgeBoot) -> ClassifierSet:
    """Raises ConfigError and LoadError."""
    classifiers = ClassifierSet.build(parse(boot.classifiers), model=boot.model)
    if not len(classifiers):
        raise LoadError(f"no classifier judges for the model {boot.model!r}")
    await classifiers.startup()
    return classifiers


def _context(question: wire.ModerationQuestion, model: str) -> ScoringContext:
    return ScoringContext(
        request_id=question.trace_id,
        prompt="",
        generated_text=question.text,
        extra_fields=extra_fields.read(question.extra_fields),
        finish_reason="stop",
        request_metadata={
            "metadata": {},
            "trace_id": question.trace_id,
            "model": model,
            "lora_adapter": "",
            "phase": "moderation",
            "output_index": question.index,
            "streaming": False,
            "is_final": True,
            "shown_chars": 0,
            "regeneration": 0,
            "replayed_tokens": 0,
        },
    )


if __name__ == "__main__":
    sys.exit(main())
