"""Registry URLs: what they mean, and that every mistake is one line without the password."""

from __future__ import annotations

import pytest

from ejpy.config.registry_url import RegistryAddress, parse_url
from ejpy.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("zookeeper://zk:2181/shop", RegistryAddress("zookeeper", "zk:2181", "/shop", 10.0)),
        ("zookeeper://a:1,b:2,c/x/y/?session_timeout=6s", RegistryAddress("zookeeper", "a:1,b:2,c", "/x/y", 6.0)),
        ("zookeeper://zk//shop/", RegistryAddress("zookeeper", "zk", "/shop", 10.0)),
        ("zookeeper://zk", RegistryAddress("zookeeper", "zk", "/ejpy", 10.0)),
        ("zookeeper://me:p%40ss%3A@zk/n", RegistryAddress("zookeeper", "zk", "/n", 10.0, ("me", "p@ss:"))),
        ("zookeeper://zk1,[::1]:2183/n", RegistryAddress("zookeeper", "zk1,[::1]:2183", "/n", 10.0)),
        ("sqlite:///var/ejpy.db", RegistryAddress("sqlite", "sqlite:///var/ejpy.db", "/ejpy", 5.0)),
        ("sqlite:////tmp/x.db?namespace=shop", RegistryAddress("sqlite", "sqlite:////tmp/x.db", "/shop", 5.0)),
        ("memory://", RegistryAddress("memory", "", "/ejpy", 10.0)),
    ],
)
def test_meaning(url: str, address: RegistryAddress) -> None:
    """G10: a namespace with slashes at its ends is normalised."""
    assert parse_url(url) == address


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "not a registry URL"),
        ("zk:2181", "starts with one of zookeeper://"),
        ("redis://x", "not a registry URL"),
        ("zookeeper:///shop", "no host"),
        ("zookeeper://secret@zk/shop", "user:password"),
        ("zookeeper://zk/zookeeper", "cannot be a namespace"),
        ("zookeeper://zk/a/../b", "cannot be a namespace"),
        ("zookeeper://zk/shop?sesion_timeout=3s", "unknown option sesion_timeout"),
        ("zookeeper://zk/shop?session_timeout=soon", "session_timeout"),
        ("zookeeper://zk/shop?session_timeout=10ms", "out of range"),
        ("zookeeper://zk:2181,/shop", "registry: ZooKeeper servers 'zk:2181,': entry 2 (''): it is empty"),
        ("zookeeper://zk:port/shop", "entry 1 ('zk:port'): the port must be a number"),
        ("zookeeper://[::1/shop", "IPv6 address in brackets"),
        ("zookeeper://zk/shop#x", "'#' in the URL must be written as %23"),
        ("sqlite://", "no file"),
        ("sqlite://host/x.db", "no file"),
    ],
)
def test_mistakes_are_one_line(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_url(url)
    [problem] = raised.value.problems
    assert says in problem
    assert "\n" not in problem


def test_every_wrong_host_is_named() -> None:
    """G10."""
    with pytest.raises(ConfigError) as raised:
        parse_url("zookeeper://zk1:x,zk2,,zk3:y/shop")
    assert len(raised.value.problems) == 3


@pytest.mark.parametrize(
    "url",
    [
        "zookeper://user:hunter2@zk/shop",
        "zookeeper://user:hunter2/x@zk/shop",
        "zookeeper://user:hunter2?x@zk/shop",
        "zookeeper://user:hunter2#x@zk/shop",
    ],
)
def test_a_password_is_not_repeated(url: str) -> None:
    """K5."""
    with pytest.raises(ConfigError) as raised:
        parse_url(url)
    assert "hunter2" not in str(raised.value)
