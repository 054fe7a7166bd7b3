"""What a stand-in for a further process does: it answers, until it is told otherwise."""

from __future__ import annotations

import pickle
import sys
import time
from typing import Any

from tandem.pool.boot import Loaded
from tandem.pool.child import connect, receive
from tandem.pool.frames import frame
from tandem.worker.process_link import Join, Live, Lost, Scrape


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
