"""Reverse proxies before a frontend, each with few connections to it, which all its clients share:
nginx and HAProxy, and one that reads more leniently than those.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from harness import PATIENCE
from lenient_proxy import lenient_proxying

NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors info;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_buffer_size 1m; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
    upstream frontend {{ server 127.0.0.1:{port} max_fails=0; keepalive 1; }}
    server {{
        listen unix:{folder}/socket;
        location / {{
            proxy_pass http://frontend; proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
            proxy_request_buffering {buffering};
            proxy_read_timeout {read_timeout}s;
        }}
    }}
}}
"""
HAPROXY = """
global
    maxconn 256
defaults
    mode http
    timeout connect 10s
    timeout client 10s
    timeout server {read_timeout}s
    option http-keep-alive
    {leniency}
frontend clients
    bind unix@{folder}/socket
    default_backend frontend
backend frontend
    http-reuse always
    server one 127.0.0.1:{port} pool-max-conn 1 pool-purge-delay 60s
"""
LENIENT = "lenient"
REAL = {
    "nginx": ("nginx", NGINX, {"buffering": "on"}),
    "nginx without buffers": ("nginx", NGINX, {"buffering": "off"}),
    "haproxy": ("haproxy", HAPROXY, {"leniency": ""}),
    "haproxy, lenient": ("haproxy", HAPROXY, {"leniency": "option accept-invalid-http-request"}),
}
PROXIES = (*REAL, LENIENT)


@asynccontextmanager
async def proxying(
    name: str, programs: Path, port: int, folder: Path, *, read_timeout: int = 10
) -> AsyncIterator[Path]:
    """The socket of a proxy before the frontend at `port`, which may be silent for so long."""
    if name == LENIENT:
        async with lenient_proxying(port, folder) as address:
            yield address
        return
    program, template, options = REAL[name]
    settings = template.format(folder=folder, port=port, read_timeout=read_timeout, **options)
    async with running(program, settings, programs, folder) as address:
        yield address


@asynccontextmanager
async def running(program: str, text: str, programs: Path, folder: Path) -> AsyncIterator[Path]:
    """A proxy with the settings `text`, which have it listen on `folder`'s socket."""
    settings = folder / "settings"
    settings.write_text(text)
    arguments = ("-p", folder, "-c", settings) if program == "nginx" else ("-db", "-f", settings)
    errors = (folder / "stderr").open("wb")
    process = await asyncio.create_subprocess_exec(
        programs / program, *arguments, stderr=errors, stdout=errors
    )
    try:
        await _answers(folder / "socket")
        yield folder / "socket"
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), PATIENCE)
        errors.close()


async def _answers(address: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                _, writer = await asyncio.open_unix_connection(address)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return
