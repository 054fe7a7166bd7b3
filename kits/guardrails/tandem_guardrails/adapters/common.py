"""What the adapters share: how a service is asked, and how its answer is read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from tandem.hooks.classifiers.contract import ScoringContext, ScoringError
from tandem_guardrails.adapters.credentials import ApiKey
from tandem_guardrails.adapters.http import GuardrailClient, HttpOptions

T = TypeVar("T")
MAX_REASON_CHARS = 500


class ServiceClassifier:
    """A blocking classifier that asks a vendor's service about each output with text."""

    name: str
    blocking = True
    timeout_ms: float
    key_header = "Authorization"
    key_prefix = "Bearer "

    def __init__(
        self,
        url: str,
        path: str,
        api_key_file: str,
        api_key_env: str,
        http: Mapping[str, Any] | None,
    ) -> None:
        """`path` is asked below `url`, unless `url` ends with it. Raises LoadError."""
        base = str(url).rstrip("/")
        self._client = GuardrailClient(
            base if base.endswith(path) else base + path,
            key=ApiKey(file=api_key_file, variable=api_key_env),
            key_header=self.key_header,
            key_prefix=self.key_prefix,
            options=HttpOptions.parse(http),
        )
        self.shutdown = self._client.aclose

    async def score(self, ctx: ScoringContext) -> dict[str, Any]:
        if not ctx.generated_text:
            return {}
        answer = await self._client.post(encode(self._payload(ctx)), timeout_ms=self.timeout_ms)
        return self._judge(ctx, answer)

    def _payload(self, ctx: ScoringContext) -> dict[str, Any]:
        """What is sent."""
        raise NotImplementedError

    def _judge(self, ctx: ScoringContext, answer: dict[str, Any]) -> dict[str, Any]:
        """The service's answer as a classifier's. Raises ScoringError."""
        raise NotImplementedError


def encode(payload: Mapping[str, Any]) -> bytes:
    return json.dumps(payload, separators=(",", ":")).encode()


def conversation(ctx: ScoringContext, *, send_prompt: bool) -> list[dict[str, str]]:
    """The output as an assistant's message, after the prompt as a user's."""
    messages = [{"role": "assistant", "content": ctx.generated_text}]
    if send_prompt:
        messages.insert(0, {"role": "user", "content": ctx.prompt})
    return messages


def of_type(value: Any, kind: type[T]) -> T:
    """Raises ScoringError `bad_answer`."""
    if not isinstance(value, kind):
        raise ScoringError("bad_answer")
    return value


def number(value: Any) -> float:
    """Raises ScoringError `bad_answer`."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ScoringError("bad_answer")
    return float(value)


def rewritten(ctx: ScoringContext, text: str) -> dict[str, Any]:
    """The service's own version of the text so far, as a classifier's answer.

    It takes the place of what the client has not got yet. Where the client has already got what
    the service would have changed, nothing can take its place but the refusal.
    """
    if text == ctx.generated_text:
        return {}
    shown = int(ctx.request_metadata.get("shown_chars", 0))
    if text[:shown] != ctx.generated_text[:shown]:
        return {"block": True}
    return {"block": True, "replacement": text[shown:]}
