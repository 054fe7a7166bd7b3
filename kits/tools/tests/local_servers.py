"""Servers of HTTP, each on a port of this machine, and what `tandem fetch-model` gets of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

SECONDS = 120
FILES = {
    "config.json": b'{"vocab_size": 8}',
    "tokenizer.json": b'{"version": "1.0"}',
    "tokenizer_config.json": b"{}",
    "model.safetensors": b"w" * 300_000,
    "pytorch_model.bin": b"v" * 1000,
    "README.md": b"a model",
    "original/consolidated.00.pth": b"u" * 1000,
}
"""Of a model."""
SERVED = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
"""The files that a worker needs."""


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[None]:
    with server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join(SECONDS)


@contextmanager
def answering(answers: Mapping[str, bytes]) -> Iterator[str]:
    """The address of a server that has these answers, by path, and 404 for the rest."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers.get(self.path)
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write(b"not found" if body is None else body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    with serving(server):
        yield f"127.0.0.1:{server.server_port}"


def fetching(uri: str, to: Path, *more: str, **variables: str) -> subprocess.Popen[str]:
    """`tandem fetch-model`, in a process of its own: its libraries read their environment once."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-m", "tandem.cli", "fetch-model", uri, "--to", str(to), *more],
        env={**kept, "HOME": "/nonexistent", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def fetched(uri: str, to: Path, *more: str, **variables: str) -> tuple[int, str]:
    """The status and the output of `fetching`."""
    with fetching(uri, to, *more, **variables) as process:
        output, _ = process.communicate(timeout=SECONDS)
        return process.returncode, output


def content(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.name[0] != "."}


def take(left: dict[str, int], name: str) -> bool:
    """Whether one more was left of it."""
    left[name] = left.get(name, 0) - 1
    return left[name] >= 0
