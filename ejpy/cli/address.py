"""This worker's own IPv4 address: the name of its server entry, which an operator enables and disables."""

from __future__ import annotations

import ipaddress
import socket

from ejpy.errors import ConfigError

_FAR_AWAY = ("192.0.2.1", 9)
"""TEST-NET-1 (RFC 5737). Connecting a datagram socket sends nothing: it only asks the kernel which way it would go."""


def own_address(given: str | None) -> str:
    """`given`, checked, or the address of this host's way out; 127.0.0.1 where there is none.

    In a container that is the container's own address. Raises ConfigError if `given` is no IPv4 address.
    """
    if given:
        try:
            return str(ipaddress.IPv4Address(given.strip()))
        except ValueError as error:
            raise ConfigError([f"--ip: {given!r} is not an IPv4 address; expected four numbers such as 10.0.0.7"]) from error
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_FAR_AWAY)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
