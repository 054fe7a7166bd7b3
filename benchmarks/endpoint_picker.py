"""An endpoint picker of the Gateway API Inference Extension, as small as the protocol lets it be.

It is asked by Envoy over ext_proc, chooses among endpoints, and says which by the header and the
metadata that the protocol names. It picks with a request's head, or with its body where Envoy
streams it that; what it is streamed it sends back as it came.

    python benchmarks/endpoint_picker.py --listen 127.0.0.1:9002 --endpoints 127.0.0.1:8000 --reads
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import uvloop

from tandem.engine import model_files
from tandem.v1 import router_pb2, worker_pb2
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai.asked import Origin
from tandem_frontend.openai.dialects import CHAT
from tandem_frontend.openai.reading.reader import Reader, decode
from tandem_frontend.openai.strangers import FieldRules

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "model" / "tandem-tiny"
HEADER = "x-gateway-destination-endpoint"
LARGEST_PIECE = 62_000
"""Bytes of a body in one message: Envoy takes 64 KiB."""
SCRAPE_SECONDS = 0.05
_LEGS = re.compile(r"^tandem_worker_open_legs(?:\{[^}]*\})? (\S+)$", re.M)


class Load:
    """What the picker knows of each endpoint: requests that have no end yet, and the open legs of
    the prefill workers whose metrics it reads."""

    def __init__(self, endpoints: list[str]) -> None:
        self.endpoints = endpoints
        self.in_flight: Counter[str] = Counter()
        self.prefill_legs: Counter[str] = Counter()

    def least(self, known: Counter[str]) -> str:
        return min(self.endpoints, key=lambda each: (known[each], random.random()))

    async def scrape(self, metrics: list[str]) -> None:
        """Read the prefill workers' metrics, again and again; one that is away keeps its last."""
        while True:
            for endpoint, address in zip(self.endpoints, metrics, strict=True):
                text = await asyncio.to_thread(_text, f"http://{address}/metrics")
                self.prefill_legs[endpoint] = round(sum(map(float, _LEGS.findall(text))))
            await asyncio.sleep(SCRAPE_SECONDS)


def _text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as response:
        return str(response.read(), "utf-8")


def prompt_tokens() -> Callable[[bytes], int]:
    """How a picker would count a prompt's tokens: what the frontend does with every body."""
    reader = Reader.load(FrontendConfig(model_path=str(MODEL)))
    served = router_pb2.ServedModel(
        name=MODEL.name,
        tokenizer_sha256=model_files.tokenizer_sha256(MODEL),
        limits=worker_pb2.Limits(max_sequences=1, context_length=2**20, vocabulary=2**20),
        ready_pairs=1,
    )

    def count(body: bytes) -> int:
        asked = reader.submission(decode(CHAT, body, FieldRules()), served, Origin(id="x"))
        return asked.prompts[0].tokens

    return count


class Picker:
    """Envoy's ExternalProcessor: one stream for each HTTP request."""

    def __init__(
        self, load: Load, known: Counter[str], messages: Any, reads: Callable[[bytes], int] | None
    ) -> None:
        self._load, self._known, self._reads = load, known, reads
        self._m = messages

    async def Process(self, stream: AsyncIterator[Any], _: Any) -> AsyncIterator[Any]:
        body, endpoint = bytearray(), ""
        try:
            async for message in stream:
                kind = message.WhichOneof("request")
                if kind == "request_body":
                    body += message.request_body.body
                    if not message.request_body.end_of_stream:
                        continue
                    if self._reads is not None:
                        self._reads(bytes(body))
                elif kind == "request_headers" and self._streamed(message):
                    continue
                if kind in ("request_headers", "request_body"):
                    endpoint = self._load.least(self._known)
                    self._load.in_flight[endpoint] += 1
                    yield self._picked(endpoint)
                    for piece in self._pieces(bytes(body)) if body else ():
                        yield piece
                else:
                    yield self._as_it_came(kind, message)
        finally:
            self._load.in_flight[endpoint] -= 1

    def _streamed(self, first: Any) -> bool:
        """Whether Envoy is going to send the body."""
        mode = first.protocol_config.request_body_mode
        return bool(mode != self._m.NONE and not first.request_headers.end_of_stream)

    def _picked(self, endpoint: str) -> Any:
        m = self._m
        value = m.HeaderValue(key=HEADER, raw_value=endpoint.encode())
        mutation = m.HeaderMutation(set_headers=[m.HeaderValueOption(header=value)])
        common = m.CommonResponse(header_mutation=mutation, clear_route_cache=True)
        answer = m.ProcessingResponse(request_headers=m.HeadersResponse(response=common))
        answer.dynamic_metadata.update({"envoy.lb": {HEADER: endpoint}})
        return answer

    def _pieces(self, body: bytes) -> Iterator[Any]:
        for start in range(0, len(body), LARGEST_PIECE):
            end = start + LARGEST_PIECE >= len(body)
            response = self._body(body[start : start + LARGEST_PIECE], end)
            yield self._m.ProcessingResponse(request_body=response)

    def _body(self, body: bytes, end: bool) -> Any:
        m = self._m
        streamed = m.StreamedBodyResponse(body=body, end_of_stream=end)
        common = m.CommonResponse(body_mutation=m.BodyMutation(streamed_response=streamed))
        return m.BodyResponse(response=common)

    def _as_it_came(self, kind: str, message: Any) -> Any:
        m = self._m
        if kind == "response_headers":
            return m.ProcessingResponse(response_headers=m.HeadersResponse())
        if kind == "response_body":
            said = message.response_body
            return m.ProcessingResponse(response_body=self._body(said.body, said.end_of_stream))
        return m.ProcessingResponse(**{kind: m.TrailersResponse()})


class Messages:
    """Envoy's messages, from the folder that scripts/set_up_envoy.sh fills."""

    def __init__(self) -> None:
        script = ROOT / "scripts" / "set_up_envoy.sh"
        folder = subprocess.run([script, "messages"], capture_output=True, text=True, check=True)
        sys.path.append(folder.stdout.strip())
        from envoy.config.core.v3 import base_pb2
        from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
        from envoy.service.ext_proc.v3 import external_processor_pb2, external_processor_pb2_grpc

        self.add = external_processor_pb2_grpc.add_ExternalProcessorServicer_to_server
        self.NONE = processing_mode_pb2.ProcessingMode.NONE
        for module in (base_pb2, external_processor_pb2):
            vars(self).update({n: v for n, v in vars(module).items() if n[:1].isupper()})


async def serve(options: argparse.Namespace) -> None:
    load, messages = Load(options.endpoints.split(",")), Messages()
    known = load.prefill_legs if options.prefill_metrics else load.in_flight
    reads = prompt_tokens() if options.reads else None
    server = grpc.aio.server()
    messages.add(Picker(load, known, messages, reads), server)
    server.add_insecure_port(options.listen)
    await server.start()
    if options.prefill_metrics:
        await load.scrape(options.prefill_metrics.split(","))
    await server.wait_for_termination()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--listen", default="127.0.0.1:9002")
    parser.add_argument("--endpoints", required=True, help="host:port, with commas between them")
    parser.add_argument("--reads", action="store_true", help="count the prompt's tokens")
    parser.add_argument(
        "--prefill-metrics",
        default="",
        help="metrics address of each endpoint: pick by the open legs there, and not by requests"
        " in flight",
    )
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
