"""The list of ZooKeeper servers as a user writes it: "host:2181,other:2181,[::1]:2181".

Checked before anything is opened. kazoo would take an empty entry for a bad host name somewhere in a stack trace, a path
at the end for a chroot, and a host name that no resolver can encode would end its connection thread.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from ejpy.errors import ConfigError

DEFAULT_PORT = 2181


def parse_hosts(hosts: str) -> list[tuple[str, int]]:
    """The servers of `hosts` as (name or address, port).

    Raises ConfigError with one line for each entry that is wrong.
    """
    servers: list[tuple[str, int]] = []
    problems: list[str] = []
    for position, entry in enumerate(hosts.split(","), start=1):
        try:
            servers.append(_parse_entry(entry.strip()))
        except ValueError as error:
            problems.append(f"ZooKeeper servers {hosts!r}: entry {position} ({entry.strip()!r}): {error}")
    if problems:
        raise ConfigError(problems)
    return servers


def format_hosts(servers: list[tuple[str, int]]) -> str:
    """The servers as one string, for kazoo and for messages."""
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in servers)


def _parse_entry(entry: str) -> tuple[str, int]:
    if not entry:
        raise ValueError("it is empty; write host:port and remove surplus commas")
    if "/" in entry:
        raise ValueError("a path does not belong here; write host:port, and give the path as the namespace")
    if "@" in entry:
        raise ValueError("credentials do not belong here; write host:port, and give them as the digest setting")
    no_address = "not a host and port; write host:port, an IPv6 address in brackets"
    try:
        parts = urlsplit(f"//{entry}")
        host = parts.hostname
    except ValueError:
        raise ValueError(no_address) from None
    if entry.count(":") > 1 and not entry.startswith("["):
        raise ValueError(no_address)
    try:
        port = parts.port
    except ValueError:
        raise ValueError("the port must be a number from 1 to 65535") from None
    if port == 0 or entry.endswith(":"):
        raise ValueError("the port must be a number from 1 to 65535")
    if not host or any(character.isspace() for character in host):
        raise ValueError("the host name is missing or has blanks in it; write host:port")
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError("not a valid host name: every part needs 1 to 63 characters") from None
    return host, port or DEFAULT_PORT
