"""An async hook: a service decides, sentence by sentence, before a sentence is shown.

    hooks:
      chain:
        - path: examples.ask_a_service:AskService
          config: {url: http://moderation.internal/check}
          timeout_ms: 500

The service gets {"text": …} and answers {"allow": true} or {"allow": false}. While it is asked, the
worker goes on with all other requests. Whatever goes wrong (no connection, a status of 400 or more,
an answer that cannot be read, no answer within timeout_ms) is an exception here, and so fails the
request closed. Needs `httpx`.
"""

from __future__ import annotations

import httpx

from tandem.hooks.window import AsyncWindowHook, Block, Window


class AskService(AsyncWindowHook):
    def __init__(self, url: str, max_tokens: int = 64) -> None:
        # No overlap: a sentence is asked about once.
        super().__init__(max_tokens=max_tokens, overlap=0, flush="sentence")
        self._url = url

    async def startup(self) -> None:
        """Connections are kept and shared by all requests."""
        self._client = httpx.AsyncClient(timeout=10.0, limits=httpx.Limits(max_connections=64))

    async def shutdown(self) -> None:
        await self._client.aclose()

    async def check(self, window: Window) -> Block | None:
        answer = await self._client.post(self._url, json={"text": window.text})
        answer.raise_for_status()
        return None if answer.json()["allow"] is True else Block("service_refused")
