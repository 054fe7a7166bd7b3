"""Requests under the names of OpenTelemetry's conventions for generative AI, for dashboards that
were not made for Tandem: what the frontend's own histograms are given, with other buckets and
labels.

Names and labels are those that OpenTelemetry's exporter for Prometheus makes of the conventions';
buckets are the conventions' own.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram

from tandem.upstream.request_state import RequestState
from tandem_frontend.metrics import MOST_SERIES, OTHER

PROVIDER = "tandem"
OTHER_ERROR = "_OTHER"
"""The conventions' word for an error without a name."""
_LABELS = (
    *("gen_ai_operation_name", "gen_ai_provider_name"),
    *("gen_ai_request_model", "gen_ai_response_model"),
)
_DURATION = (
    *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64),
    *(1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
)
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
    *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
_OUTPUT_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS = tuple(4**power for power in range(14))


class GenAiMetrics:
    """A series is there once a request of its model has ended; it stays."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._named: set[tuple[str, str, str]] = set()
        self._duration = Histogram(
            "gen_ai_server_request_duration_seconds",
            "Time from a request's arrival to its end.",
            (*_LABELS, "error_type"),
            buckets=_DURATION,
            registry=registry,
        )
        self._first_token = Histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "Time from the arrival of a request that succeeds to its first token.",
            _LABELS,
            buckets=_FIRST_TOKEN,
            registry=registry,
        )
        self._output_token = Histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Mean time between the tokens of a request that succeeded.",
            _LABELS,
            buckets=_OUTPUT_TOKEN,
            registry=registry,
        )
        self._tokens = Histogram(
            "gen_ai_client_token_usage",
            "Tokens of a request that brought output or succeeded: of its prompts, or generated.",
            (*_LABELS, "gen_ai_token_type"),
            buckets=_TOKENS,
            registry=registry,
        )

    def count(
        self, state: RequestState, *, operation: str, model: str, began: float, ended: float
    ) -> None:
        """Count a request that went to a router. `model`: as its client calls the model, which is
        served under that name; `began`, `ended`: seconds of the monotonic clock.
        """
        about = self._about(operation, model, state.submission.full_model)
        error = OTHER_ERROR if state.open_choices else ""
        if state.error is not None:
            error = state.error.code
        self._duration.labels(*about, error).observe(ended - began)
        if not error and state.first_at:
            self._first_token.labels(*about).observe(state.first_at - began)
            if state.mean_itl_seconds:
                self._output_token.labels(*about).observe(state.mean_itl_seconds)
        if not error or state.first_at:
            self._tokens.labels(*about, "input").observe(state.submission.prompt_tokens)
            self._tokens.labels(*about, "output").observe(state.completion_tokens)

    def _about(self, operation: str, asked: str, ran: str) -> tuple[str, str, str, str]:
        """The labels of a request; of models that come and go the last share theirs."""
        names = (operation, asked, ran)
        if names not in self._named:
            if len(self._named) >= MOST_SERIES:
                return operation, PROVIDER, OTHER, OTHER
            self._named.add(names)
        return operation, PROVIDER, asked, ran
