"""Take the pictures of `tandem top` in docs/cli.md: of a real sim stack under load, one of whose
decode workers is slow; `make top-pictures`.
"""

from __future__ import annotations

import argparse
import io
import random
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from tandem.cli.answer import CHAT
from tandem.cli.client import ApiError, Client
from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack
from tandem.cli.up import stopping_on_signals
from tandem_tools.top import frame, readings
from tandem_tools.top.figures import FleetHistory
from tandem_tools.top.frame import FleetView
from tandem_tools.top.readings import FleetAddresses

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "top"
MODEL = ROOT / "model" / "tandem-tiny"
SIZES = ((80, 24), (200, 50))
READY_SECONDS = 180
CLIENTS = 26
ENGINE = "step_ms=80,step_ms_per_sequence=1,prefill_base_ms=15,max_total_tokens=4096"
SLOW = f"{ENGINE},fault_slow=always,fault_slow_ms=300"
STACK = StackOptions(
    engine="sim",
    model_path=MODEL,
    port=0,
    prefill=2,
    decode=3,
    flags={
        "prefill_worker": (f"--engine-options={ENGINE}",),
        "decode_worker": ("--max-sequences=6",),
        **{f"decode_worker-{number}": (f"--engine-options={ENGINE}",) for number in range(2)},
        "decode_worker-2": (f"--engine-options={SLOW}",),
    },
)
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""rich's fonts come from another host: a picture asks nobody."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=int, default=90, help="of load before the pictures")
    seconds = parser.parse_args().seconds
    PICTURES.mkdir(exist_ok=True)
    readings.ANSWER_SECONDS = 20.0  # of a machine that has other things to do as well
    with (
        stopping_on_signals(),
        tempfile.TemporaryDirectory() as folder,
        Stack(STACK, run_dir=Path(folder)) as stack,
    ):
        stack.wait_ready(timeout_seconds=READY_SECONDS)
        ports = {name: each.launch.metrics for name, each in stack.components.items()}
        names = {port: name for name, port in ports.items() if "worker" in name}
        asked = FleetAddresses([ports["router"]], list(names), [ports["frontend"]])
        view = FleetView(address=stack.url, interval=1.0)
        with _load(stack.url):
            history = FleetHistory(first := readings.read(asked), names)
            figures = history.take(first)
            end = time.monotonic() + seconds
            while time.monotonic() < end or figures.silent_frontends:
                time.sleep(1)
                figures = history.take(readings.read(asked))
                view.remember(figures)
        for width, height in SIZES:
            console = Console(
                record=True, width=width, height=height, file=io.StringIO(), force_terminal=True,
                color_system="truecolor", markup=False, emoji=False, highlight=False,
            )  # fmt: skip
            console.print(frame.screen(figures, view, console))
            picture = console.export_svg(title="tandem top", unique_id=f"top-{width}")
            lines = (line.rstrip() for line in _FONT.sub("", picture).splitlines())
            (PICTURES / f"{width}x{height}.svg").write_text("\n".join(lines) + "\n", "utf-8")


@contextmanager
def _load(url: str) -> Iterator[None]:
    """Clients that ask again and again, for answers of many lengths."""
    over = threading.Event()

    def ask(seed: int) -> None:
        chance = random.Random(seed)
        while not over.wait(chance.random()):
            prompt = " ".join(chance.choices(("as", "in", "of", "the", "to"), k=60))
            body = {
                "model": MODEL.name,
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": chance.randint(20, 300),
                "ignore_eos": True,
            }
            try:
                for _ in Client(url).stream(CHAT, body):
                    if over.is_set():
                        return
            except ApiError:
                continue  # it shows in the picture

    clients = [threading.Thread(target=ask, args=(seed,)) for seed in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        over.set()
        for client in clients:
            client.join()


if __name__ == "__main__":
    main()
