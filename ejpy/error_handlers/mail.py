"""The handler EMAIL: one mail for each failure, over SMTP.

`email.useSsl` (default true) means TLS from the first byte, usually on port 465. Without it the connection begins in clear,
and goes on over TLS if the server offers that (STARTTLS, usually on port 587 or 25). The server's certificate is verified in
both cases, unless `email.ssl.trust` is `*` or names the host.
"""

from __future__ import annotations

import logging
import smtplib
import ssl
from collections.abc import Mapping, Sequence
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, getaddresses

from ejpy.clock import Clock
from ejpy.error_handlers.base import JobErrorHandler, JobFailure
from ejpy.error_handlers.message import cut, subject_of, text_of
from ejpy.error_handlers.props import Settings
from ejpy.errors import EjpyError
from ejpy.wording import describe_error, one_line, shown

logger = logging.getLogger("ejpy.error_handlers")

TIMEOUT_SECONDS = 10.0
"""Longest wait for any one answer of the mail server; ElasticJob has no setting for it."""

_MOST_BYTES = 512 * 1024
_LONGEST_SUBJECT = 200
_HIGHEST_PORT = 65535


class EmailHandler(JobErrorHandler):
    """EMAIL. Settings, all beginning with `email.`:

    `host`, `port`, `from`, `to` are required; `to`, `cc`, `bcc` take addresses separated by commas. `username` and `password`
    go together, or are both left out for a server that asks for neither. `subject` replaces the default one, which names job,
    item and error. `useSsl`, `ssl.trust`: see the module's text. `debug`: each mail that was sent is logged at INFO.
    """

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
        for name in ("email.from", "email.to", "email.cc", "email.bcc"):
            _addresses(settings, name)
        if settings.text("email.from").count("@") > 1:
            settings.problems.append("props: email.from: more than one address")
        if bool(settings.text("email.username")) != bool(settings.text("email.password")):
            settings.problems.append("props: email.username, email.password: give both or neither")
        return settings.problems

    def handle(self, failure: JobFailure) -> None:
        """Raises EjpyError if the server did not take the mail for every recipient."""
        message = self._message(failure)
        recipients = [address.addr_spec for address in (*self._to, *self._cc, *self._bcc)]
        try:
            with self._connect() as server:
                if self._username:
                    server.login(self._username, self._password)
                refused = server.send_message(message, self._from.addr_spec, recipients)
        except (OSError, smtplib.SMTPException) as error:
            raise EjpyError(f"mail server {self._host}:{self._port}: mail not sent: {describe_error(error)}") from None
        if refused:
            raise EjpyError(
                f"mail server {self._host}:{self._port}: refused for {one_line(', '.join(refused))}; sent to the others"
            )
        logger.log(self._level, "mail for job %r sent to %d by %s:%d", failure.job_name, len(recipients), self._host, self._port)

    def _connect(self) -> smtplib.SMTP:
        context = ssl.create_default_context()
        if "*" in self._trusted or self._host in self._trusted:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self._secure:
            return smtplib.SMTP_SSL(self._host, self._port, timeout=TIMEOUT_SECONDS, context=context)
        server = smtplib.SMTP(self._host, self._port, timeout=TIMEOUT_SECONDS)
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
    """The addresses that a setting names; those that are none are noted as problems."""
    found: list[Address] = []
    text = settings.text(name)
    for display, spec in getaddresses([text]) if text else []:
        try:
            if not spec.isascii() or "@" not in spec:
                raise ValueError(spec)
            found.append(Address(display, addr_spec=spec))
        except (ValueError, IndexError):  # the header parser raises either for what it cannot read
            settings.problems.append(f"props: {name}: {shown(spec or text)} is not a mail address")
    return found
