"""A service of the operator's own: one signed JSON POST for each output.

Signed as Standard Webhooks says (standardwebhooks.com): `webhook-id`, `webhook-timestamp` (seconds)
and `webhook-signature: v1,<base64 of HMAC-SHA256 over "id.timestamp.body">`, so that its libraries
verify it in any language. A receiver that refuses timestamps older than five minutes, and ids that
it has seen, cannot be fooled by a replay.

The answer is a classifier's own: `block` (true or false, required), `replacement`, and scores.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from tandem.errors import LoadError
from tandem.hooks.classifiers.contract import ScoringContext
from tandem_guardrails.adapters.common import encode, of_type
from tandem_guardrails.adapters.credentials import ApiKey
from tandem_guardrails.adapters.http import GuardrailClient, HttpOptions

SECRET_PREFIX = "whsec_"
LEAST_SECRET_BYTES = 24


class WebhookClassifier:
    """A signed webhook of your own; `webhook` in the settings."""

    name = "webhook"
    blocking = True
    timeout_ms: float = 1000

    def __init__(
        self,
        *,
        url: str,
        secret_file: str = "",
        secret_env: str = "",
        send_prompt: bool = False,
        send_token_ids: bool = False,
        http: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Raises LoadError: there is no secret, or one that is too short."""
        self._secret = _decoded(ApiKey(file=secret_file, variable=secret_env).value)
        self._client = GuardrailClient(url, key=ApiKey(), options=HttpOptions.parse(http))
        self.shutdown = self._client.aclose
        self._send_prompt = send_prompt
        self._send_token_ids = send_token_ids
        self._clock = clock

    async def score(self, ctx: ScoringContext) -> dict[str, Any]:
        body = encode(self._payload(ctx))
        headers = sign(self._secret, f"msg_{uuid4().hex}", int(self._clock()), body)
        answer = await self._client.post(body, timeout_ms=self.timeout_ms, headers=headers)
        of_type(answer.get("block"), bool)
        return answer

    def _payload(self, ctx: ScoringContext) -> dict[str, Any]:
        payload: dict[str, Any] = {
            "request_id": ctx.request_id,
            "generated_text": ctx.generated_text,
            "finish_reason": ctx.finish_reason,
            "extra_fields": ctx.extra_fields,
            "request_metadata": ctx.request_metadata,
        }
        if self._send_prompt:
            payload["prompt"] = ctx.prompt
        if self._send_token_ids:
            payload["output_token_ids"] = ctx.output_token_ids
            if ctx.output_logprobs:
                payload["output_logprobs"] = ctx.output_logprobs
            if self._send_prompt:
                payload["prompt_token_ids"] = ctx.prompt_token_ids
        return payload


def sign(secret: bytes, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers that prove who sent `body` and when."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.new(secret, signed, hashlib.sha256).digest()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def _decoded(secret: str) -> bytes:
    wanted = f"write {SECRET_PREFIX} and {LEAST_SECRET_BYTES} or more random bytes in base64"
    if not secret.startswith(SECRET_PREFIX):
        raise LoadError(f"secret_file or secret_env must hold a secret: {wanted}")
    try:
        decoded = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        raise LoadError(f"the secret is not base64: {wanted}") from None
    if len(decoded) < LEAST_SECRET_BYTES:
        raise LoadError(f"the secret is too short: {wanted}")
    return decoded
