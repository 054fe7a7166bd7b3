"""Take the pictures of the plots in docs/cli.md and docs/replay.md: a bench of a sim stack, and a
replay of a made trace; `make plot-pictures`. The bench needs AIPerf.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tandem import cli
from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack
from tandem.cli.up import stopping_on_signals

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "plots"
READY_SECONDS = 180.0
ENGINE = ("step_ms=20", "step_ms_per_sequence=1", "prefill_ms_per_token=0.2")
STACK = StackOptions(
    engine="sim", model_path=ROOT / "model" / "tandem-tiny", decode=2, engine_options=ENGINE
)
FLEET = """
prefill: {workers: 2, cache_tokens: 307200}
decode: {workers: 2}
aggregated: {cache_tokens: 307200}
times: {prefill_ms: [[0, 5], [1000, 55]], step_ms: [[1, 20], [32, 51]], overhead_ms: 5}
"""
BENCH = "bench --rate 4 --seconds 60 --prompt-tokens 256 --output-tokens 32 --slo-ttft 0.5"
REPLAY = (
    "replay --generate chat --requests 500 --rate 6 --sweep --policy round_robin prefix"
    " --slo-ttft 0.2 --slo-itl 0.05"
)


def main() -> int:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        fleet = Path(folder) / "fleet.yaml"
        fleet.write_text(FLEET, encoding="utf-8")
        run(*REPLAY.split(), f"--fleet={fleet}", f"--plot={PICTURES / 'replay.svg'}")
        with stopping_on_signals(), Stack(STACK, run_dir=Path(folder) / "run") as stack:
            stack.wait_ready(timeout_seconds=READY_SECONDS)
            path = f"--model-path={STACK.model_path}"
            run(*BENCH.split(), f"--url={stack.url}", path, f"--plot={PICTURES / 'bench.svg'}")
    return 0


def run(*words: str) -> None:
    if status := cli.main(words):
        raise SystemExit(status)


if __name__ == "__main__":
    sys.exit(main())
