"""HTTP jobs against a real server on this machine: what is sent, what counts as failure, time-outs, and being told to stop."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ejpy.errors import ConfigError, JobCancelled
from ejpy.jobs import HttpFailed, HttpJob
from ejpy.jobs import http as http_job
from ejpy.version import __version__
from tests.unit.jobs.contexts import PATIENCE_SECONDS, Body, KindContextForTest, Logged

CONTEXT_JSON = (
    r'{"jobName":"report","taskId":"report@-@1@-@READY@-@10.0.0.7@-@4242","shardingTotalCount":3,"jobParameter":"",'
    r'"shardingItem":1,"shardingParameter":"\u00fc\u003d1"}'
)


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Web:
    """A server, and what it was asked."""

    address: str
    requests: list[Request] = field(default_factory=list)
    answering: threading.Event = field(default_factory=threading.Event)
    """Set when a handler waits for `may_answer`."""
    may_answer: threading.Event = field(default_factory=threading.Event)

    def props(self, path: str = "/ok", method: str = "GET", **more: str) -> dict[str, str]:
        return {"http.uri": self.address + path, "http.method": method, **{f"http.{name}": text for name, text in more.items()}}


class Handler(BaseHTTPRequestHandler):
    """Its path says how it answers."""

    protocol_version = "HTTP/1.1"
    web: Web

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        headers = {name.lower(): text for name, text in self.headers.items()}
        self.web.requests.append(Request(self.command, self.path, headers, body))
        kind, _, rest = self.path.partition("?")[0][1:].partition("/")
        getattr(self, f"answer_{kind}")(rest)

    do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = do_GET

    def log_message(self, format: str, *arguments: Any) -> None: ...

    def begin(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()

    def answer_ok(self, rest: str) -> None:
        self.begin(200, Content_Length="2")
        if self.command != "HEAD":
            self.wfile.write(b"ok")

    def answer_status(self, status: str) -> None:
        body = b"" if status in ("204", "304") else b"line one\n\x1b[31mline two " + b"x" * 100_000
        self.begin(int(status), **({} if status in ("204", "304") else {"Content_Length": str(len(body))}))
        self.close_connection = True
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer_to(self, rest: str) -> None:
        """/to/302/ok: redirect to /ok."""
        status, _, where = rest.partition("/")
        self.begin(int(status), Location=f"/{where}", Content_Length="0")

    def answer_away(self, rest: str) -> None:
        self.begin(302, Location=f"{rest}://127.0.0.1/x", Content_Length="0")

    def answer_elsewhere(self, location: str) -> None:
        self.begin(302, Location=location, Content_Length="0")

    def answer_nowhere(self, rest: str) -> None:
        self.begin(302, Content_Length="0")

    def answer_round(self, rest: str) -> None:
        self.begin(302, Location="/round", Content_Length="0")

    def answer_chunks(self, number: str) -> None:
        """Works as long as somebody reads."""
        self.begin(200, Transfer_Encoding="chunked")
        for _ in range(int(number)):
            self.wfile.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")
        self.web.may_answer.set()

    def answer_broken(self, how: str) -> None:
        if how == "length":
            self.begin(200, Content_Length="100")
            self.wfile.write(b"begun")
        elif how == "chunks":
            self.begin(200, Transfer_Encoding="chunked")
            self.wfile.write(b"5\r\nbegun\r\n")
        elif how == "before":
            pass
        else:
            self.wfile.write(b"220 mail.example ESMTP\r\n\r\n")
        self.close_connection = True

    def answer_after(self, when: str) -> None:
        """Waits for the test, before the answer or in the middle of it."""
        if when in ("middle", "unmeasured"):
            self.begin(200, **({"Content_Length": "100"} if when == "middle" else {"Connection": "close"}))
            self.wfile.write(b"begun")
        self.web.answering.set()
        self.web.may_answer.wait(PATIENCE_SECONDS)
        self.close_connection = True


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are what is tested."""


def serve(server: Server, scheme: str) -> Iterator[Web]:
    web = Web(f"{scheme}://localhost:{server.server_address[1]}")
    server.RequestHandlerClass = type("HandlerOfTest", (Handler,), {"web": web})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield web
    web.may_answer.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def web() -> Iterator[Web]:
    yield from serve(Server(("127.0.0.1", 0), Handler), "http")


def failure_of(props: dict[str, str]) -> HttpFailed:
    context = KindContextForTest(props)
    with pytest.raises(HttpFailed) as failed:
        HttpJob().execute(context)
    assert context.requests == 0
    return failed.value


# ---- what is sent -------------------------------------------------------------------------------------------------


def test_the_request_carries_elasticjobs_context_and_what_only_ejpy_knows(web: Web, log: Logged) -> None:
    context = KindContextForTest(web.props("/ok/x?token=secret"), sharding_parameter="ü=1", job_name="report")
    HttpJob().execute(context)
    (request,) = web.requests
    assert (request.method, request.path, request.body) == ("GET", "/ok/x?token=secret", b"")
    assert request.headers["shardingcontext"] == CONTEXT_JSON
    assert json.loads(CONTEXT_JSON)["shardingParameter"] == "ü=1"
    assert {name: text for name, text in request.headers.items() if name.startswith("ejpy-")} == {
        "ejpy-scheduled-time": "2026-03-01T12:00:30Z",
        "ejpy-attempt": "2",
        "ejpy-reason": "owner_lost",
        "ejpy-fencing-token": "17",
        "ejpy-idempotency-key": "report/2026-03-01T12:00:30+00:00/1",
    }
    assert request.headers["user-agent"] == f"ejpy/{__version__}"
    assert "content-type" not in request.headers
    assert log.lines == [f"GET {web.address}/ok/x: status 200, 2 bytes"]


def test_a_job_name_that_no_header_holds_is_escaped(web: Web) -> None:
    HttpJob().execute(KindContextForTest(web.props(), job_name="北 %"))
    assert web.requests[0].headers["ejpy-idempotency-key"] == "%E5%8C%97%20%25/2026-03-01T12:00:30+00:00/1"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_data_goes_with_methods_that_take_it(web: Web, method: str) -> None:
    HttpJob().execute(KindContextForTest(web.props(method=method.lower(), data="a=ü")))
    (request,) = web.requests
    assert (request.method, request.body) == (method, "a=ü".encode())
    assert request.headers["content-type"] == "application/x-www-form-urlencoded"


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_and_not_with_others(web: Web, method: str) -> None:
    HttpJob().execute(KindContextForTest(web.props(method=method, data="a=1")))
    assert (web.requests[0].method, web.requests[0].body) == (method, b"")


def test_the_content_type_can_be_given(web: Web) -> None:
    given = {**web.props(method="POST", data="{}"), "http.content.type": "application/json; charset=utf-8"}
    HttpJob().execute(KindContextForTest(given))
    assert web.requests[0].headers["content-type"] == "application/json; charset=utf-8"


def test_a_post_without_data_has_the_length_0(web: Web) -> None:
    HttpJob().execute(KindContextForTest(web.props(method="POST")))
    assert web.requests[0].headers["content-length"] == "0"


def test_both_names_of_the_address_are_taken(web: Web) -> None:
    """ElasticJob's documentation has one, its code the other."""
    HttpJob().execute(KindContextForTest({"http.url": f"{web.address}/ok", "http.method": "GET"}))
    assert len(web.requests) == 1


def test_proxies_of_the_environment_are_not_used(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    HttpJob().execute(KindContextForTest(web.props()))
    assert len(web.requests) == 1


# ---- answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 204, 206, 304])
def test_a_status_below_400_is_success(web: Web, status: int) -> None:
    HttpJob().execute(KindContextForTest(web.props(f"/status/{status}")))
    assert len(web.requests) == 1


@pytest.mark.parametrize(
    ("status", "reason"), [(400, "Bad Request"), (404, "Not Found"), (500, "Internal Server Error"), (599, "")]
)
def test_a_status_of_400_and_more_is_a_failure_with_the_beginning_of_the_answer(web: Web, status: int, reason: str) -> None:
    """In ElasticJob it is a success with a warning."""
    failed = failure_of(web.props(f"/status/{status}?token=secret"))
    assert failed.status == status
    told = " ".join(f"status {status} {reason}".split())
    begin = f"GET {web.address}/status/{status}: {told}: line one \\x1b[31mline two xxx"
    assert str(failed)[: len(begin)] == begin
    assert len(str(failed)) < 500
    assert len(web.requests) == 1


def test_a_failed_head_has_no_text(web: Web) -> None:
    assert str(failure_of(web.props("/status/404", "HEAD"))).endswith("/status/404: status 404 Not Found")


@pytest.mark.parametrize("how", ["length", "chunks", "before", "greeting"])
def test_an_answer_that_breaks_off_or_is_none_is_a_failure(web: Web, how: str) -> None:
    message = str(failure_of(web.props(f"/broken/{how}")))
    if how == "length":
        assert message.endswith("status 200, but the answer broke off after 5 bytes")
    else:
        assert "no proper answer: " in message
        assert message.endswith("the request may have had its effect")
    assert len(web.requests) == 1


def test_an_answer_is_read_to_its_end_since_the_server_may_work_as_long(web: Web, log: Logged) -> None:
    HttpJob().execute(KindContextForTest(web.props("/chunks/64")))
    assert web.may_answer.wait(PATIENCE_SECONDS)
    assert log.lines[-1].endswith(f"status 200, {64 * 0x10000} bytes")


def test_an_endless_answer_is_broken_off(web: Web, log: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_job, "ANSWER_BYTES", 1_000_000)
    HttpJob().execute(KindContextForTest(web.props("/chunks/1000000")))
    assert log.lines[-2].endswith("the answer was broken off after 1000000 bytes")
    assert log.lines[-1].endswith("status 200, 1000000 bytes")


# ---- redirections -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_get_and_head_follow_redirections_with_their_headers(web: Web, status: int, method: str) -> None:
    HttpJob().execute(KindContextForTest(web.props(f"/to/{status}/to/302/ok", method)))
    assert [(request.method, request.path) for request in web.requests][1:] == [(method, "/to/302/ok"), (method, "/ok")]
    assert web.requests[-1].headers["ejpy-fencing-token"] == "17"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_others_fail_since_following_would_drop_what_they_are(web: Web, status: int, method: str) -> None:
    failed = failure_of(web.props(f"/to/{status}/ok", method, data="x"))
    assert str(failed) == (
        f"{method} {web.address}/to/{status}/ok: redirected ({status}) to '{web.address}/ok', which only GET and HEAD follow"
    )
    assert (failed.status, len(web.requests)) == (status, 1)


def test_a_redirection_in_a_circle_ends(web: Web) -> None:
    assert str(failure_of(web.props("/round"))) == f"GET {web.address}/round: redirected more than 10 times"
    assert len(web.requests) == 11


@pytest.mark.parametrize("scheme", ["file", "ftp"])
def test_only_http_is_followed(web: Web, scheme: str) -> None:
    assert "redirected (302) to where nothing can be asked: is not allowed; allowed: an address" in str(
        failure_of(web.props(f"/away/{scheme}"))
    )


@pytest.mark.parametrize("location", ["http://[::1", "//[x]/", "http://h:99999/", "http://h:port/", "http://%zz:0/"])
def test_a_redirection_to_what_is_no_address_is_a_failure(web: Web, location: str) -> None:
    """Joining it with the address asked raises a ValueError for some."""
    failed = failure_of(web.props(f"/elsewhere/{location}"))
    assert "redirected (302) to where nothing can be asked: " in str(failed)
    assert failed.status == 302


def test_a_redirection_to_nowhere_is_a_failure(web: Web) -> None:
    assert str(failure_of(web.props("/nowhere"))).endswith("status 302 without a Location")


# ---- no answer --------------------------------------------------------------------------------------------------------


def test_a_server_that_does_not_answer_is_a_failure_that_warns_of_its_effect(web: Web) -> None:
    props = {**web.props("/after/before"), **LONG, "http.read.timeout.milliseconds": "50"}
    assert str(failure_of(props)).endswith("/after/before: no answer within 0.05 s; the request may have had its effect")
    assert len(web.requests) == 1


def test_an_answer_that_stops_in_the_middle_is_a_failure(web: Web) -> None:
    props = {**web.props("/after/middle"), **LONG, "http.read.timeout.milliseconds": "50"}
    assert "no answer within 0.05 s" in str(failure_of(props))


def test_the_connection_has_a_limit_of_its_own() -> None:
    """A full backlog: the system lets no further connection in, and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, full(server) as address:
        props = {"http.uri": address, "http.method": "GET", "http.connect.timeout.milliseconds": "50"}
        assert str(failure_of(props)) == f"GET {address}: no connection within 0.05 s"


class full:
    """Fill a server's backlog with connections that nobody accepts."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._waiting: list[socket.socket] = []

    def __enter__(self) -> str:
        where = self._server.getsockname()
        while True:
            connection = socket.socket()
            connection.settimeout(0.2)
            self._waiting.append(connection)
            try:
                connection.connect(where)
            except TimeoutError:
                return f"http://127.0.0.1:{where[1]}/x"

    def __exit__(self, *ignored: object) -> None:
        for connection in self._waiting:
            connection.close()


def test_a_server_that_is_not_there_is_a_failure_that_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    failed = failure_of({"http.uri": f"http://127.0.0.1:{port}/x", "http.method": "GET"})
    assert str(failed).startswith(f"GET http://127.0.0.1:{port}/x: no connection: ConnectionRefusedError")
    assert failed.status is None


def test_a_name_that_is_none_is_a_failure_that_says_so() -> None:
    assert "no connection: " in str(failure_of({"http.uri": f"http://{'x' * 70}.invalid/", "http.method": "GET"}))


# ---- TLS ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """For `localhost`, signed by itself; with its key."""
    pem, key = tmp_path / "server.pem", tmp_path / "key.pem"
    request = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run([*request.split(), "-keyout", str(key), "-out", str(pem)], check=True, capture_output=True)
    pem.write_text(pem.read_text() + key.read_text())
    return pem


@pytest.fixture
def secure_web(certificate: Path) -> Iterator[Web]:
    server = Server(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    yield from serve(server, "https")


def test_a_server_that_is_trusted_is_asked(secure_web: Web, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    HttpJob().execute(KindContextForTest(secure_web.props()))
    assert len(secure_web.requests) == 1


def test_a_server_that_is_not_trusted_is_not(secure_web: Web) -> None:
    assert "no connection: SSLCertVerificationError" in str(failure_of(secure_web.props()))
    assert secure_web.requests == []


def test_a_secure_connection_is_closed_when_told_to_stop(
    secure_web: Web, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    stopped(secure_web, "before")


# ---- being told to stop ---------------------------------------------------------------------------------------------

LONG = {"http.read.timeout.milliseconds": "600000", "http.connect.timeout.milliseconds": "600000"}


def stopped(web: Web, when: str) -> None:
    context = KindContextForTest({**web.props(f"/after/{when}"), **LONG})
    body = Body(lambda: HttpJob().execute(context))
    assert web.answering.wait(PATIENCE_SECONDS)
    context.cancel()
    assert isinstance(body.ended(), JobCancelled)


@pytest.mark.parametrize("when", ["before", "middle", "unmeasured"])
def test_the_connection_is_closed_when_told_to_stop(web: Web, when: str) -> None:
    stopped(web, when)


def test_so_is_one_that_does_not_come_about() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, full(server) as address:
        asked = threading.Event()

        class Asking(KindContextForTest):
            @property
            def cancelled(self) -> bool:
                asked.set()
                return super().cancelled

        context = Asking({"http.uri": address, "http.method": "GET", **LONG})
        body = Body(lambda: HttpJob().execute(context))
        assert asked.wait(PATIENCE_SECONDS)
        context.cancel()
        assert isinstance(body.ended(), JobCancelled)


def test_nothing_is_sent_when_it_was_told_before(web: Web) -> None:
    context = KindContextForTest(web.props())
    context.cancel()
    with pytest.raises(JobCancelled):
        HttpJob().execute(context)
    assert web.requests == []


# ---- props ------------------------------------------------------------------------------------------------------------

GOOD = {"http.uri": "http://host/x", "http.method": "GET"}
NO_ADDRESS = "is not allowed; allowed: an address that begins with http:// or https:// and a host"
METHODS = "GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"http.uri": ""}, "http.uri: is missing; it must be an address, such as https://shop.example/jobs/close-day"),
        ({"http.uri": "ftp://host/x"}, f"http.uri: {NO_ADDRESS}"),
        ({"http.uri": "host/x"}, f"http.uri: {NO_ADDRESS}"),
        ({"http.uri": "http:///x"}, f"http.uri: {NO_ADDRESS}"),
        ({"http.uri": "http://host:0/"}, f"http.uri: {NO_ADDRESS}"),
        ({"http.uri": "http://host:99999/"}, "http.uri: is no address: Port out of range 0-65535"),
        ({"http.uri": "http://me:secret@host/"}, "http.uri: holds a user name, which would not be sent; remove it"),
        ({"http.uri": "http://host/a b"}, "http.uri: holds a blank, or a character that is not ASCII; write it as %XX"),
        ({"http.uri": "http://host/ü"}, "http.uri: holds a blank, or a character that is not ASCII; write it as %XX"),
        ({"http.url": "http://other/x"}, "http.url: differs from http.uri; give one of them"),
        ({"http.uri": "", "http.url": "x"}, f"http.url: {NO_ADDRESS}"),
        ({"http.method": ""}, f"http.method: is missing; allowed: {METHODS}"),
        ({"http.method": "FETCH"}, f"http.method: 'FETCH' is not allowed; allowed: {METHODS}"),
        ({"http.method": "DELET"}, "http.method: 'DELET' is not allowed; did you mean DELETE?"),
        ({"http.content.type": "a\r\nX: y"}, r"http.content.type: 'a\r\nX: y' is not allowed; allowed: printable ASCII"),
        (
            {"http.read.timeout.milliseconds": "0"},
            "http.read.timeout.milliseconds: '0' is not allowed; allowed: milliseconds, 1 to 86400000 (a day)",
        ),
        (
            {"http.connect.timeout.milliseconds": "3s"},
            "http.connect.timeout.milliseconds: '3s' is not allowed; allowed: milliseconds, 1 to 86400000 (a day)",
        ),
        ({"http.uris": "x"}, "'http.uris': unknown name; did you mean http.uri?"),
    ],
)
def test_bad_props_are_named_in_one_line(changes: dict[str, str], problem: str) -> None:
    given = {**GOOD, **changes}
    assert HttpJob.validate(given) == [f"props: {problem}"]
    with pytest.raises(ConfigError) as refused:
        HttpJob().execute(KindContextForTest(given))
    assert refused.value.problems == (f"job 'report': props: {problem}",)


def test_all_problems_are_told_at_once() -> None:
    assert len(HttpJob.validate({"http.method": "x", "http.read.timeout.milliseconds": "x"})) == 3


def test_good_props() -> None:
    assert HttpJob.validate({**GOOD, "http.method": "post", "http.data": "", "other": "x"}) == []
    assert HttpJob.validate({**GOOD, "http.uri": "https://[::1]:8443/x?a=%20", "http.url": "https://[::1]:8443/x?a=%20"}) == []
