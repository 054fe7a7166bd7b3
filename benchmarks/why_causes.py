"""Causes of a slow request, put into stacks of the simulated engine one after the other, and
which of them `tandem why` names first: it is told a trace id, and nothing of the cause.

    python benchmarks/why_causes.py                      # all, about four minutes
    python benchmarks/why_causes.py --only slots,resume
    python benchmarks/why_causes.py --record FOLDER      # keep what components told, for tests
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import httpx

from tandem.cli.client import Client
from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack
from tandem_tools.why import asking
from tandem_tools.why.causes import Diagnosis, diagnose

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "model" / "tandem-tiny"
READY_SECONDS = 120.0
HOLD_SECONDS = 1.5
WORDS = "the quick brown fox jumps over the lazy dog and runs away from all of them again "
SLOW_CODE = """
import asyncio
import time

from tandem.hooks.contract import emit


class SlowHook:
    def __call__(self, chunk):
        time.sleep(0.08)
        return emit(chunk.text_diff)


class SlowClassifier:
    name = "slow"
    blocking = True
    timeout_ms = 10_000

    async def score(self, context):
        await asyncio.sleep(1.5)
        return {"block": False}
"""


class Bench:
    """A running stack, and what is done to it."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._held = ExitStack()
        self._lines: list[Iterator[str]] = []

    @property
    def url(self) -> str:
        return f"{self.stack.url}/v1/completions"

    def ask(self, prompt: str = "hello", *, headers: Any = None, **fields: Any) -> str:
        """The trace id of a request that has ended, however it did."""
        body = {"model": "tandem-tiny", "prompt": prompt, "max_tokens": 16, "ignore_eos": True}
        answer = httpx.post(self.url, json={**body, **fields}, headers=headers, timeout=120)
        return answer.headers["x-tandem-trace-id"]

    def warm(self, times: int = 8, **fields: Any) -> None:
        for number in range(times):
            self.ask(f"{number} {WORDS[: 10 + 5 * number]}", max_tokens=16 + number, **fields)

    def hold(self, **fields: Any) -> None:
        """A stream that has begun, and runs until `free`."""
        body = {"model": "tandem-tiny", "prompt": "hello", "max_tokens": 3000, "stream": True}
        asked = httpx.stream("POST", self.url, json={**body, "ignore_eos": True, **fields})
        lines = self._held.enter_context(asked).iter_lines()
        next(lines)
        self._lines.append(lines)  # a stream ends with its iterator

    def free(self, seconds: float = HOLD_SECONDS) -> None:
        """End what is held in so many seconds, from a thread."""
        threading.Timer(seconds, self._held.close).start()

    def while_held(self, **fields: Any) -> str:
        self.free()
        return self.ask(**fields)

    def end(self, name: str, how: signal.Signals) -> None:
        component = self.stack.components[name]
        os.kill(component.pid, how)
        if how is signal.SIGKILL:
            component.process.wait(timeout=30)

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until the router says so of its fleet."""
        metrics = self.stack.components["router"].launch.metrics
        deadline = time.monotonic() + READY_SECONDS
        while not holds(Client(metrics, timeout_seconds=10).get("/debug/fleet")):
            if time.monotonic() > deadline:
                raise TimeoutError("the fleet does not come to be as the cause wants it")
            time.sleep(0.02)


def sim(options: str) -> str:
    return f"--engine-options={options}"


# --- the causes: each leaves a request that is slow for one reason, and returns its trace id ---

Inject = Callable[[Bench], str]
CAUSES: dict[str, tuple[dict[str, Any], Inject]] = {}
"""By the kind that is to be named first: how the stack is set up, and what is done."""


def cause(kind: str, **options: Any) -> Callable[[Inject], Inject]:
    def keep(inject: Inject) -> Inject:
        CAUSES[kind] = options, inject
        return inject

    return keep


@cause("slots", flags={"decode_worker": ("--max-sequences=2",)})
def slots(bench: Bench) -> str:
    bench.hold()
    bench.hold()
    return bench.while_held()


@cause("kv_room", flags={"decode_worker": (sim("max_total_tokens=4096"),)})
def kv_room(bench: Bench) -> str:
    bench.hold(max_tokens=3000)
    return bench.while_held(max_tokens=1500)


@cause("prompts_ahead", flags={"prefill_worker": (sim("prefill_ms_per_token=1"),)})
def prompts_ahead(bench: Bench) -> str:
    bench.warm()
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(bench.ask, WORDS * 100)
        bench.until(lambda fleet: fleet["open_sequences"] > 0)
        trace_id = bench.ask("short")
        long.result()
    return trace_id


@cause(
    "cold_prefix",
    flags={"prefill_worker": (sim("prefill_ms_per_token=1,prefix_cache_tokens=100000"),)},
)
def cold_prefix(bench: Bench) -> str:
    bench.warm()
    bench.ask(WORDS * 60)
    return bench.ask(f"otherwise {WORDS * 60}")


@cause(
    "prefix_elsewhere",
    prefill=2,
    flags={
        "prefill_worker": (sim("prefill_ms_per_token=1,prefix_cache_tokens=100000"),),
        "prefill_worker-0": ("--max-sequences=1",),
        "prefill_worker-1": ("--max-sequences=1",),
    },
)
def prefix_elsewhere(bench: Bench) -> str:
    """A worker that holds the prompt has no slot: the other one computes the prompt again."""
    prompt = WORDS * 60
    bench.ask(prompt)
    time.sleep(1.2)  # until workers have reported
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(bench.ask, f"{prompt} {WORDS * 30}")
        bench.until(lambda fleet: fleet["open_sequences"] > 0)
        trace_id = bench.ask(prompt)
        other.result()
    return trace_id


@cause(
    "ejected",
    decode=2,
    flags={
        "router": ("--eject-after-failures=2", "--max-retries=3", "--eject-first-seconds=60"),
        "decode_worker-0": ("--max-sequences=1",),
        "decode_worker-1": (sim("fault_fail=after:1"),),
    },
)
def ejected(bench: Bench) -> str:
    def is_out(fleet: dict[str, Any]) -> bool:
        if any(each["standing"] == "ejected" for each in fleet["workers"]):
            return True
        list(pool.map(lambda _: bench.ask(), range(4)))
        return False

    with ThreadPoolExecutor(4) as pool:
        bench.until(is_out)
    bench.hold()
    return bench.while_held()


@cause("slow_engine", flags={"decode_worker": (sim("fault_slow=nth:14,fault_slow_ms=60"),)})
def slow_engine(bench: Bench) -> str:
    bench.warm(12)
    return bench.ask(max_tokens=40)


@cause("hooks", hook_decode="why_slow_code:SlowHook")
def hooks(bench: Bench) -> str:
    return bench.ask(max_tokens=30)


@cause(
    "classifiers",
    settings={"decode_worker": "classifiers: {entries: [{path: 'why_slow_code:SlowClassifier'}]}"},
)
def classifiers(bench: Bench) -> str:
    return bench.ask(max_tokens=30)


@cause("client", engine_options=("step_ms=1",))
def client(bench: Bench) -> str:
    """A client that reads nothing until the workers have ended."""
    ask = {"role": "user", "content": "hello"}
    body = {"model": "tandem-tiny", "messages": [ask], "max_tokens": 1500, "stream": True}
    text = json.dumps({**body, "ignore_eos": True, "logprobs": True, "top_logprobs": 20})
    address = urlsplit(bench.url)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((address.hostname, address.port))
        slow.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode()
        )
        head = slow.recv(1024)
        bench.until(lambda fleet: not fleet["open_sequences"])
        time.sleep(2)
        while slow.recv(65536):
            pass
    found = next(line for line in head.split(b"\r\n") if line.startswith(b"x-tandem-trace-id"))
    return found.partition(b": ")[2].decode()


@cause(
    "retry",
    prefill=2,
    flags={
        "router": ("--prefill-policy=round_robin",),
        "prefill_worker": (sim("prefill_base_ms=700"),),
        "prefill_worker-0": (sim("prefill_base_ms=700,fault_corrupt=nth:2"),),
        "prefill_worker-1": (sim("prefill_base_ms=700"),),
    },
)
def retry(bench: Bench) -> str:
    """One of two requests meets the fault: the one that took longer."""
    found, ports = [bench.ask() for _ in range(2)], _ports(bench.stack)
    return max(found, key=lambda each: ports.of(each).seconds)  # type: ignore[union-attr]


@cause("resume", decode=2, flags={"frontend": ("--resume",)})
def resume(bench: Bench) -> str:
    """The worker that dies runs others too: a request that was alone there is not tried again."""
    bench.hold()
    bench.hold()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(bench.ask, max_tokens=250)

        def runs(fleet: dict[str, Any]) -> str:
            mine = (each for each in fleet["workers"] if each["phase"] == "decode")
            return next((each["name"] for each in mine if each["open_legs"] > 1), "")

        found: list[str] = []
        bench.until(lambda fleet: bool(found.append(runs(fleet)) or found[-1]))
        time.sleep(1.2)
        bench.end(found[-1], signal.SIGKILL)
        return asked.result()


KEYS = '{"name": "acme", "sha256": "%s", "requests_per_minute": 2}\n'


@cause("limit", keys=True)
def limit(bench: Bench) -> str:
    headers = {"authorization": "Bearer sesame"}
    return [bench.ask(headers=headers) for _ in range(3)][-1]


@cause("form", flags={})
def form(bench: Bench) -> str:
    bench.ask("hello", user="x" * 20_000)  # a process has begun to read large bodies
    choices = "|".join(f"{random.Random(number).getrandbits(60):x}" for number in range(2500))
    return bench.ask(guided_regex=f"({choices})", ignore_eos=False)


@cause("canary", flags={"prefill_worker": (sim("prefill_base_ms=1200"),)})
def canary(bench: Bench) -> str:
    """The only decode worker is started again, and has to prove that KV moves to it."""
    bench.end("decode_worker-0", signal.SIGKILL)
    bench.until(lambda fleet: not fleet["ready_pairs"])
    bench.stack.restart("decode_worker-0")
    bench.until(
        lambda fleet: any(
            each["connected"] and each["phase"] == "decode" for each in fleet["workers"]
        )
    )
    return bench.ask()


@cause("drain", decode=2, flags={"decode_worker-0": ("--max-sequences=1",)})
def drain(bench: Bench) -> str:
    bench.hold()
    bench.hold()  # one runs on each
    bench.end("decode_worker-1", signal.SIGTERM)
    bench.until(lambda fleet: any("draining" in each["refused"] for each in fleet["workers"]))
    return bench.while_held()


@cause(
    "rollout",
    decode=2,
    flags={
        "decode_worker-0": ("--max-sequences=1",),
        "decode_worker-1": (sim("page_size=128"),),
        "router": ("--canary-seconds=0",),
    },
    ready="decode_worker-0",
)
def rollout(bench: Bench) -> str:
    """Another revision has come, whose workers do not match the old ones yet."""
    bench.hold()
    return bench.while_held()


@cause("network", proxy=0.4)
def network(bench: Bench) -> str:
    return bench.ask()


@cause("body", flags={})
def body(bench: Bench) -> str:
    text = json.dumps({"model": "tandem-tiny", "prompt": "hello", "max_tokens": 8}).encode()

    def parts() -> Iterator[bytes]:
        yield text
        for _ in range(24):
            yield b" " * 100_000
            time.sleep(0.05)

    headers = {"content-type": "application/json"}
    answer = httpx.post(bench.url, content=parts(), headers=headers, timeout=60)
    return answer.headers["x-tandem-trace-id"]


@cause("adapter", adapter=True, prefill=2, decode=2)
def adapter(bench: Bench) -> str:
    """The one pair that has the adapter is busy, and another pair free."""
    bench.hold(model="tandem-tiny:first")
    return bench.while_held(model="tandem-tiny:first")


@cause("deadline", flags={"decode_worker": (sim("step_ms=100"),)})
def deadline(bench: Bench) -> str:
    return bench.ask(max_tokens=200, timeout=1.5)


# --- stacks --------------------------------------------------------------------------------------


class Proxy:
    """Passes bytes on after a delay, to an address that is told later."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.target = ""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            while not self.target:
                time.sleep(0.05)
            host, _, port = self.target.rpartition(":")
            try:
                far = socket.create_connection((host, int(port)))
            except OSError:
                near.close()
                continue
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                time.sleep(self._seconds)
                sink.sendall(data)
        except OSError:
            pass
        source.close()
        sink.close()


@contextmanager
def served(options: dict[str, Any], folder: Path) -> Iterator[Bench]:
    """A stack that is set up for a cause."""
    given = {"flags": {}, **options}
    flags = {name: tuple(each) for name, each in given.pop("flags").items()}
    proxy = Proxy(given.pop("proxy")) if "proxy" in given else None
    ready = given.pop("ready", "")
    if proxy is not None:
        flags["frontend"] = (*flags.get("frontend", ()), f"--router={proxy.address}")
    if given.pop("keys", False):
        from tandem.keys.ring import digest_of

        keys = folder / "keys.jsonl"
        keys.write_text(KEYS % digest_of(b"sesame"), encoding="utf-8")
        flags["frontend"] = (f"--api-keys-file={keys}",)
    for component, text in given.pop("settings", {}).items():
        path = folder / f"{component}.yaml"
        path.write_text(text, encoding="utf-8")
        flags[component] = (*flags.get(component, ()), f"--config={path}")
    if given.pop("adapter", False):
        import subprocess

        path = folder / "first"
        script = ROOT / "scripts" / "make_lora_adapter.py"
        subprocess.run([sys.executable, script, MODEL, path, "--seed", "1"], check=True)
        mine = (f"--lora-adapters=first={path}", "--max-sequences=1")
        flags["prefill_worker-0"] = flags["decode_worker-0"] = mine
    stack_options = StackOptions(model_path=MODEL, engine="sim", flags=flags, **given)
    with Stack(stack_options, run_dir=folder / "run") as stack:
        if proxy is not None:
            proxy.target = stack.components["router"].address
        stack.wait_ready(timeout_seconds=READY_SECONDS)
        bench = Bench(stack)
        if not ready:
            workers = given.get("prefill", 1) + given.get("decode", 1)

            def whole(fleet: dict[str, Any]) -> bool:
                return sum(not each["refused"] for each in fleet["workers"]) == workers

            bench.until(whole)
        yield bench


def _ports(stack: Stack) -> asking.AdminPorts:
    names = ("router", "frontend")
    return asking.AdminPorts([stack.components[each].launch.metrics for each in names])


def told(bench: Bench, trace_id: str) -> tuple[Diagnosis, list[Any]]:
    """What `tandem why` makes of a trace id, and what components told."""
    ports = _ports(bench.stack)
    deadline = time.monotonic() + 10
    while (evidence := ports.of(trace_id)) is None or not evidence.outcome:
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody tells of {trace_id}")
        time.sleep(0.05)
    time.sleep(0.3)  # until legs of a cancelled request have closed
    evidence = ports.of(trace_id)
    assert evidence is not None
    stories = [each for each in (evidence.call, evidence.story) if each is not None]
    return diagnose(evidence), stories


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="kinds, with commas between them")
    parser.add_argument("--seed", type=int, default=1, help="of the order [%(default)s]")
    parser.add_argument("--record", type=Path, help="a folder for what components told")
    arguments = parser.parse_args()
    kinds = arguments.only.split(",") if arguments.only else list(CAUSES)
    random.Random(arguments.seed).shuffle(kinds)
    right = 0
    for kind in kinds:
        options, inject = CAUSES[kind]
        with TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "why_slow_code.py").write_text(SLOW_CODE, encoding="utf-8")
            before = os.environ.get("PYTHONPATH", "")
            os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{before}"
            try:
                with served(options, folder) as bench:
                    diagnosis, stories = told(bench, inject(bench))
            except Exception as error:  # noqa: BLE001 - a cause that is not shown counts as missed
                print(f"| {kind} | NOT SHOWN | | {error!r} |", flush=True)
                continue
            finally:
                os.environ["PYTHONPATH"] = before
        first = diagnosis.causes[0] if diagnosis.causes else None
        named = "" if first is None else first.kind
        right += named == kind
        mark = "named" if named == kind else f"MISSED ({named})"
        sentence = "" if first is None else f"{first.seconds:.2f} s: {first.sentence}"
        print(f"| {kind} | {mark} | {diagnosis.seconds:.2f} s | {sentence} |", flush=True)
        if named != kind:
            for each in diagnosis.causes[:5]:
                print(f"      {each.kind} {each.seconds:.3f} {each.sentence}")
            print(f"      {diagnosis.parts}", flush=True)
        if arguments.record:
            _record(arguments.record / f"{kind}.json", stories)
    print(f"{right} of {len(kinds)} named first")
    return 0 if right >= len(kinds) - len(kinds) // 20 else 1


def _record(path: Path, stories: list[Any]) -> None:
    import msgspec

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(stories), indent=1) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
