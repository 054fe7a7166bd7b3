"""The spans of a body's reading: `read`, from the body to the request, and its steps below it."""

from __future__ import annotations

import time

from tandem_frontend.http.spans import CallSpan
from tandem_frontend.openai.asked import Asked

NAME = "read"


def record(span: CallSpan, asked: Asked, *, size: int, began: float) -> None:
    """`span`: the request's. `size`: the body's, in bytes, which was there at `began`."""
    attributes = {"tandem.body.bytes": size, "tandem.known_tokens": asked.known_tokens}
    read = span.child(NAME, began, time.monotonic(), attributes=attributes)
    for step in asked.steps:
        about = {"tandem.cpu.seconds": step.cpu_seconds}
        span.child(step.name, step.began, step.began + step.seconds, parent=read, attributes=about)
