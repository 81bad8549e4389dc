"""EMAIL, against a server that speaks SMTP over real sockets."""

from __future__ import annotations

import email
import email.policy
import logging
import re
from email.message import EmailMessage
from pathlib import Path

import pytest

from ejpy.error_handlers import ErrorHandling, HandlerSettings, JobErrorHandler, handler_class, problems_of
from ejpy.error_handlers.mail import EmailHandler
from ejpy.errors import EjpyError
from ejpy.wording import shown
from tests.support.loop import run
from tests.unit.error_handlers.failures import SetClock, failure, in_a_thread
from tests.unit.error_handlers.servers import Dripping, MailServer, make_certificate

PASSWORD = "pa55word!"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


def props_for(server: MailServer, **changes: str) -> dict[str, str]:
    props = {
        "email.host": "127.0.0.1",
        "email.port": str(server.port),
        "email.useSsl": "false",
        "email.from": "Jobs <jobs@example.org>",
        "email.to": "ann@example.org, Bob <bob@example.org>",
    }
    return props | {f"email.{name.replace('_', '.')}": value for name, value in changes.items()}


def made(server: MailServer, clock: SetClock, **changes: str) -> JobErrorHandler:
    props = props_for(server, **changes)
    assert problems_of(HandlerSettings("EMAIL", props)) == []
    return handler_class("EMAIL")(props, clock)


def parsed(data: bytes) -> EmailMessage:
    message = email.message_from_bytes(data, policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    return message


def test_a_mail_tells_the_failure_to_all_recipients(clock: SetClock) -> None:
    with MailServer() as server:
        made(server, clock, cc="cat@example.org", bcc="dan@example.org").handle(failure(error="ValueError: no ä", suppressed=2))
    [mail] = server.mails
    assert mail.sender == "jobs@example.org"
    assert mail.recipients == ["ann@example.org", "bob@example.org", "cat@example.org", "dan@example.org"]
    message = parsed(mail.data)
    assert message["From"] == "Jobs <jobs@example.org>"
    assert message["To"] == "ann@example.org, Bob <bob@example.org>"
    assert message["Cc"] == "cat@example.org"
    assert message["Bcc"] is None
    assert message["Subject"] == "Job 'shop', item 3 failed: ValueError: no ä"
    assert message["Date"].datetime == clock.now()
    text = message.get_content()
    assert "2 more with the same error" in text
    assert "Traceback (most recent call last)" in text
    assert not mail.secure
    assert mail.login is None


def test_the_subject_can_be_set(clock: SetClock) -> None:
    with MailServer() as server:
        made(server, clock, subject="A job failed").handle(failure())
    assert parsed(server.mails[0].data)["Subject"] == "A job failed"


def test_an_error_text_cannot_forge_a_header(clock: SetClock) -> None:
    with MailServer() as server:
        made(server, clock).handle(failure(error="x\r\nBcc: eve@example.org\r\n\r\nbody"))
    message = parsed(server.mails[0].data)
    assert message["Bcc"] is None
    assert "x\\r\\nBcc: eve" in message["Subject"]


def test_login(clock: SetClock) -> None:
    with MailServer(password=PASSWORD) as server:
        made(server, clock, username="jobs", password=PASSWORD).handle(failure())
    assert server.mails[0].login == "jobs"


def test_a_wrong_password_stands_neither_in_the_error_nor_in_the_log(
    clock: SetClock, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """This server repeats the password in its answer, and `email.debug` is on."""
    caplog.set_level(logging.DEBUG)
    with MailServer(password="another") as server:
        handling = ErrorHandling(clock)
        props = props_for(server, username="jobs", password=PASSWORD, debug="true")
        handling.report(failure(), HandlerSettings("EMAIL", props))
        run(handling.close(20))
    assert server.mails == []
    assert "SMTPAuthenticationError" in caplog.text
    assert "wrong password ***" in caplog.text
    assert PASSWORD not in caplog.text + "".join(capfd.readouterr())


def test_recipients_that_are_refused_are_told_and_the_others_get_the_mail(clock: SetClock) -> None:
    with MailServer(refused=("ann@example.org",)) as server:
        with pytest.raises(EjpyError, match=r"refused for ann@example\.org; sent to the others"):
            made(server, clock).handle(failure())
        assert server.mails[0].recipients == ["bob@example.org"]


def test_a_server_that_is_not_there_is_an_error(clock: SetClock) -> None:
    with MailServer() as server:
        handler = made(server, clock)
    with pytest.raises(EjpyError, match=f"mail server 127.0.0.1:{server.port}: mail not sent: ConnectionRefusedError"):
        handler.handle(failure())


@pytest.mark.parametrize("starttls", [False, True], ids=["TLS from the first byte", "STARTTLS"])
@pytest.mark.parametrize("trust", ["*", "other.example.org 127.0.0.1"])
def test_tls_to_a_server_that_is_trusted_by_name(clock: SetClock, certificate: Path, starttls: bool, trust: str) -> None:
    with MailServer(certificate, starttls, password=PASSWORD) as server:
        handler = made(server, clock, useSsl="false" if starttls else "true", ssl_trust=trust, username="jobs", password=PASSWORD)
        handler.handle(failure())
    assert server.mails[0].secure
    assert server.mails[0].login == "jobs"


@pytest.mark.parametrize("starttls", [False, True], ids=["TLS from the first byte", "STARTTLS"])
def test_a_certificate_that_nobody_vouches_for_is_refused(clock: SetClock, certificate: Path, starttls: bool) -> None:
    with MailServer(certificate, starttls) as server:
        with pytest.raises(EjpyError, match="SSLCertVerificationError"):
            made(server, clock, useSsl="false" if starttls else "true", ssl_trust="other.example.org").handle(failure())
        assert server.mails == []


def test_tls_is_the_default(clock: SetClock, certificate: Path) -> None:
    with MailServer(certificate) as server:
        props = props_for(server, ssl_trust="*")
        del props["email.useSsl"]
        handler_class("EMAIL")(props, clock).handle(failure())
    assert server.mails[0].secure


@pytest.mark.parametrize(("debug", "level"), [("true", logging.INFO), ("false", logging.DEBUG)])
def test_debug_tells_of_each_mail_at_info(clock: SetClock, caplog: pytest.LogCaptureFixture, debug: str, level: int) -> None:
    caplog.set_level(logging.DEBUG)
    with MailServer() as server:
        made(server, clock, debug=debug).handle(failure())
    [record] = caplog.records
    assert (record.levelno, record.getMessage()) == (level, f"mail for job 'shop' sent to 2 by 127.0.0.1:{server.port}")


def test_settings_are_checked_all_at_once_and_the_password_is_not_shown() -> None:
    assert problems_of(HandlerSettings("EMAIL", {})) == [
        "props: email.host: required; give the mail server's name",
        "props: email.port: required; give a whole number from 1 to 65535",
        "props: email.from: required; give the sender's address",
        "props: email.to: required; give one address or more",
    ]
    props = {
        "email.host": "mail",
        "email.port": "65536",
        "email.useSsl": "maybe",
        "email.debug": "1",
        "email.from": "a@example.org, b@example.org",
        "email.to": "ann@example.org, nobody",
        "email.cc": "x@",
        "email.bcc": "a b@example.org",
        "email.password": PASSWORD,
    }
    problems = problems_of(HandlerSettings("EMAIL", props))
    assert [problem.split(":")[1].strip() for problem in problems] == [
        "email.port",
        "email.useSsl",
        "email.debug",
        "email.from",
        "email.to",
        "email.cc",
        "email.bcc",
        "email.username, email.password",
    ]
    assert PASSWORD not in "".join(problems)


@pytest.mark.parametrize(
    "address",
    [
        "ops@@example.com",
        "ops@.example.com",
        "ops@example..com",
        "ops@example.com.",
        ".ops@example.com",
        "ops@[",
        "@\"'@[;",
        "[@.",
        "ops@exa\0mple.com",
        "=?utf-8?q?ops?= <a@b c>",
        "Ops\0 <ops@example.org>",
        "Ops\x1b[31m <ops@example.org>",
        "<>",
        "=?utf-8?q?x?=@example.org",
        ",ann@example.org",
    ],
)
@pytest.mark.parametrize("name", ["email.to", "email.from"])
def test_what_is_no_address_is_one_line_each_that_quotes_it(name: str, address: str) -> None:
    """Of the standard library's parser some are a HeaderParseError, which is no ValueError, some an AttributeError."""
    props = {"email.host": "h", "email.port": "25", "email.from": "a@example.org", "email.to": "b@example.org"}
    problems = problems_of(HandlerSettings("EMAIL", props | {name: address}))
    assert len(problems) == 1
    quoted = re.fullmatch(rf"props: {name}: '(.+)' is not a mail address", problems[0])
    assert quoted
    assert quoted[1] in shown(address)


def test_of_several_addresses_the_one_is_quoted_that_is_none() -> None:
    props = {"email.host": "h", "email.port": "25", "email.from": "a@example.org", "email.to": "b@example.org, ops@@x, c@d, e@f,"}
    assert problems_of(HandlerSettings("EMAIL", props)) == [
        "props: email.to: 'b@example.org, ops@@x, c@d, e@f,' is not a mail address"
    ]
    props["email.to"] = "b@example.org, ops@x., c@d, e@f,"
    assert problems_of(HandlerSettings("EMAIL", props)) == ["props: email.to: 'ops@x.' is not a mail address"]


@pytest.mark.parametrize(
    "address",
    [
        "ops@localhost",
        "ops+jobs@mail.example.org",
        "o'neil_{x}@example.org",
        '"a b"@example.org',
        "ops@[10.0.0.1]",
        "Ops\nBcc: <ops@example.org>",
        '"Jobs @ Home" <jobs@example.org>',
        "Jürgen <jobs@example.org>",
    ],
)
def test_unusual_addresses_are_taken(address: str, clock: SetClock) -> None:
    with MailServer() as server:
        made(server, clock, **{"from": address, "to": address}).handle(failure())
    assert len(server.mails) == 1


@pytest.mark.parametrize("host", ["mail..example.org", "m" * 70 + ".example.org", "mail\0.example.org"])
def test_a_name_that_no_host_can_have_is_an_error_as_one_that_is_not_there(host: str, clock: SetClock) -> None:
    """Looking it up is a UnicodeError or ValueError, not an OSError."""
    with MailServer() as server:
        handler = made(server, clock, host=host)
        with pytest.raises(EjpyError, match="mail not sent: "):
            handler.handle(failure())


@pytest.mark.parametrize("begin", [b"", b"220-"], ids=["one endless line", "endlessly many lines"])
def test_a_server_that_drips_is_given_up_when_the_time_for_the_whole_mail_is_over(begin: bytes, clock: SetClock) -> None:
    """No single wait is ever long enough for a time-out."""
    with Dripping(begin, b"x" if not begin else b"x\r\n220-") as server:
        props = {"email.host": "127.0.0.1", "email.port": str(server.port), "email.useSsl": "false"}
        handler = EmailHandler(props | {"email.from": "a@example.org", "email.to": "b@example.org"}, clock)
        handler.delivery_seconds = 0.3
        with in_a_thread(lambda: handler.handle(failure())) as errors:
            pass
    assert [str(error) for error in errors] == [f"mail server 127.0.0.1:{server.port}: mail not sent: not done within 0.3 s"]
