"""Each test runs on asyncio's own loop, as in a program with an executor, and on uvloop's, as in
the components: they close, fail and hold back differently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
