"""What a stand-in for a further process does: it answers, until it is told otherwise. And what
lets a real one serve an engine of its own.
"""

from __future__ import annotations

import pickle
import sys
import time
from typing import Any

from tandem.engine import factory
from tandem.pool.boot import Loaded
from tandem.pool.child import connect, receive
from tandem.pool.frames import frame
from tandem.text.tokenizer import Tokenizer
from tandem.worker.config import WorkerConfig
from tandem.worker.phase import PhaseParts
from tandem.worker.process_link import Join, Live, Lost, Scrape
from tandem_decode_worker.rules import load_phase


def load_with_own_engine(config: WorkerConfig, tokenizer: Tokenizer) -> PhaseParts:
    """As decode's `load_phase`, where no other process has an engine to join."""

    def create(name: Any, role: Any, settings: Any, ticket: Any) -> Any:
        return factory.create(name, role, settings)

    setattr(factory, "join", create)  # noqa: B010 - of the process that loads this
    return load_phase(config, tokenizer)


def main() -> int:
    stream = connect()

    def say(answer: Any) -> None:
        stream.sendall(frame(pickle.dumps(answer)))

    order = receive(stream)
    assert order is not None
    sys.path[:], order = pickle.loads(order)
    _, word = pickle.loads(order)
    while (message := receive(stream)) is not None:
        match pickle.loads(message):
            case Join(ticket):
                say(Loaded("" if ticket else word))
            case Lost(reason):
                return len(reason)
            case Scrape():
                say(word)
            case Live():
                time.sleep(float(word))
                say(None)
    return 0
