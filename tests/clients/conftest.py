"""Where the clients find their server: the tests run in environments of the clients' own."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

KEY = "sesame"
MODEL = "tandem-tiny"
GREETING = "Hello from the model."


@dataclass(frozen=True)
class Server:
    """The scripted frontend (scripted.py)."""

    root: str
    """Without /v1."""
    key: str = KEY
    model: str = MODEL

    @property
    def v1(self) -> str:
        return f"{self.root}/v1"


@pytest.fixture(scope="session")
def server() -> Server:
    return Server(os.environ["TANDEM_CLIENTS_URL"])
