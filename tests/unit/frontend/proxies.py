"""Reverse proxies before a frontend, each with few connections to it, which all its clients share:
nginx, HAProxy and Envoy, and one that reads more leniently than those.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from harness import PATIENCE
from lenient_proxy import lenient_proxying

NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors info;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_buffer_size 17m; client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
    upstream frontend {{ server 127.0.0.1:{port} max_fails=0; keepalive {connections}; }}
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
    server one 127.0.0.1:{port} pool-max-conn {connections} pool-purge-delay 60s
"""
ENVOY = """
static_resources:
  listeners:
  - name: clients
    address: {{pipe: {{path: "{folder}/socket"}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": {types}.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: clients
          stream_idle_timeout: {read_timeout}s
          {leniency}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": {types}.filters.http.router.v3.Router}}
          route_config:
            virtual_hosts:
            - name: frontend
              domains: ["*"]
              routes:
              - {{match: {{prefix: /}}, route: {{cluster: frontend, timeout: 0s}}}}
  clusters:
  - name: frontend
    circuit_breakers: {{thresholds: [{{max_connections: {connections}}}]}}
    load_assignment:
      cluster_name: frontend
      endpoints:
      - lb_endpoints:
        - endpoint:
            address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
"""
_TYPES = "type.googleapis.com/envoy.extensions"
_ALL_THAT_ENVOY_TAKES = """http_protocol_options:
            accept_http_10: true
            allow_chunked_length: true
            enable_trailers: true
          upgrade_configs: [{upgrade_type: websocket}, {upgrade_type: h2c}, {upgrade_type: x/9}]"""
LENIENT = "lenient"
REAL: dict[str, tuple[str, str, dict[str, object]]] = {
    "nginx": ("nginx", NGINX, {"buffering": "on"}),
    "nginx without buffers": ("nginx", NGINX, {"buffering": "off"}),
    "haproxy": ("haproxy", HAPROXY, {"leniency": ""}),
    "haproxy, lenient": ("haproxy", HAPROXY, {"leniency": "option accept-invalid-http-request"}),
    "envoy": ("envoy", ENVOY, {"leniency": "", "types": _TYPES}),
    "envoy, lenient": ("envoy", ENVOY, {"leniency": _ALL_THAT_ENVOY_TAKES, "types": _TYPES}),
}
PROXIES = (*REAL, LENIENT)
Programs = Mapping[str, Path]
"""The commands of nginx, haproxy and envoy."""
_ARGUMENTS = {
    "nginx": ("-p", "{folder}", "-c", "{settings}"),
    "haproxy": ("-db", "-f", "{settings}"),
    "envoy": ("--disable-hot-restart", "--concurrency", "1", "-l", "warn", "-c", "{settings}"),
}


@asynccontextmanager
async def proxying(
    name: str,
    programs: Programs,
    port: int,
    folder: Path,
    *,
    read_timeout: int = 10,
    connections: int = 1,
) -> AsyncIterator[Path]:
    """The socket of a proxy before the frontend at `port`, which may be silent for `read_timeout`
    seconds. `connections`: how many to the frontend Envoy opens, and the others keep idle.
    """
    if name == LENIENT:
        async with lenient_proxying(port, folder) as address:
            yield address
        return
    program, template, options = REAL[name]
    options = {**options, "read_timeout": read_timeout, "connections": connections}
    settings = template.format(folder=folder, port=port, **options)
    async with running(program, settings, programs, folder) as address:
        yield address


@asynccontextmanager
async def running(program: str, text: str, programs: Programs, folder: Path) -> AsyncIterator[Path]:
    """A proxy with the settings `text`, which have it listen on `folder`'s socket."""
    settings = folder / "settings.yaml"  # Envoy knows by the name what it reads
    settings.write_text(text)
    arguments = [each.format(folder=folder, settings=settings) for each in _ARGUMENTS[program]]
    errors = (folder / "stderr").open("wb")
    process = await asyncio.create_subprocess_exec(
        programs[program], *arguments, stderr=errors, stdout=errors
    )
    try:
        await _answers(folder / "socket")
        yield folder / "socket"
    finally:
        if process.returncode is None:
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
