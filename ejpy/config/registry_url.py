"""Registry URLs: which registry, where, and under which namespace.

    zookeeper://[user:password@]host[:2181][,host2:2181]/namespace[?session_timeout=10s]
    sqlite:///relative/path.db   sqlite:////absolute/path.db   [?namespace=ejpy&session_timeout=5s]
    memory://

`user:password` is ZooKeeper's digest identity; with it every node is readable and writable by that identity only. In both,
`/`, `?`, `#`, `%` and `@` are written as %2F, %3F, %23, %25 and %40. No message shows them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import parse_qsl, unquote

from ejpy.config import durations, zookeeper_hosts
from ejpy.errors import ConfigError

DEFAULT_NAMESPACE = "/ejpy"
SESSION_TIMEOUT_SECONDS = {"zookeeper": 10.0, "sqlite": 5.0, "memory": 10.0}
SESSION_TIMEOUT_RANGE = (timedelta(seconds=1), timedelta(minutes=5))

# Not `urllib.parse.urlsplit`: from Python 3.13 on it refuses an IPv6 address behind another host.
_PARTS = re.compile(r"(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?")


@dataclass(frozen=True, slots=True)
class RegistryAddress:
    """A registry URL, taken apart."""

    scheme: str
    location: str
    """ZooKeeper: the hosts; SQLite: the database URL that SQLAlchemy takes; memory: empty."""
    namespace: str
    """Starts with "/", has no trailing "/"."""
    session_timeout_seconds: float
    credentials: tuple[str, str] | None = None


def parse_url(url: str) -> RegistryAddress:
    """Take a registry URL apart. Raises ConfigError with what is wrong, one line for each wrong host."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SESSION_TIMEOUT_SECONDS:
        known = ", ".join(f"{name}://" for name in SESSION_TIMEOUT_SECONDS)
        raise ConfigError([f"registry: {_masked(url)!r} is not a registry URL; it starts with one of {known}"])
    parts = _PARTS.fullmatch(rest)
    if parts is None:
        raise ConfigError(["registry: '#' in the URL must be written as %23"])
    authority, path = parts["authority"], parts["path"]
    options = dict(parse_qsl(parts["query"] or "", keep_blank_values=True))
    timeout = _session_timeout(options.pop("session_timeout", None), scheme)
    credentials = None
    if scheme == "zookeeper":
        user_info, at, location = authority.rpartition("@")
        namespace = path
        if at:
            user, colon, password = user_info.partition(":")
            if not colon or not user:
                raise ConfigError(["registry: the identity in the URL must be user:password@"])
            credentials = (unquote(user), unquote(password))
        if not location:
            raise ConfigError(["registry: no host; expected zookeeper://host:2181/namespace"])
        _check_hosts(location, rest[len(authority) :])
    else:
        namespace = options.pop("namespace", "")
        location = "" if scheme == "memory" else f"sqlite://{authority}{path}"
        if scheme == "sqlite" and (authority or len(path) < 2):
            raise ConfigError(["registry: no file; expected sqlite:///relative/path.db or sqlite:////absolute/path.db"])
    if options:
        raise ConfigError(
            [f"registry: unknown option {', '.join(sorted(options))} in the URL; known: session_timeout, namespace"]
        )
    return RegistryAddress(scheme, location, _namespace(namespace), timeout, credentials)


def _check_hosts(location: str, behind: str) -> None:
    try:
        zookeeper_hosts.parse_hosts(location)
    except ConfigError as error:
        if "@" in behind:  # the hosts stand there: what was taken for them is the beginning of the identity
            raise ConfigError(["registry: in the identity of the URL '/' must be written as %2F, '?' as %3F"]) from None
        raise ConfigError([f"registry: {problem}" for problem in error.problems]) from error


def _session_timeout(text: str | None, scheme: str) -> float:
    if text is None:
        return SESSION_TIMEOUT_SECONDS[scheme]
    try:
        timeout = durations.parse(text)
    except ValueError as error:
        raise ConfigError([f"registry: session_timeout: {error}"]) from error
    low, high = SESSION_TIMEOUT_RANGE
    if not low <= timeout <= high:
        raise ConfigError([f"registry: session_timeout: {text} is out of range; allowed: 1s to 5m"])
    return timeout.total_seconds()


def _namespace(path: str) -> str:
    parts = [part for part in path.split("/") if part]
    if any(part in (".", "..") or part == "zookeeper" for part in parts):
        raise ConfigError([f"registry: {path!r} cannot be a namespace; use a name such as /ejpy"])
    return "/" + "/".join(parts) if parts else DEFAULT_NAMESPACE


def _masked(url: str) -> str:
    """Without what could be a password."""
    _, at, tail = url.rpartition("@")
    return f"…@{tail}" if at else url
