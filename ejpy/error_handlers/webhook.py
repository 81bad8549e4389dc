"""The handlers that post to a chat: WECHAT (WeCom), DINGTALK and SLACK.

Each posts one JSON document to an address that the service gave out, and looks at the answer: a service that refuses a
message says so in the body of a perfectly good HTTP answer. The address is a secret (whoever knows it can post), so it stands
in no error text; for the same reason redirections are not followed.

A delivery as a whole may take the time-out for connecting and twice the one for reading: whoever answers a byte at a time would
keep the one thread of all handlers for hours.

Proxies are taken from the environment (`https_proxy`, `no_proxy`), as urllib does it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import urllib.error
import urllib.request
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar
from urllib.parse import quote_plus

from ejpy.clock import Clock
from ejpy.error_handlers.base import JobErrorHandler, JobFailure
from ejpy.error_handlers.message import cut, text_of
from ejpy.error_handlers.props import Settings
from ejpy.errors import EjpyError
from ejpy.hold import Hold, cut_after
from ejpy.wording import one_line

CONNECT_MILLISECONDS = 3000
READ_MILLISECONDS = 5000
_LONGEST_WAIT_MILLISECONDS = 60_000
_MOST_ANSWER_BYTES = 64 * 1024
_SHOWN_CHARACTERS = 200


class WebhookHandler(JobErrorHandler):
    """What the three have in common. Settings: `{prefix}.webhook`, and the two time-outs, in milliseconds (ElasticJob's)."""

    name: ClassVar[str]
    prefix: ClassVar[str]
    most_bytes: ClassVar[int]
    """Longest text that the service takes."""

    def __init__(self, props: Mapping[str, str], clock: Clock) -> None:
        super().__init__(props, clock)
        settings = Settings(props)
        self._address = settings.url(f"{self.prefix}.webhook")
        self._connect_seconds, self._read_seconds = self._time_outs(settings)

    @classmethod
    def validate(cls, props: Mapping[str, str]) -> Sequence[str]:
        settings = Settings(props)
        settings.url(f"{cls.prefix}.webhook")
        cls._time_outs(settings)
        return settings.problems

    @classmethod
    def _time_outs(cls, settings: Settings) -> tuple[float, float]:
        """Seconds to connect, and seconds from one part of the answer to the next."""
        limits = {"connectTimeoutMilliseconds": CONNECT_MILLISECONDS, "readTimeoutMilliseconds": READ_MILLISECONDS}
        connect, read = (
            settings.whole(f"{cls.prefix}.{name}", default=default, least=1, most=_LONGEST_WAIT_MILLISECONDS) / 1000
            for name, default in limits.items()
        )
        return connect, read

    def handle(self, failure: JobFailure) -> None:
        """Raises EjpyError if the service did not confirm that it took the message."""
        document = json.dumps(self.document(text_of(failure))).encode()
        status, answer = self._post(self.address(), document)
        if status != http.client.OK or not self.accepted(answer):
            shown = one_line(answer.decode("utf-8", "replace")[:_SHOWN_CHARACTERS])
            raise EjpyError(f"{self.name} did not take the message: HTTP {status}, {shown or 'no text'}")

    def address(self) -> str:
        """Where to post now."""
        return self._address

    @abstractmethod
    def document(self, text: str) -> Mapping[str, Any]:
        """What to post."""

    @abstractmethod
    def accepted(self, answer: bytes) -> bool:
        """Whether the answer's body says that the message was taken."""

    def _post(self, address: str, document: bytes) -> tuple[int, bytes]:
        """Status and body of the answer. Raises EjpyError if there was none, or no end of it in time."""
        request = urllib.request.Request(address, document, {"Content-Type": "application/json; charset=utf-8"})
        longest = self._connect_seconds + 2 * self._read_seconds
        with cut_after(longest) as hold:
            answer = self._answer(request, hold)
            in_time = not hold.was_cut
        if not in_time:  # what had come by then may look like an answer
            raise EjpyError(f"{self.name} gave no answer within {longest:g} s")
        if isinstance(answer, tuple):
            return answer
        # Of what is not the system's own only the type is told: the text may quote the address.
        text = f"{type(answer).__name__}: {answer}" if isinstance(answer, OSError) else type(answer).__name__
        raise EjpyError(f"{self.name} gave no answer: {one_line(text)}")

    def _answer(self, request: urllib.request.Request, hold: Hold) -> tuple[int, bytes] | object:
        """Status and body, or why there is none."""
        handlers = (_NoRedirection, _Http(self._read_seconds, hold), _Https(self._read_seconds, hold))
        try:
            try:
                reply = urllib.request.build_opener(*handlers).open(request, timeout=self._connect_seconds)
            except urllib.error.HTTPError as error:
                reply = error  # an answer like any other
            with reply:
                return reply.status, reply.read(_MOST_ANSWER_BYTES)
        except urllib.error.URLError as error:
            return error.reason
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a name that no host can have
            return error


class WeChatHandler(WebhookHandler):
    """WECHAT: a group robot of WeCom (WeChat Work)."""

    name = "WeChat"
    prefix = "wechat"
    most_bytes = 2048

    def document(self, text: str) -> Mapping[str, Any]:
        return {"msgtype": "text", "text": {"content": cut(text, self.most_bytes)}}

    def accepted(self, answer: bytes) -> bool:
        return _errcode(answer) == 0


class DingTalkHandler(WebhookHandler):
    """DINGTALK: a custom robot. `dingtalk.keyword` begins every message; with `dingtalk.secret` the address is signed."""

    name = "DingTalk"
    prefix = "dingtalk"
    most_bytes = 20_000

    def address(self) -> str:
        secret = Settings(self.props).text("dingtalk.secret")
        if not secret:
            return self._address
        timestamp = round(self.clock.now().timestamp() * 1000)
        digest = hmac.new(secret.encode(), f"{timestamp}\n{secret}".encode(), hashlib.sha256).digest()
        signature = quote_plus(base64.b64encode(digest))
        return f"{self._address}{'&' if '?' in self._address else '?'}timestamp={timestamp}&sign={signature}"

    def document(self, text: str) -> Mapping[str, Any]:
        keyword = Settings(self.props).text("dingtalk.keyword")
        return {"msgtype": "text", "text": {"content": cut(f"{keyword} {text}" if keyword else text, self.most_bytes)}}

    def accepted(self, answer: bytes) -> bool:
        return _errcode(answer) == 0


class SlackHandler(WebhookHandler):
    """SLACK: an incoming webhook. ElasticJob has no such handler; the settings are named as those of the others."""

    name = "Slack"
    prefix = "slack"
    most_bytes = 35_000

    def document(self, text: str) -> Mapping[str, Any]:
        # Slack reads these three as its own marks.
        plain = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return {"text": cut(plain, self.most_bytes)}

    def accepted(self, answer: bytes) -> bool:
        return answer.strip() == b"ok"


def _errcode(answer: bytes) -> object:
    try:
        document = json.loads(answer)
    except ValueError:
        return None
    code = document.get("errcode") if isinstance(document, dict) else None
    return None if isinstance(code, bool) else code


# ---- time-outs for connecting and for reading, which urllib has only one of, and an end to it all --------------------


class _Connection(http.client.HTTPConnection):
    """Waits for a part of an answer no longer than `read_seconds`, however long connecting may take (`timeout`), and for all of
    them no longer than it is held."""

    read_seconds: float
    hold: Hold

    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(self.read_seconds)
        self.hold.keep(self.sock)


class _SecureConnection(http.client.HTTPSConnection, _Connection):
    """The same over TLS, whose handshake comes after `_Connection.connect`."""


def _connection(kind: type[_Connection], read_seconds: float, hold: Hold, host: str, **options: Any) -> _Connection:
    connection = kind(host, **options)
    connection.read_seconds, connection.hold = read_seconds, hold
    return connection


class _Http(urllib.request.HTTPHandler):
    def __init__(self, read_seconds: float, hold: Hold) -> None:
        super().__init__()
        self._connection = partial(_connection, _Connection, read_seconds, hold)

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, request)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, read_seconds: float, hold: Hold) -> None:
        super().__init__()
        self._connection = partial(_connection, _SecureConnection, read_seconds, hold)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, request)


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None
