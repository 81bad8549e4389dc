"""The handlers that post to a chat, against a real HTTP server."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from urllib.parse import parse_qs, urlsplit

import pytest

from ejpy.error_handlers import HandlerSettings, JobErrorHandler, handler_class, problems_of
from ejpy.errors import EjpyError
from tests.unit.error_handlers.failures import SetClock, failure, in_a_thread
from tests.unit.error_handlers.servers import Dripping, Silent, Webhook

TOKEN = "t0ken-of-the-robot"
OK = b'{"errcode":0,"errmsg":"ok"}'


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def made(type_name: str, address: str, clock: SetClock, **props: str) -> JobErrorHandler:
    given = {f"{type_name.lower()}.{name}": value for name, value in {"webhook": address, **props}.items()}
    assert problems_of(HandlerSettings(type_name, given)) == []
    return handler_class(type_name)(given, clock)


@pytest.mark.parametrize("type_name", ["WECHAT", "DINGTALK"])
def test_wechat_and_dingtalk_post_a_text_as_json(type_name: str, clock: SetClock) -> None:
    with Webhook() as server:
        made(type_name, f"{server.address}/robot/send?access_token={TOKEN}", clock).handle(failure(suppressed=4))
    [post] = server.posted
    assert post.path == f"/robot/send?access_token={TOKEN}"
    assert post.headers["Content-Type"].startswith("application/json")
    assert list(post.document) == ["msgtype", "text"]
    assert post.document["msgtype"] == "text"
    text = post.document["text"]["content"]
    for part in (
        "Job 'shop', item 3 failed: ValueError: no such order",
        "2026-03-01T12:00:30+00:00",
        "attempt 2, owner_lost",
        "10.0.0.7@-@4242.k3",
        "shop/2026-03-01T12:00:30+00:00/3, token 17",
        "4 more with the same error",
        "Traceback (most recent call last)",
    ):
        assert part in text


def test_slack_posts_a_text_in_which_its_marks_are_escaped(clock: SetClock) -> None:
    with Webhook(b"ok") as server:
        made("SLACK", f"{server.address}/services/T0/B0/{TOKEN}", clock).handle(failure(error="<!channel> & more"))
    [post] = server.posted
    assert list(post.document) == ["text"]
    assert "&lt;!channel&gt; &amp; more" in post.document["text"]


@pytest.mark.parametrize(("type_name", "most"), [("WECHAT", 2048), ("DINGTALK", 20_000), ("SLACK", 35_000)])
def test_a_long_text_is_cut_to_what_the_service_takes(type_name: str, most: int, clock: SetClock) -> None:
    with Webhook(b"ok" if type_name == "SLACK" else OK) as server:
        made(type_name, server.address, clock).handle(failure(traceback="ä" * 50_000))
    document = server.posted[0].document
    text = document["text"] if type_name == "SLACK" else document["text"]["content"]
    assert most - 4 < len(text.encode()) <= most
    assert text.startswith("Job 'shop'")
    assert text.endswith("ä…")


def test_dingtalk_begins_with_the_keyword_and_signs_the_address(clock: SetClock) -> None:
    clock.seconds = 12.5
    with Webhook() as server:
        handler = made("DINGTALK", f"{server.address}/send?access_token=x", clock, keyword="ALARM", secret="SEC123")
        handler.handle(failure())
    [post] = server.posted
    assert post.document["text"]["content"].startswith("ALARM Job 'shop'")
    query = parse_qs(urlsplit(post.path).query, strict_parsing=True)
    timestamp = str(round(clock.now().timestamp() * 1000))
    assert query["timestamp"] == [timestamp]
    # The signature as the service's documentation tells it: HMAC-SHA256 of "timestamp\nsecret" with the secret as key.
    digest = hmac.new(b"SEC123", f"{timestamp}\nSEC123".encode(), hashlib.sha256).digest()
    assert query["sign"] == [base64.b64encode(digest).decode()]
    assert query["access_token"] == ["x"]


def test_without_a_secret_the_address_is_used_as_it_is(clock: SetClock) -> None:
    with Webhook() as server:
        made("DINGTALK", f"{server.address}/send", clock).handle(failure())
    assert server.posted[0].path == "/send"


@pytest.mark.parametrize(
    ("type_name", "status", "answer"),
    [
        ("WECHAT", 200, b'{"errcode":93000,"errmsg":"invalid webhook url"}'),
        ("WECHAT", 500, OK),
        ("WECHAT", 200, b"<html>"),
        ("WECHAT", 200, b"[]"),
        ("WECHAT", 200, b'{"errmsg":"ok"}'),
        ("WECHAT", 200, b'{"errcode":false}'),
        ("DINGTALK", 200, b'{"errcode":310000,"errmsg":"keywords not in content"}'),
        ("DINGTALK", 201, OK),
        ("SLACK", 403, b"invalid_token"),
        ("SLACK", 200, b"<html>"),
    ],
)
def test_an_answer_that_does_not_confirm_is_an_error_that_tells_the_answer(
    type_name: str, status: int, answer: bytes, clock: SetClock
) -> None:
    with Webhook(answer, status) as server:
        handler = made(type_name, f"{server.address}/{TOKEN}", clock)
        with pytest.raises(EjpyError, match=f"did not take the message: HTTP {status}, {re.escape(answer.decode())}") as raised:
            handler.handle(failure())
    assert len(server.posted) == 1
    assert TOKEN not in str(raised.value)


def test_a_redirection_is_not_followed(clock: SetClock) -> None:
    with Webhook() as elsewhere, Webhook(b"", 302, {"Location": f"{elsewhere.address}/x"}) as server:
        with pytest.raises(EjpyError, match="HTTP 302, no text"):
            made("WECHAT", f"{server.address}/{TOKEN}", clock).handle(failure())
        assert elsewhere.posted == []


def test_a_server_that_is_not_there_is_an_error_without_the_address(clock: SetClock) -> None:
    with Webhook() as server:
        address = server.address
    with pytest.raises(EjpyError, match="WeChat gave no answer: ConnectionRefusedError") as raised:
        made("WECHAT", f"{address}/{TOKEN}", clock).handle(failure())
    assert TOKEN not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_server_that_does_not_answer_is_given_up_after_the_read_time_out(clock: SetClock) -> None:
    """The time-out for connecting is a minute here, and would be too late."""
    with Silent() as server:
        limits = {"connectTimeoutMilliseconds": "60000", "readTimeoutMilliseconds": "50"}
        handler = made("WECHAT", f"http://127.0.0.1:{server.port}/{TOKEN}", clock, **limits)
        with in_a_thread(lambda: handler.handle(failure())) as raised:
            pass
    assert [str(error) for error in raised] == ["WeChat gave no answer: TimeoutError: timed out"]


@pytest.mark.parametrize(
    ("begin", "drip"),
    [
        (b"HTTP/1.1 ", b"2"),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n", b"x"),
        (b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\nok", b"\n"),
    ],
    ids=["status line", "headers", "body", "chunks", "body that ends with the connection"],
)
def test_a_server_that_drips_is_given_up_when_the_time_for_the_whole_delivery_is_over(
    begin: bytes, drip: bytes, clock: SetClock
) -> None:
    """No single wait is ever long enough for the read time-out, and 64 KiB would take ten minutes."""
    with Dripping(begin, drip) as server:
        limits = {"connectTimeoutMilliseconds": "100", "readTimeoutMilliseconds": "100"}
        handler = made("SLACK", f"http://127.0.0.1:{server.port}/{TOKEN}", clock, **limits)
        with in_a_thread(lambda: handler.handle(failure())) as raised:
            pass
    assert [str(error) for error in raised] == ["Slack gave no answer within 0.3 s"]


@pytest.mark.parametrize("host", ["a..b", "a" * 70])
def test_a_name_that_no_host_can_have_is_an_error_as_one_that_is_not_there(host: str, clock: SetClock) -> None:
    with pytest.raises(EjpyError, match="Slack gave no answer: "):
        made("SLACK", f"http://{host}/{TOKEN}", clock).handle(failure())


def test_an_answer_that_is_no_http_is_an_error_without_the_address(clock: SetClock) -> None:
    with Webhook(status=99) as server, pytest.raises(EjpyError, match=r"no answer: BadStatusLine$") as raised:
        made("WECHAT", f"{server.address}/{TOKEN}", clock).handle(failure())
    assert TOKEN not in str(raised.value)


@pytest.mark.parametrize("type_name", ["WECHAT", "DINGTALK", "SLACK"])
def test_settings_are_checked_all_at_once_and_no_address_is_shown(type_name: str) -> None:
    prefix = type_name.lower()
    assert problems_of(HandlerSettings(type_name, {})) == [f"props: {prefix}.webhook: required; give the address of the webhook"]
    props = {
        f"{prefix}.webhook": f"ftp://host/{TOKEN}",
        f"{prefix}.connectTimeoutMilliseconds": "0",
        f"{prefix}.readTimeoutMilliseconds": "3s",
    }
    problems = problems_of(HandlerSettings(type_name, props))
    assert problems == [
        f"props: {prefix}.webhook: not an address that begins with https:// or http:// (it is not shown here)",
        f"props: {prefix}.connectTimeoutMilliseconds: '0' is not allowed; allowed: a whole number from 1 to 60000",
        f"props: {prefix}.readTimeoutMilliseconds: '3s' is not allowed; allowed: a whole number from 1 to 60000",
    ]


@pytest.mark.parametrize(
    "address", ["https://", "hook", "https://h:port/x", "https://h/a b", "https://h/\n", "https://[h/x", "https://h/ä"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    assert len(problems_of(HandlerSettings("SLACK", {"slack.webhook": address}))) == (0 if address == "https://h/\n" else 1)
