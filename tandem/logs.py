"""Structured logs: one line an event, as JSON or for a console.

Fields ride in `extra`: `log.info("request ended", extra={"trace_id": ..., "outcome": ...})`. Only
the fields named here are written, so that no prompt, output, header or key gets into a log by
accident. Nothing that stands in a message, a field or an exception begins a line or moves a
terminal's cursor: lines of a traceback are marked, and controls are escaped.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import sys
import time
from typing import Literal

FIELDS = (
    "component",
    "token_process",
    "host",
    "worker",
    "phase",
    "model",
    "trace_id",
    "client_request_id",
    "request_id",
    "session",
    "leg",
    "peer",
    "prefill",
    "decode",
    "hook",
    "classifier",
    "processor",
    "unit",
    "outcome",
    "code",
    "reason",
    "printed",
    "seconds",
    "story",
    "count",
    "sizes",
    "address",
)
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_MARK = "  | "
"""What a line of a traceback begins with on a console, as no record does."""
Format = Literal["console", "json"]


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        line = json.dumps(entry, ensure_ascii=False)
        return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


class _ConsoleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={_line(value)}" for name, value in _fields(record).items())
        message = _line(record.getMessage())
        line = f"{_timestamp(record)} {record.levelname:<7} {message} {fields}".rstrip()
        if not record.exc_info:
            return line
        return marked(f"{line}\n{self.formatException(record.exc_info)}")


class _Origin(logging.Filter):
    def __init__(self, **fields: object) -> None:
        super().__init__()
        self._fields = fields

    def filter(self, record: logging.LogRecord) -> bool:
        record.__dict__.update(self._fields)
        return True


def configure(
    component: str,
    *,
    format: Format = "console",
    level: str = "info",
    token_process: int | None = None,
) -> None:
    """Send this process's logs to standard error, each line with `component`. What collectors read
    says `host` too, which on Kubernetes is the pod's name. `token_process`: which of a
    worker's token processes this is, where it has several.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if format == "json" else _ConsoleFormatter())
    host = {"host": socket.gethostname()} if format == "json" else {}
    number = {} if token_process is None else {"token_process": token_process}
    handler.addFilter(_Origin(component=component, **host, **number))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def marked(text: str) -> str:
    """With all lines but the first marked as its own, and controls escaped."""
    return f"\n{_MARK}".join(map(_line, text.split("\n")))


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}


def _line(value: object) -> str:
    """On one line, whatever stands in it."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), str(value))


def _timestamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"
