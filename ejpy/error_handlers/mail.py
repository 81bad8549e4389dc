"""The handler EMAIL: one mail for each failure, over SMTP.

`email.useSsl` (default true) means TLS from the first byte, usually on port 465. Without it the connection begins in clear,
and goes on over TLS if the server offers that (STARTTLS, usually on port 587 or 25). The server's certificate is verified in
both cases, unless `email.ssl.trust` is `*` or names the host.
"""

from __future__ import annotations

import logging
import re
import smtplib
import ssl
from collections.abc import Mapping, Sequence
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, getaddresses
from typing import Any

from ejpy.clock import Clock
from ejpy.error_handlers.base import JobErrorHandler, JobFailure
from ejpy.error_handlers.message import cut, subject_of, text_of
from ejpy.error_handlers.props import Settings
from ejpy.errors import EjpyError
from ejpy.hold import Hold, cut_after
from ejpy.wording import describe_error, one_line, shown

logger = logging.getLogger("ejpy.error_handlers")

TIMEOUT_SECONDS = 10.0
"""Longest wait for any one answer of the mail server; ElasticJob has no setting for it."""

_MOST_BYTES = 512 * 1024
_LONGEST_SUBJECT = 200
_HIGHEST_PORT = 65535
_ATOMS = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
_ADDRESS = re.compile(rf'(?!.*=\?)(?:{_ATOMS}|"(?:[ !#-\[\]-~]|\\[ -~])+")@(?:{_ATOMS}|\[[0-9A-Za-z.:]+\])')
"""RFC 5322's addr-spec, of ASCII, without comments and encoded words. The standard library's parser must see nothing else: it
raises ValueError, IndexError, HeaderParseError or AttributeError, whichever comes."""


class EmailHandler(JobErrorHandler):
    """EMAIL. Settings, all beginning with `email.`:

    `host`, `port`, `from`, `to` are required; `to`, `cc`, `bcc` take addresses separated by commas. `username` and `password`
    go together, or are both left out for a server that asks for neither. `subject` replaces the default one, which names job,
    item and error. `useSsl`, `ssl.trust`: see the module's text. `debug`: each mail that was sent is logged at INFO.
    """

    delivery_seconds: float = 60.0
    """Longest time for the whole conversation about one mail."""

    def __init__(self, props: Mapping[str, str], clock: Clock) -> None:
        super().__init__(props, clock)
        settings = Settings(props)
        self._host = settings.text("email.host")
        self._port = _port(settings)
        self._secure = settings.flag("email.useSsl", default=True)
        self._trusted = settings.text("email.ssl.trust").split()
        self._username = settings.text("email.username")
        self._password = props.get("email.password", "")
        self._subject = settings.text("email.subject")
        self._from = _addresses(settings, "email.from")[0]
        self._to = _addresses(settings, "email.to")
        self._cc = _addresses(settings, "email.cc")
        self._bcc = _addresses(settings, "email.bcc")
        self._level = logging.INFO if settings.flag("email.debug", default=False) else logging.DEBUG

    @classmethod
    def validate(cls, props: Mapping[str, str]) -> Sequence[str]:
        settings = Settings(props)
        settings.required("email.host", "the mail server's name")
        _port(settings)
        settings.flag("email.useSsl", default=True)
        settings.flag("email.debug", default=False)
        for name, what in (("email.from", "the sender's address"), ("email.to", "one address or more")):
            settings.required(name, what)
        if len(_addresses(settings, "email.from")) > 1:
            settings.problems.append("props: email.from: more than one address")
        for name in ("email.to", "email.cc", "email.bcc"):
            _addresses(settings, name)
        if bool(settings.text("email.username")) != bool(settings.text("email.password")):
            settings.problems.append("props: email.username, email.password: give both or neither")
        return settings.problems

    def handle(self, failure: JobFailure) -> None:
        """Raises EjpyError if the server did not take the mail for every recipient."""
        message = self._message(failure)
        recipients = [address.addr_spec for address in (*self._to, *self._cc, *self._bcc)]
        with cut_after(self.delivery_seconds) as hold:
            try:
                with self._connect(hold) as server:
                    if self._username:
                        server.login(self._username, self._password)
                    refused = server.send_message(message, self._from.addr_spec, recipients)
            # ValueError: a name that no host can have, a user name or password that is not ASCII.
            except (OSError, smtplib.SMTPException, ValueError) as error:
                why = f"not done within {self.delivery_seconds:g} s" if hold.was_cut else describe_error(error)
                raise EjpyError(f"mail server {self._host}:{self._port}: mail not sent: {why}") from None
        if refused:
            raise EjpyError(
                f"mail server {self._host}:{self._port}: refused for {one_line(', '.join(refused))}; sent to the others"
            )
        logger.log(self._level, "mail for job %r sent to %d by %s:%d", failure.job_name, len(recipients), self._host, self._port)

    def _connect(self, hold: Hold) -> smtplib.SMTP:
        context = ssl.create_default_context()
        if "*" in self._trusted or self._host in self._trusted:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self._secure:
            return _SecureServer(hold, self._host, self._port, timeout=TIMEOUT_SECONDS, context=context)
        server = _Server(hold, self._host, self._port, timeout=TIMEOUT_SECONDS)
        try:
            server.ehlo_or_helo_if_needed()
            if server.has_extn("starttls"):
                server.starttls(context=context)
                server.ehlo_or_helo_if_needed()
        except BaseException:
            server.close()
            raise
        return server

    def _message(self, failure: JobFailure) -> EmailMessage:
        message = EmailMessage(policy=SMTP)
        message["From"] = self._from
        message["To"] = self._to
        if self._cc:
            message["Cc"] = self._cc
        message["Date"] = format_datetime(self.clock.now())
        message["Subject"] = one_line(self._subject or subject_of(failure))[:_LONGEST_SUBJECT]
        message["Auto-Submitted"] = "auto-generated"  # RFC 3834: no out-of-office replies to this
        message.set_content(cut(text_of(failure), _MOST_BYTES))
        return message


def _port(settings: Settings) -> int:
    return settings.whole("email.port", default=None, least=1, most=_HIGHEST_PORT)


def _addresses(settings: Settings, name: str) -> list[Address]:
    """The addresses that a setting names; what is none is noted as a problem."""
    text = settings.text(name)
    found: list[Address] = []
    for display, spec in getaddresses([text]) if text else []:
        as_written = bool(spec) and spec in text  # blanks and comments within it are left out
        if not as_written or not _ADDRESS.fullmatch(spec) or one_line(display) != display:
            settings.problems.append(f"props: {name}: {shown(spec if as_written else text)} is not a mail address")
            return []
        found.append(Address(display, addr_spec=spec))
    return found


class _Server(smtplib.SMTP):
    """A conversation that a hold can end, from the first answer on."""

    def __init__(self, hold: Hold, host: str, port: int, **options: Any) -> None:
        self._hold = hold
        super().__init__(host, port, **options)

    def getreply(self) -> tuple[int, bytes]:
        if self.sock is not None:
            self._hold.keep(self.sock)
        return super().getreply()


class _SecureServer(_Server, smtplib.SMTP_SSL):
    """The same over TLS."""
