"""Registry URLs: which registry, where, and under which namespace.

    zookeeper://[user:password@]host[:2181][,host2:2181]/namespace[?session_timeout=10s]
    sqlite:///relative/path.db   sqlite:////absolute/path.db   [?namespace=ejpy&session_timeout=5s]
    memory://

`user:password` is ZooKeeper's digest identity; with it every node is readable and writable by that identity only.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import parse_qsl, unquote, urlsplit

from ejpy.config import durations
from ejpy.errors import ConfigError

DEFAULT_NAMESPACE = "/ejpy"
SESSION_TIMEOUT_SECONDS = {"zookeeper": 10.0, "sqlite": 5.0, "memory": 10.0}
SESSION_TIMEOUT_RANGE = (timedelta(seconds=1), timedelta(minutes=5))


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
    """Take a registry URL apart. Raises ConfigError with one line that says what is wrong."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SESSION_TIMEOUT_SECONDS:
        known = ", ".join(f"{name}://" for name in SESSION_TIMEOUT_SECONDS)
        raise ConfigError([f"registry: {_masked(url)!r} is not a registry URL; it starts with one of {known}"])
    split = urlsplit(f"//{rest}" if scheme == "zookeeper" else f"x://{rest}")
    options = dict(parse_qsl(split.query, keep_blank_values=True))
    timeout = _session_timeout(options.pop("session_timeout", None), scheme)
    credentials = None
    if scheme == "zookeeper":
        user_info, at, location = split.netloc.rpartition("@")
        namespace = split.path
        if at:
            user, colon, password = user_info.partition(":")
            if not colon or not user:
                raise ConfigError(["registry: the identity in the URL must be user:password@"])
            credentials = (unquote(user), unquote(password))
        if not location:
            raise ConfigError(["registry: no host; expected zookeeper://host:2181/namespace"])
    else:
        namespace = options.pop("namespace", "")
        location = "" if scheme == "memory" else f"sqlite://{split.netloc}{split.path}"
        if scheme == "sqlite" and (split.netloc or len(split.path) < 2):
            raise ConfigError(["registry: no file; expected sqlite:///relative/path.db or sqlite:////absolute/path.db"])
    if options:
        raise ConfigError(
            [f"registry: unknown option {', '.join(sorted(options))} in the URL; known: session_timeout, namespace"]
        )
    return RegistryAddress(scheme, location, _namespace(namespace), timeout, credentials)


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
