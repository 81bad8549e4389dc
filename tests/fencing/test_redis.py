"""Fencing in Redis, by itself and as a node of a cluster."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from ejpy.errors import StaleAttempt, UnreadableToken
from ejpy.fencing.redis import run_fenced, set_value, token_key
from ejpy.job import ShardContext
from tests.fencing import servers
from tests.fencing.old_owner import OldOwner
from tests.support.waiting import PATIENCE_SECONDS, wait_until

TOKEN_KEY = "ejpy-token:{report}:report"


@pytest.fixture(params=[False, True], ids=["bytes", "text"])
def client(redis_port: int, request: pytest.FixtureRequest) -> Iterator[Any]:
    with redis.Redis(port=redis_port, decode_responses=request.param) as client:
        client.flushall()
        yield client


def text(reply: Any) -> str:
    return reply.decode() if isinstance(reply, bytes) else str(reply)


def stored(client: Any) -> tuple[str, str]:
    return text(client.get("report")), text(client.get(TOKEN_KEY))


def test_a_paused_old_owner_that_wakes_is_refused(client: Any, redis_port: int) -> None:
    set_value(client, "report", "before", 1)
    with OldOwner("redis_after_reading", str(redis_port), 41) as old:
        set_value(client, "report", "by the new owner", 57)
        assert old.wake() == "StaleAttempt"
    assert stored(client) == ("by the new owner", "57")


def test_the_first_one_sets_it_and_the_same_may_come_again(client: Any) -> None:
    for value in ("first", "again"):
        set_value(client, "report", value, 5)
        assert stored(client) == (value, "5")


def test_a_newer_one_takes_over_and_an_older_one_is_refused(client: Any) -> None:
    set_value(client, "report", "by 9", 9)
    set_value(client, "report", "by 10", ShardContext.for_test(fencing_token=10))
    with pytest.raises(StaleAttempt, match=r"Redis key 'report': token 9 of test-job/.* is older than 10"):
        set_value(client, "report", "by 9", ShardContext.for_test(fencing_token=9))
    assert stored(client) == ("by 10", "10")


@pytest.mark.parametrize("token", [2**53 + 1, 2**63 - 1])
def test_tokens_that_are_no_numbers_of_lua(client: Any, token: int) -> None:
    set_value(client, "report", "newer", token)
    with pytest.raises(StaleAttempt):
        set_value(client, "report", "older", token - 1)
    assert stored(client) == ("newer", str(token))


def test_a_script_that_the_server_has_forgotten_is_sent_again(client: Any) -> None:
    set_value(client, "report", "a", 5)
    client.script_flush()
    set_value(client, "report", "b", 6)
    assert stored(client) == ("b", "6")


def test_clients_that_come_at_once_leave_the_newest(client: Any) -> None:
    tokens = random.Random(4711).sample(range(1, 10_000), 200)
    refused: list[int] = []

    def write(mine: list[int]) -> None:
        for token in mine:
            try:
                set_value(client, "report", f"by {token}", token)
            except StaleAttempt:
                refused.append(token)

    threads = [threading.Thread(target=write, args=(tokens[first::4],)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert stored(client) == (f"by {max(tokens)}", str(max(tokens)))
    assert max(tokens) not in refused
    assert refused


@pytest.mark.parametrize("garbage", ["", "abc", "007", "-1", "1.5", " 5", "5\n", "9" * 19, "1" * 2000, b"\xff\0"])
def test_a_stored_token_that_is_none_lets_nobody_in(client: Any, garbage: str | bytes) -> None:
    client.set("report", "before")
    client.set(TOKEN_KEY, garbage)
    with pytest.raises(UnreadableToken, match="nothing was written"):
        set_value(client, "report", "after", 5)
    assert text(client.get("report")) == "before"


def test_a_token_key_of_another_type_lets_nobody_in(client: Any) -> None:
    client.rpush(TOKEN_KEY, "5")
    with pytest.raises(UnreadableToken, match=r"'WRONGTYPE .*SET 'ejpy-token:\{report\}:report' to the token of the newest"):
        set_value(client, "report", "after", 5)
    assert client.get("report") is None


def test_commands_run_as_one_step_or_not_at_all(client: Any) -> None:
    commands = [("HSET", "totals", "north", 120), ("HGET", "totals", "south"), ("HGETALL", "totals"), ("EXPIRE", "totals", 60)]
    replies = run_fenced(client, "totals", commands, 7, keys=["totals"])
    assert [replies[0], replies[1], [text(word) for word in replies[2]], replies[3]] == [1, None, ["north", "120"], 1]
    with pytest.raises(StaleAttempt):
        run_fenced(client, "totals", [("DEL", "totals")], 6, keys=["totals"])
    assert client.exists("totals")
    assert run_fenced(client, "totals", [], 8, keys=[]) == []
    assert text(client.get("ejpy-token:{totals}:totals")) == "8"


def test_values_are_stored_as_they_are(client: Any, redis_port: int) -> None:
    value = bytes(range(256)) + "ü\0".encode()
    set_value(client, "report", value, 5)
    with redis.Redis(port=redis_port) as raw:
        assert raw.get("report") == value


def test_a_command_that_fails_is_an_error_of_the_client(client: Any) -> None:
    with pytest.raises(redis.ResponseError):
        run_fenced(client, "report", [("SET", "report", "a"), ("LPUSH", "report", "b")], 5, keys=["report"])
    assert stored(client) == ("a", "5")


@pytest.mark.parametrize("key", ["", "a}b", "{}x", "{}", "}{"])
def test_a_key_whose_slot_nothing_else_can_share_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="cannot be guarded"):
        token_key(key)


def test_no_two_keys_share_a_token() -> None:
    keys = ["x", "{x}", "{x}x", "x{x}", "{x}{x}", "a{b", "{", "{x}:x", "x:x", ":x", "ejpy-token:{x}:x"]
    assert len({token_key(key) for key in keys}) == len(keys)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with (
        servers.redis_server("--cluster-enabled", "yes", "--cluster-port", str(servers.free_port())) as port,
        redis.Redis(port=port, decode_responses=True) as client,
    ):
        client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        wait_until(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok", PATIENCE_SECONDS, "all slots served")
        yield client


@pytest.mark.parametrize("key", ["x", "{x}", "orders{beijing}", "{a}{b}", "a{b", "{", "Ü{é}"])
def test_key_and_token_are_in_one_slot_of_a_cluster(cluster: Any, key: str) -> None:
    slots = {cluster.execute_command("CLUSTER KEYSLOT", name) for name in (key, token_key(key))}
    assert len(slots) == 1
    set_value(cluster, key, "by 7", 7)
    with pytest.raises(StaleAttempt):
        set_value(cluster, key, "by 6", 6)
    assert cluster.get(key) == "by 7"


def test_with_a_client_for_a_cluster(cluster: Any) -> None:
    port = cluster.connection_pool.connection_kwargs["port"]
    client = redis.RedisCluster(host=servers.HOST, port=port, decode_responses=True)
    commands = [("SET", "orders{beijing}", "7"), ("INCR", "count{beijing}")]
    keys = ["orders{beijing}", "count{beijing}"]
    assert run_fenced(client, "orders{beijing}", commands, 7, keys=keys)[1] == 1
    with pytest.raises(StaleAttempt):
        run_fenced(client, "orders{beijing}", commands, 6, keys=keys)
    client.close()
