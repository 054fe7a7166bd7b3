"""Addresses as settings write them, and what a name of several stands for."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence

from tandem.errors import ConfigError

_PORT_DIGITS = 5
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""From a host and a port to the host's IP addresses. Raises OSError."""


def is_address(text: str) -> bool:
    """Whether it is host:port, with an IPv6 host in brackets."""
    host, _, port = text.rpartition(":")
    return bool(host) and len(port) <= _PORT_DIGITS and port.isdecimal() and 0 < int(port) < 65536


def check(what: str, addresses: Sequence[str]) -> None:
    """Raises ConfigError where one is not written host:port, or is there twice."""
    if malformed := [each for each in addresses if not is_address(each)]:
        raise ConfigError(f"{what} are written host:port; not so: {', '.join(malformed)}")
    if twice := {each for each in addresses if addresses.count(each) > 1}:
        raise ConfigError(f"{what} are listed twice: {', '.join(sorted(twice))}")


def names_one_machine(host: str) -> bool:
    """Whether it is an IP address, in the form in which a resolver and an API server write it, and
    not that of any.
    """
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return False
    return str(found) == host and not found.is_unspecified


def split(address: str) -> tuple[str, int]:
    """Host, without brackets, and port of what is an address."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def join(host: str, port: int | str) -> str:
    """The address of an IP address, or a name, and a port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def resolve(host: str, port: int) -> Sequence[str]:
    """The name's IPv4 and IPv6 addresses. Raises OSError; how long it takes is the system's."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # of what can be no name, as "a..b"
        raise OSError(str(error)) from error
    return sorted({str(address[0]) for *_, address in found})
