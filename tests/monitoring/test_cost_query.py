"""The query of docs/cost.md, over what OpenCost and workers tell Prometheus."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from watching import UNIT_TEST_SECONDS, Tools, unit_test

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cost.md"
NODE = 'node="n1"'
PODS = {"p-0": ("8", "16", "128"), "p-1": ("1", "2", "16")}
"""GPUs, CPUs and GiB of each."""
SERIES = {
    'tandem_worker_key_seconds_total{namespace="a",pod="p-0",phase="prefill",key="k"}': "0+30x20",
    'tandem_worker_key_seconds_total{namespace="a",pod="p-0",phase="prefill",key=""}': "0+15x20",
    'tandem_worker_idle_seconds_total{namespace="a",pod="p-0",phase="prefill"}': "0+15x20",
    'tandem_worker_key_seconds_total{namespace="a",pod="p-1",phase="decode",key="k"}': "0+60x20",
    'tandem_worker_idle_seconds_total{namespace="a",pod="p-1",phase="decode"}': "0x20",
    f"node_gpu_hourly_cost{{{NODE}}}": "2x20",
    f"node_cpu_hourly_cost{{{NODE}}}": "0.125x20",
    f"node_ram_hourly_cost{{{NODE}}}": "0.0625x20",
}
COST = {"p-0": 16 + 2 + 8, "p-1": 2 + 0.25 + 1}


@pytest.mark.promise("S5-800")
@pytest.mark.timeout(UNIT_TEST_SECONDS + 60)
def test_the_query_divides_the_cost_of_each_pod_among_its_keys(
    tools: Tools, tmp_path: Path
) -> None:
    (query,) = re.findall(r"```promql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    series = dict(SERIES)
    for pod, (gpus, cpus, memory) in PODS.items():
        place = f'namespace="a",pod="{pod}",container="worker",{NODE}'
        series[f"container_gpu_allocation{{{place}}}"] = f"{gpus}x20"
        series[f"container_cpu_allocation{{{place}}}"] = f"{cpus}x20"
        series[f"container_memory_allocation_bytes{{{place}}}"] = f"{int(memory) * 2**30}x20"
    shares = {("p-0", "k"): 0.5, ("p-0", ""): 0.25, ("p-0", "_idle"): 0.25, ("p-1", "k"): 1.0}
    shares["p-1", "_idle"] = 0.0
    found = [
        {
            "labels": "{" + ",".join(f'{n}="{v}"' for n, v in _labels(pod, key).items()) + "}",
            "value": COST[pod] * share,
        }
        for (pod, key), share in shares.items()
    ]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": each} for name, each in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": "15m", "exp_samples": found}],
    }
    document = {"evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "cost.yaml").write_text(yaml.safe_dump(document))
    unit_test(tools, tmp_path, ["cost.yaml"])


def _labels(pod: str, key: str) -> dict[str, str]:
    return {"namespace": "a", "pod": pod} | ({"key": key} if key else {})
