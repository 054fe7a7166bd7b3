"""Sockets that listen on an address of the configuration, and how many a process may have."""

from __future__ import annotations

import ipaddress
import resource
import socket

from tandem.errors import ConfigError

_MOST_PORT = 65_535
_USUAL_LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
"""Known without being parsed: each request of a local server names one of them."""


def is_loopback(host: str) -> bool:
    """Whether a host name or address, in lower case, can only be this machine."""
    if host in _USUAL_LOOPBACK or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check(address: str, *, setting: str) -> tuple[str, int]:
    """The host and port of an address to listen on. Raises ConfigError, which names the setting."""
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and int(port[:6]) <= _MOST_PORT):
        raise ConfigError(
            f"{setting} must be HOST:PORT, such as 0.0.0.0:8000, with a port of at most"
            f" {_MOST_PORT}, not {address!r}"
        )
    return host.strip("[]"), int(port)


def listen(address: str, *, setting: str, backlog: int = 128) -> socket.socket:
    """Listen on "host:port"; port 0 is any, and an IPv6 host stands in brackets.

    Raises ConfigError, which names the setting, where the address is none or cannot be bound.
    """
    host, port = check(address, setting=setting)
    ipv6 = ":" in host
    try:
        return socket.create_server(
            (host, port),
            family=socket.AF_INET6 if ipv6 else socket.AF_INET,
            backlog=backlog,
            dualstack_ipv6=ipv6 and socket.has_dualstack_ipv6(),  # "[::]" is every address
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot listen on {address!r} ({setting}): {error}") from error


def bound(address: str, port: int) -> str:
    """The address "host:port" of a setting with the port that it came to, where it says 0."""
    return f"{address.rpartition(':')[0]}:{port}"


def endpoint(host: str, port: int) -> str:
    """ "host:port", an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def allow_files(wanted: int) -> int:
    """Let this process have so many files and sockets open. Returns how many it may have: fewer
    where its hard limit is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, soft)
