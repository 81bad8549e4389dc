"""Fencing in an object store."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.exceptions import ClientError
from urllib3.response import HTTPResponse

from ejpy.errors import EjpyError, StaleAttempt, UnreadableToken
from ejpy.fencing.s3 import LOOKS, check_conditions, put_object
from ejpy.job import ShardContext
from tests.fencing.old_owner import OldOwner, s3_client
from tests.support.waiting import PATIENCE_SECONDS

BUCKET, KEY = "bucket", "report"


@pytest.fixture
def client(s3_endpoint: str) -> Any:
    client = s3_client(s3_endpoint)
    client.create_bucket(Bucket=BUCKET)
    client.delete_object(Bucket=BUCKET, Key=KEY)
    return client


def put(client: Any, token: int, body: str = "by") -> None:
    put_object(client, BUCKET, KEY, f"{body} {token}".encode(), token)


def stored(client: Any) -> tuple[str, str]:
    found = client.get_object(Bucket=BUCKET, Key=KEY)
    return found["Body"].read().decode(), found["Metadata"].get("ejpy-fencing-token")


@pytest.mark.parametrize("there", [True, False], ids=["an object", "no object"])
def test_a_paused_old_owner_that_wakes_is_refused(client: Any, s3_endpoint: str, there: bool) -> None:
    if there:
        put(client, 1)
    with OldOwner("s3_between_looking_and_putting", s3_endpoint, 41) as old:
        put(client, 57, "by the new owner,")
        assert old.wake() == "StaleAttempt"
    assert stored(client) == ("by the new owner, 57", "57")


def test_the_first_one_makes_the_object_and_the_same_may_come_again(client: Any) -> None:
    for body in ("first", "again", "again"):
        put(client, 5, body)
        assert stored(client) == (f"{body} 5", "5")


def test_a_newer_one_takes_over_and_an_older_one_is_refused(client: Any) -> None:
    put(client, 5)
    put(client, 7)
    with pytest.raises(StaleAttempt, match=r"object 'report' in bucket 'bucket': token 6 of test-job/.* is older than 7"):
        put_object(client, BUCKET, KEY, b"by 6", ShardContext.for_test(fencing_token=6))
    assert stored(client) == ("by 7", "7")


@pytest.mark.parametrize("body", [b"", b"by nobody", b"by 57", b"by 75", b"577"])
def test_a_body_without_its_token_is_refused(client: Any, body: bytes) -> None:
    with pytest.raises(ValueError, match="does not have its token 7 in it"):
        put_object(client, BUCKET, KEY, body, 7)


def test_why_the_body_must_have_the_token(client: Any) -> None:
    """The store lets one in who saw the same bytes under another token: its ETag knows of nothing else."""
    etags = {
        client.put_object(Bucket=BUCKET, Key=KEY, Body=b"same", Metadata={"ejpy-fencing-token": token})["ETag"]
        for token in ("41", "57")
    }
    assert len(etags) == 1


def test_writers_that_come_at_once_leave_the_newest(client: Any, s3_endpoint: str) -> None:
    refused: list[int] = []
    together = threading.Barrier(4)

    def write(tokens: range) -> None:
        mine = s3_client(s3_endpoint)
        together.wait(PATIENCE_SECONDS)
        for token in tokens:
            try:
                put(mine, token)
            except StaleAttempt:
                refused.append(token)

    threads = [threading.Thread(target=write, args=(range(first, 25, 4),)) for first in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert stored(client) == ("by 24", "24")
    assert 24 not in refused


def before_next_put(client: Any, *deeds: Callable[[], object]) -> None:
    """Have something done between looking and putting, one deed each time."""
    left = list(deeds)

    def act(**_: Any) -> None:
        if left:
            left.pop(0)()

    client.meta.events.register_first("before-call.s3.PutObject", act)


def test_one_that_is_overtaken_by_an_older_one_looks_again(client: Any, s3_endpoint: str) -> None:
    other = s3_client(s3_endpoint)
    put(client, 1)
    before_next_put(client, lambda: put(other, 3), lambda: put(other, 5))
    put(client, 7)
    assert stored(client) == ("by 7", "7")


def test_one_whose_object_is_deleted_meanwhile_makes_it(client: Any, s3_endpoint: str) -> None:
    other = s3_client(s3_endpoint)
    put(client, 1)
    before_next_put(client, lambda: other.delete_object(Bucket=BUCKET, Key=KEY))
    put(client, 7)
    assert stored(client) == ("by 7", "7")


def test_one_whose_reply_was_lost_puts_again(client: Any, s3_endpoint: str) -> None:
    """The client library sends the request again, and finds that its own first one has changed the ETag."""
    other = s3_client(s3_endpoint)
    put(client, 1)
    before_next_put(client, lambda: put(other, 7))
    put(client, 7)
    assert stored(client) == ("by 7", "7")


class Answers:
    """A store that refuses puts with an error before they reach it."""

    def __init__(self, client: Any, code: str, status: int, times: int) -> None:
        self.left, self.given = times, 0
        self._code, self._status = code, status
        client.meta.events.register("before-send.s3.PutObject", self)

    def __call__(self, request: Any, **_: Any) -> AWSResponse | None:
        if self.given == self.left:
            return None
        self.given += 1
        error = io.BytesIO(f"<Error><Code>{self._code}</Code></Error>".encode())
        return AWSResponse(request.url, self._status, HTTPHeaders(), HTTPResponse(error, preload_content=False))


def test_a_conflict_with_a_put_under_way_is_tried_again(client: Any) -> None:
    answers = Answers(client, "ConditionalRequestConflict", 409, times=2)
    put(client, 7)
    assert answers.given == 2
    assert stored(client) == ("by 7", "7")


def test_one_that_is_overtaken_for_ever_gives_up(client: Any) -> None:
    answers = Answers(client, "PreconditionFailed", 412, times=10 * LOOKS)
    with pytest.raises(ClientError, match="PreconditionFailed"):
        put(client, 7)
    assert answers.given == LOOKS


def test_other_errors_pass_through_at_once(client: Any) -> None:
    answers = Answers(client, "AccessDenied", 403, times=10)
    with pytest.raises(ClientError, match="AccessDenied"):
        put(client, 7)
    assert answers.given == 1


def test_a_bucket_that_is_not_there(client: Any) -> None:
    with pytest.raises(ClientError, match="NoSuchBucket"):
        put_object(client, "no-such-bucket", KEY, b"7", 7)


@pytest.mark.parametrize("garbage", [None, "", "abc", "007", "-1", "1.5", "1" * 20])
def test_an_object_without_a_token_is_not_replaced(client: Any, garbage: str | None) -> None:
    metadata = {} if garbage is None else {"ejpy-fencing-token": garbage}
    client.put_object(Bucket=BUCKET, Key=KEY, Body=b"before", Metadata=metadata)
    with pytest.raises(UnreadableToken, match=r"object 'report' in bucket 'bucket': the stored fencing token is .*Store it anew"):
        put(client, 7)
    assert stored(client) == ("before", garbage)
    client.put_object(Bucket=BUCKET, Key=KEY, Body=b"before", Metadata={"ejpy-fencing-token": "0"})
    put(client, 7)
    assert stored(client) == ("by 7", "7")


def test_further_arguments_reach_the_store(client: Any) -> None:
    arguments = {"ContentType": "text/csv", "Metadata": {"made-by": "test"}}
    put_object(client, BUCKET, KEY, b"# 7", 7, arguments=arguments)
    found = client.head_object(Bucket=BUCKET, Key=KEY)
    assert found["ContentType"] == "text/csv"
    assert found["Metadata"] == {"made-by": "test", "ejpy-fencing-token": "7"}
    assert arguments == {"ContentType": "text/csv", "Metadata": {"made-by": "test"}}


def test_a_store_that_honours_conditions(client: Any) -> None:
    check_conditions(client, BUCKET, "probe")


@pytest.mark.parametrize("ignored", ["If-None-Match", "If-Match"])
def test_a_store_that_ignores_a_condition_is_found_out(client: Any, ignored: str) -> None:
    def drop(request: Any, **_: Any) -> None:
        if ignored in request.headers:
            del request.headers[ignored]

    client.meta.events.register("before-sign.s3.PutObject", drop)
    with pytest.raises(EjpyError, match=f"the store ignores {ignored.replace('-', '')} of a put"):
        check_conditions(client, BUCKET, "probe")
