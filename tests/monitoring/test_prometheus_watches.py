"""A real Prometheus scrapes a running stack, loads the rules, and sees a worker die."""

from __future__ import annotations

import re
from pathlib import Path

from watching import Prometheus, Tools, complete, watching

from tandem.cli.stack import Stack

COMPONENTS = {"frontend", "router", "prefill_worker-0", "decode_worker-0"}
LOST_DECODE = ("TandemNoReadyDecode", "TandemNoReadyPair", "TandemFrontendNotReady")


def _impatient(rules: dict[str, str]) -> dict[str, str]:
    """The same rules, with every `for:` of minutes made one second."""
    return {name: re.sub(r"\bfor: \d+[mh]\b", "for: 1s", text) for name, text in rules.items()}


def _firing(prometheus: Prometheus, *names: str) -> bool:
    states = prometheus.alerts()
    return all("firing" in states.get(name, ()) for name in names)


def test_targets_are_up_rules_evaluate_and_a_lost_worker_fires_its_alerts(
    stack: Stack, tools: Tools, rules: dict[str, str], tmp_path: Path
) -> None:
    with watching(stack, tools, _impatient(rules), tmp_path) as prometheus:
        prometheus.until(
            lambda: prometheus.targets() == dict.fromkeys(COMPONENTS, "up"), "all targets are up"
        )
        prometheus.until(
            lambda: all(rule["health"] == "ok" for rule in prometheus.rules()),
            "every rule was evaluated",
        )
        for _ in range(3):
            complete(stack.url).raise_for_status()
        recorded = "namespace_job:tandem_frontend_goodput:ratio_rate5m"
        prometheus.until(
            lambda: [each["value"][1] for each in prometheus.query(recorded)] == ["1"],
            "goodput is recorded as 1",
        )
        assert not prometheus.alerts().keys() & set(LOST_DECODE)

        stack.components["decode_worker-0"].process.kill()
        prometheus.until(lambda: _firing(prometheus, *LOST_DECODE), "the alerts of a lost worker")
        down = 'ALERTS{alertname="TandemTargetDown",alertstate="firing",pod="decode_worker-0"}'
        prometheus.until(lambda: prometheus.query(down), "the target is down")
        assert complete(stack.url).status_code == 503
        failed = 'tandem_frontend_requests_total{outcome="no_pair",fault="server"} > 0'
        prometheus.until(lambda: prometheus.query(failed), "the failed request is counted")

        stack.components["decode_worker-0"].process.wait(10)
        stack.restart("decode_worker-0")
        stack.wait_ready(timeout_seconds=60)
        prometheus.until(
            lambda: not prometheus.alerts().keys() & set(LOST_DECODE), "they end with the fault"
        )
