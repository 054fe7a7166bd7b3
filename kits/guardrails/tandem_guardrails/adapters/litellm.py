"""LiteLLM's generic guardrail API: any guardrail that a LiteLLM proxy can be pointed at.

`POST /beta/litellm_basic_guardrail_api`, in LiteLLM's place: the fields of its
GenericGuardrailAPIRequest with `input_type: response`, the key in `x-api-key`. The answer's action
is NONE, BLOCKED or GUARDRAIL_INTERVENED with the changed `texts`
(docs.litellm.ai/docs/adding_provider/generic_guardrail_api, as of October 2026).

Stricter than LiteLLM: an answer without an action, or an intervention without texts, fails closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.hooks.classifiers.contract import ScoringContext, ScoringError
from tandem_guardrails.adapters.common import (
    MAX_REASON_CHARS,
    ServiceClassifier,
    of_type,
    rewritten,
)

PATH = "/beta/litellm_basic_guardrail_api"


class LiteLlmClassifier(ServiceClassifier):
    """A guardrail of LiteLLM's generic API; `litellm` in the settings."""

    name = "litellm"
    timeout_ms: float = 1000
    key_header = "x-api-key"
    key_prefix = ""

    def __init__(
        self,
        *,
        url: str,
        params: Mapping[str, Any] | None = None,
        send_prompt: bool = False,
        api_key_file: str = "",
        api_key_env: str = "",
        http: Mapping[str, Any] | None = None,
    ) -> None:
        """`params`: additional_provider_specific_params. `send_prompt`: the prompt goes along as
        structured_messages. Raises LoadError.
        """
        super().__init__(url, PATH, api_key_file, api_key_env, http)
        self._params = dict(params or {})
        self._send_prompt = send_prompt

    def _judge(self, ctx: ScoringContext, answer: dict[str, Any]) -> dict[str, Any]:
        action = answer.get("action")
        if action == "NONE":
            return {"action": action}
        if action == "BLOCKED":
            reason = of_type(answer.get("blocked_reason") or "", str)[:MAX_REASON_CHARS]
            return {"block": True, "action": action, "blocked_reason": reason}
        if action == "GUARDRAIL_INTERVENED":
            texts = of_type(answer.get("texts"), list)
            if len(texts) == 1:
                return {**rewritten(ctx, of_type(texts[0], str)), "action": action}
        raise ScoringError("bad_answer")

    def _payload(self, ctx: ScoringContext) -> dict[str, Any]:
        prompt = [{"role": "user", "content": ctx.prompt}] if self._send_prompt else None
        return {
            "input_type": "response",
            "texts": [ctx.generated_text],
            "images": None,
            "tools": None,
            "tool_calls": None,
            "structured_messages": prompt,
            "request_data": {},
            "request_headers": None,
            "litellm_call_id": ctx.request_id,
            "litellm_trace_id": ctx.request_metadata.get("trace_id"),
            "model": ctx.request_metadata.get("model"),
            "additional_provider_specific_params": self._params,
        }
