"""HTTP jobs: one request for each sharding item. An answer with a status below 400 is success.

    props:
      http.uri: https://shop.example/jobs/close-day
      http.method: POST
      http.data: mode=full
      http.content.type: application/x-www-form-urlencoded
      http.connect.timeout.milliseconds: "3000"
      http.read.timeout.milliseconds: "5000"

The names and defaults are ElasticJob's; its documentation calls the address `http.url`, its code reads `http.uri`, and both are
taken. So is the header `shardingContext` with ElasticJob's JSON, in ASCII. Headers for what ElasticJob does not know come with
it: Ejpy-Scheduled-Time, Ejpy-Attempt, Ejpy-Reason, Ejpy-Fencing-Token, Ejpy-Idempotency-Key.

Different from ElasticJob: a status of 400 and more is a failure (ElasticJob writes a warning and counts a success), and so are an
answer that breaks off and a redirection of anything but GET and HEAD, since following it would drop the data.

A request that got no answer may have had its effect. It is not repeated here; let the other side know it by its key.

Being told to stop closes the connection at once. Neither proxies nor other settings are taken from the environment. Names, not
query strings, stand in messages and in the log: a query may hold a password.
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from ejpy.clock import SystemClock
from ejpy.errors import HttpFailed
from ejpy.hold import Hold
from ejpy.job import ShardContext, ShardedJob
from ejpy.jobs.connection import connect
from ejpy.jobs.context import beyond_elasticjob, sharding_context_json
from ejpy.jobs.props import PropsReader, problems_of, settings_of
from ejpy.version import __version__
from ejpy.wording import closest, one_line, shown

URI, URL = "http.uri", "http.url"
METHOD = "http.method"
DATA = "http.data"
CONTENT_TYPE = "http.content.type"
CONNECT_TIMEOUT = "http.connect.timeout.milliseconds"
READ_TIMEOUT = "http.read.timeout.milliseconds"

METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")
DEFAULT_CONTENT_TYPE = "application/x-www-form-urlencoded"
"""Java's, for a request with data."""
MOST_REDIRECTIONS = 10
ANSWER_BYTES = 64 * 1024 * 1024
"""So much of an answer is read, and passed over; a longer one is broken off."""
_WITH_DATA = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_FOLLOWED = frozenset({"GET", "HEAD"})
_REDIRECTIONS = frozenset({301, 302, 303, 307, 308})
_SHOWN_BYTES = 300
_CHUNK = 64 * 1024
_IN_A_HEADER = "".join(chr(code) for code in range(33, 127) if chr(code) != "%")


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """What the props say."""

    address: SplitResult
    method: str
    data: bytes | None
    content_type: str
    connect_seconds: float
    read_seconds: float


class HttpJob(ShardedJob):
    """Makes a request for each item: `type: HTTP`."""

    @staticmethod
    def validate(props: Mapping[str, str]) -> list[str]:
        """What is wrong with `props`, one line for each problem. Whether the server exists is seen only when it is asked."""
        return problems_of(props, _settings)

    def execute(self, shard_ctx: ShardContext, /) -> None:
        """Raises HttpFailed, ConfigError for bad props, and JobCancelled if it was told to stop before the answer's end."""
        settings = settings_of(shard_ctx, _settings)
        shard_ctx.raise_if_cancelled()
        hold = Hold()
        take_back = shard_ctx.call_when_cancelled(hold.cut)
        try:
            _Exchange(settings, _headers(settings, shard_ctx), hold, shard_ctx).run()
        except HttpFailed:
            if hold.was_cut:  # and that is why
                shard_ctx.raise_if_cancelled()
            raise
        finally:
            take_back()
            hold.close()


class _Exchange:
    """A request and its answer, with what redirections lie between them."""

    def __init__(self, settings: HttpSettings, headers: Mapping[str, str], hold: Hold, shard_ctx: ShardContext) -> None:
        self._settings = settings
        self._headers = headers
        self._hold = hold
        self._log = shard_ctx.log

    def run(self) -> None:
        address = self._settings.address
        for _ in range(MOST_REDIRECTIONS + 1):
            following = self._ask(address)
            if following is None:
                return
            address = following
        raise HttpFailed(f"{self._named(self._settings.address)}: redirected more than {MOST_REDIRECTIONS} times")

    def _ask(self, address: SplitResult) -> SplitResult | None:
        """None if it was answered well; an address if that is where to ask instead."""
        named = self._named(address)
        connection = self._connect(address, named)
        try:
            target = (address.path or "/") + (f"?{address.query}" if address.query else "")
            connection.request(self._settings.method, target, body=self._settings.data, headers=dict(self._headers))
            with connection.getresponse() as response:
                return self._judge(response, address, named)
        except TimeoutError as error:
            seconds = self._settings.read_seconds
            raise HttpFailed(f"{named}: no answer within {seconds:g} s; the request may have had its effect") from error
        except (OSError, http.client.HTTPException) as error:
            raise HttpFailed(f"{named}: no proper answer: {_told(error)}; the request may have had its effect") from error
        finally:
            connection.close()

    def _connect(self, address: SplitResult, named: str) -> http.client.HTTPConnection:
        settings = self._settings
        assert address.hostname is not None
        try:
            return connect(
                address.scheme,
                address.hostname,
                address.port,
                hold=self._hold,
                clock=SystemClock(),
                connect_seconds=settings.connect_seconds,
                read_seconds=settings.read_seconds,
            )
        except TimeoutError as error:
            raise HttpFailed(f"{named}: no connection within {settings.connect_seconds:g} s") from error
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that is none
            raise HttpFailed(f"{named}: no connection: {_told(error)}") from error

    def _judge(self, response: http.client.HTTPResponse, address: SplitResult, named: str) -> SplitResult | None:
        status = response.status
        if status in _REDIRECTIONS:
            return self._redirected(response, address, named)
        if status >= 400:
            raise HttpFailed(f"{named}: {_refusal(response)}", status=status)
        length = _read_all(response)
        # What neither has a length nor comes in chunks ends with the connection, whoever ended that.
        endless = response.length is None and not response.chunked
        if length < ANSWER_BYTES and (response.length or (endless and self._hold.was_cut)):
            raise HttpFailed(f"{named}: status {status}, but the answer broke off after {length} bytes", status=status)
        if length >= ANSWER_BYTES:
            self._log.warning("%s: the answer was broken off after %d bytes", named, length)
        self._log.info("%s: status %d, %d bytes", named, status, length)
        return None

    def _redirected(self, response: http.client.HTTPResponse, address: SplitResult, named: str) -> SplitResult:
        status, location = response.status, response.headers.get("Location")
        if location is None:
            raise HttpFailed(f"{named}: status {status} without a Location", status=status)
        following, what_is_wrong = _address(location, relative_to=address.geturl())
        if following is None:
            raise HttpFailed(f"{named}: redirected ({status}) to where nothing can be asked: {what_is_wrong}", status=status)
        to = f"{following.scheme}://{following.netloc}{following.path}"
        if self._settings.method not in _FOLLOWED:
            raise HttpFailed(f"{named}: redirected ({status}) to {shown(to)}, which only GET and HEAD follow", status=status)
        self._log.info("%s: redirected (%d) to %s", named, status, shown(to))
        return following

    def _named(self, address: SplitResult) -> str:
        return f"{self._settings.method} {one_line(f'{address.scheme}://{address.netloc}{address.path}')}"


def _read_all(response: http.client.HTTPResponse) -> int:
    """Pass over an answer: a server may work as long as it writes. The number of bytes, at most `ANSWER_BYTES`."""
    length = 0
    while length < ANSWER_BYTES and (chunk := response.read(min(_CHUNK, ANSWER_BYTES - length))):
        length += len(chunk)
    return length


def _refusal(response: http.client.HTTPResponse) -> str:
    """Status, reason and the beginning of an answer of 400 and more."""
    try:
        begin = response.read(_SHOWN_BYTES)
    except (OSError, http.client.HTTPException):
        begin = b""  # the status says enough
    told = " ".join(f"status {response.status} {response.reason or ''}".split())
    text = " ".join(begin.decode("utf-8", "replace").split())
    return one_line(f"{told}: {text}" if text else told)


def _headers(settings: HttpSettings, shard_ctx: ShardContext) -> dict[str, str]:
    headers = {"shardingContext": sharding_context_json(shard_ctx, ascii_only=True)}
    for name, text in beyond_elasticjob(shard_ctx).items():
        headers["Ejpy-" + name.title().replace("_", "-")] = quote(text, safe=_IN_A_HEADER)
    if settings.data is not None:
        headers["Content-Type"] = settings.content_type
    return {**headers, "User-Agent": f"ejpy/{__version__}", "Connection": "close"}


def _told(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def _settings(reader: PropsReader) -> HttpSettings | None:
    reader.refuse_unknown("http.", [URI, METHOD, DATA, CONTENT_TYPE, CONNECT_TIMEOUT, READ_TIMEOUT, URL])
    address = _address_of(reader)
    method = _method_of(reader)
    content_type = reader.text(CONTENT_TYPE) or DEFAULT_CONTENT_TYPE
    if not (content_type.isascii() and content_type.isprintable()):
        reader.problem(CONTENT_TYPE, f"{shown(content_type)} is not allowed; allowed: printable ASCII")
    data = reader.text(DATA)
    connect_seconds = reader.milliseconds(CONNECT_TIMEOUT, 3000)
    read_seconds = reader.milliseconds(READ_TIMEOUT, 5000)
    if address is None or method is None:
        return None
    body = data.encode() if data is not None and method in _WITH_DATA else None
    return HttpSettings(address, method, body, content_type, connect_seconds, read_seconds)


def _address_of(reader: PropsReader) -> SplitResult | None:
    uri, url = reader.text(URI), reader.text(URL)
    if uri is not None and url is not None and uri != url:
        reader.problem(URL, f"differs from {URI}; give one of them")
    name = URL if uri is None and url is not None else URI
    text = uri or url
    if text is None:
        reader.missing(URI, "it must be an address, such as https://shop.example/jobs/close-day", or_else=URL)
        return None
    address, what_is_wrong = _address(text.strip())
    if address is None:
        reader.problem(name, what_is_wrong)
    return address


def _address(text: str, *, relative_to: str = "") -> tuple[SplitResult | None, str]:
    """The address, or what is wrong with it. It is not shown: it may hold a password."""
    try:
        text = urljoin(relative_to, text)
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        return None, f"is no address: {one_line(str(error))}"
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        return None, "is not allowed; allowed: an address that begins with http:// or https:// and a host"
    if "@" in parts.netloc:
        return None, "holds a user name, which would not be sent; remove it"
    if not (text.isascii() and text.isprintable()) or " " in text:
        return None, "holds a blank, or a character that is not ASCII; write it as %XX"
    return parts, ""


def _method_of(reader: PropsReader) -> str | None:
    text = reader.text(METHOD)
    allowed = ", ".join(METHODS)
    if text is None:
        reader.missing(METHOD, f"allowed: {allowed}")
        return None
    method = text.strip().upper()
    if method not in METHODS:
        meant = closest(text, METHODS)
        reader.problem(METHOD, f"{shown(text)} is not allowed; " + (f"did you mean {meant}?" if meant else f"allowed: {allowed}"))
        return None
    return method
