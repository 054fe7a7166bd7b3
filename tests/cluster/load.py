"""Streams chat completions against a Service until told to stop, as clients with keep-alive
connections do, and counts every answer that was not whole. Runs in a pod, on the standard library.

    python load.py URL MODEL CLIENTS        prints one JSON object once /tmp/stop exists
"""

from __future__ import annotations

import collections
import http.client
import json
import os
import select
import sys
import threading
import time
from urllib.parse import urlsplit

STOP = "/tmp/stop"
STARTED = "/tmp/started"
TIMEOUT_SECONDS = 60.0


class Client:
    """One client: a connection kept alive, a request after the other."""

    def __init__(self, url: str, model: str) -> None:
        self._address = urlsplit(url).netloc
        self._body = json.dumps(
            {
                "model": model,
                "messages": [{"role": "user", "content": "Tell me about the assert statement."}],
                "max_tokens": 48,
                "stream": True,
            }
        )
        self._connection: http.client.HTTPConnection | None = None

    def ask(self) -> None:
        """One answer, whole. Raises where it is not."""
        connection = self._connected()
        try:
            self._stream(connection)
        except BaseException:
            connection.close()
            self._connection = None
            raise

    def _connected(self) -> http.client.HTTPConnection:
        """The open connection, or a new one where the server has closed it meanwhile."""
        connection = self._connection
        if connection is not None and connection.sock is not None:
            if not select.select([connection.sock], [], [], 0)[0]:
                return connection
            connection.close()
        self._connection = http.client.HTTPConnection(self._address, timeout=TIMEOUT_SECONDS)
        return self._connection

    def _stream(self, connection: http.client.HTTPConnection) -> None:
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", self._body, headers)
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(f"status {response.status}: {response.read(500).decode()}")
        text, finish, done = "", None, False
        for line in response:
            kind, _, data = line.decode().strip().partition(": ")
            if kind != "data":
                continue
            if data == "[DONE]":
                done = True
                continue
            event = json.loads(data)
            if "error" in event:
                raise ValueError(f"error event: {event['error'].get('code')}: {event['error']}")
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
                finish = choice["finish_reason"] or finish
        if not (done and finish and text):
            raise ValueError(f"not whole: done {done}, finish_reason {finish}, {len(text)} chars")


def work(client: Client, failures: collections.Counter[str], answers: list[float]) -> None:
    while not os.path.exists(STOP):
        began = time.monotonic()
        try:
            client.ask()
        except (OSError, http.client.HTTPException, ValueError) as error:
            failures[f"{type(error).__name__}: {error}"[:300]] += 1
            time.sleep(0.2)
        else:
            answers.append(time.monotonic() - began)


def main() -> None:
    url, model, clients = sys.argv[1], sys.argv[2], int(sys.argv[3])
    failures: collections.Counter[str] = collections.Counter()
    answers: list[float] = []
    threads = [
        threading.Thread(target=work, args=(Client(url, model), failures, answers))
        for _ in range(clients)
    ]
    for thread in threads:
        thread.start()
    while not answers and not failures and not os.path.exists(STOP):
        time.sleep(0.05)
    open(STARTED, "w").close()
    for thread in threads:
        thread.join()
    longest = max(answers, default=0.0)
    print(json.dumps({"answered": len(answers), "failures": failures, "longest": longest}))


if __name__ == "__main__":
    main()
