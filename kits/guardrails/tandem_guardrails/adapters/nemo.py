"""A NeMo Guardrails server, asked to check an output without generating anything.

`POST /v1/checks` of the open-source server (0.24) answers `status` passed, modified or blocked,
`content`, and the blocking `rail`. `POST /v1/guardrail/checks` of NVIDIA's microservice answers
`status` success or blocked, and `rails_status` by rail. Both are read here; which is asked is the
setting `path`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.errors import LoadError
from tandem.hooks.classifiers.contract import ScoringContext, ScoringError
from tandem_guardrails.adapters.common import ServiceClassifier, conversation, of_type, rewritten

CHECKS = "/v1/checks"
MICROSERVICE_CHECKS = "/v1/guardrail/checks"
MAX_RAILS = 32
MAX_RAIL_CHARS = 200


class NemoClassifier(ServiceClassifier):
    """A NeMo Guardrails server; `nemo` in the settings."""

    name = "nemo"
    timeout_ms: float = 5000

    def __init__(
        self,
        *,
        url: str,
        path: str = CHECKS,
        model: str = "",
        config_id: str = "",
        send_prompt: bool = True,
        api_key_file: str = "",
        api_key_env: str = "",
        http: Mapping[str, Any] | None = None,
    ) -> None:
        """`model`: of self-check rails; empty: the name of the served one. `config_id`: the rails
        to run; empty: the server's default. `send_prompt`: output rails see the prompt, and the
        microservice runs its input rails on it too. Raises LoadError.
        """
        if path not in (CHECKS, MICROSERVICE_CHECKS):
            raise LoadError(f"path must be {CHECKS} or {MICROSERVICE_CHECKS}, not {path!r}")
        super().__init__(url, path, api_key_file, api_key_env, http)
        self._model = model
        self._send_prompt = send_prompt
        self._guardrails: dict[str, Any] = {"config_id": config_id} if config_id else {}
        if path == CHECKS:
            self._guardrails["rail_types"] = ["output"]

    def _payload(self, ctx: ScoringContext) -> dict[str, Any]:
        return {
            "model": self._model or str(ctx.request_metadata.get("model", "")),
            "messages": conversation(ctx, send_prompt=self._send_prompt),
            "guardrails": self._guardrails,
        }

    def _judge(self, ctx: ScoringContext, answer: dict[str, Any]) -> dict[str, Any]:
        status = answer.get("status")
        if status in ("passed", "success"):
            return {"status": status}
        if status == "blocked":
            return {"block": True, "status": status, "rails": _blocking_rails(answer)}
        if status == "modified":
            return {**rewritten(ctx, of_type(answer.get("content"), str)), "status": status}
        raise ScoringError("bad_answer")


def _blocking_rails(answer: dict[str, Any]) -> list[str]:
    """By name, where the server says."""
    rail = answer.get("rail")
    if isinstance(rail, str):
        return [rail[:MAX_RAIL_CHARS]]
    statuses = answer.get("rails_status")
    if not isinstance(statuses, dict):
        return []
    blocked = [
        name[:MAX_RAIL_CHARS]
        for name, status in statuses.items()
        if isinstance(status, dict) and status.get("status") == "blocked"
    ]
    return sorted(blocked)[:MAX_RAILS]
