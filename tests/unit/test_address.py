"""The address by which a worker's server is known."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from ejpy.cli.address import own_address
from ejpy.errors import ConfigError


def test_a_given_address_is_taken_as_it_is() -> None:
    assert own_address(" 10.1.2.3 ") == "10.1.2.3"


@pytest.mark.parametrize("given", ["db-host", "10.0.0", "10.0.0.256", "::1"])
def test_what_is_no_ipv4_address_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="is not an IPv4 address; expected four numbers such as"):
        own_address(given)


def test_m6_no_name_is_resolved_and_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """M6: a job did not start in a container, where the host's own name could not be resolved."""

    def refuse(*arguments: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    for name in ("gethostname", "getfqdn", "getaddrinfo", "gethostbyname", "gethostbyname_ex", "gethostbyaddr"):
        monkeypatch.setattr(socket, name, refuse)
    assert socket.inet_aton(own_address(None))


def test_m6_without_a_way_out_it_is_the_loopback_address(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutNetwork(socket.socket):
        def connect(self, address: Any) -> None:
            raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "socket", WithoutNetwork)
    assert own_address(None) == "127.0.0.1"
