"""The kit's wheel serves and makes a call where nothing but its dependencies can be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

KIT = Path(__file__).resolve().parents[1]
PROGRAM = """
import sys

wheel, *allowed = sys.argv[1:]
allowed = {*allowed, *sys.stdlib_module_names}


class Others:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            raise ModuleNotFoundError(f"{name} is no dependency of the kit", name=name)


sys.meta_path.insert(0, Others)
sys.path.insert(0, wheel)

import asyncio
import socket

import grpc

from tandem_loop_grpc.client import RpcChannel
from tandem_loop_grpc.server import Listener


async def echo(request, context):
    return request


async def main():
    listener = Listener(None, most_bytes=1000)
    handler = grpc.unary_unary_rpc_method_handler(echo)
    listener.add_registered_method_handlers("test.Echo", {"Say": handler})
    listening = socket.create_server(("127.0.0.1", 0))
    await listener.start(listening)
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    async with RpcChannel(address, None, most_bytes=1000) as channel:
        print(await channel.unary_unary("/test.Echo/Say", bytes, bytes)(b"hello", timeout=30))
    await listener.stop(0)


asyncio.run(main())
"""


def test_the_kit_alone_serves_a_call(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run([*build, "--directory", str(tmp_path)], cwd=KIT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("tandem_loop_grpc-*.whl")
    modules = ("tandem_loop_grpc", "grpc", "hpack", "google", "typing_extensions")
    said = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, str(wheel), *modules],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert (said.stdout, said.stderr) == ("b'hello'\n", "")
