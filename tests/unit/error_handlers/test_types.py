"""Names of error handlers, entry points, and what a failure is made of."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from ejpy.attempt import Attempt
from ejpy.error_handlers import HandlerSettings, failure_of, handler_class, problems_of
from ejpy.error_handlers.local import IgnoreHandler, LogHandler, ThrowHandler
from ejpy.error_handlers.mail import EmailHandler
from ejpy.error_handlers.secrets import without_secrets
from ejpy.error_handlers.webhook import DingTalkHandler, SlackHandler, WeChatHandler
from ejpy.errors import ConfigError, ScriptFailed
from ejpy.execution.base import Ended
from ejpy.logs import TextFormatter, fields_of
from ejpy.terms import Outcome, Reason
from tests.unit.error_handlers.failures import INSTANT, Recording, SetClock, failure


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (None, LogHandler),
        ("", LogHandler),
        ("LOG", LogHandler),
        ("Throw", ThrowHandler),
        ("ignore", IgnoreHandler),
        ("email", EmailHandler),
        ("WeChat", WeChatHandler),
        ("DINGTALK", DingTalkHandler),
        ("slack", SlackHandler),
    ],
)
def test_own_names_in_any_case(name: str | None, expected: type) -> None:
    assert handler_class(name) is expected


@pytest.mark.usefixtures("provided")
class TestEntryPoints:
    @pytest.mark.parametrize("name", ["Pager", "PAGER", "pager"])
    def test_an_entry_point_adds_a_name_in_any_case(self, name: str) -> None:
        assert handler_class(name) is Recording

    def test_an_own_name_cannot_be_taken(self) -> None:
        assert handler_class("log") is LogHandler

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            (
                "missing_module",
                "entry point ejpy.error_handlers 'missing_module = shop_that_is_not_there:Pager' (alerts 1.2) cannot be loaded:"
                " ModuleNotFoundError: No module named 'shop_that_is_not_there'",
            ),
            (
                "missing_class",
                "entry point ejpy.error_handlers 'missing_class = tests.unit.error_handlers.failures:Pagr' (alerts 1.2) cannot be"
                " loaded: AttributeError: module 'tests.unit.error_handlers.failures' has no attribute 'Pagr'",
            ),
            (
                "no_handler",
                "entry point ejpy.error_handlers 'no_handler = tests.unit.error_handlers.failures:NoHandler' (alerts 1.2) is not"
                " a subclass of JobErrorHandler",
            ),
            (
                "abstract",
                "entry point ejpy.error_handlers 'abstract = ejpy.error_handlers:JobErrorHandler' (alerts 1.2) is abstract;"
                " it must define handle",
            ),
            (
                "Twice",
                "entry point ejpy.error_handlers 'TWICE' is provided more than once:"
                " 'TWICE = tests.unit.error_handlers.failures:Each' (alerts 1.2),"
                " 'twice = tests.unit.error_handlers.failures:Recording' (alerts 1.2); uninstall one",
            ),
            ("Pagr", "error handler 'Pagr' is unknown; did you mean Pager?"),
        ],
    )
    def test_one_that_cannot_be_used_is_one_line_that_names_it(self, name: str, expected: str) -> None:
        with pytest.raises(ConfigError) as raised:
            handler_class(name)
        assert list(raised.value.problems) == [expected]
        assert problems_of(HandlerSettings(name)) == [expected]


def test_an_unknown_name_tells_what_is_allowed() -> None:
    with pytest.raises(
        ConfigError, match="error handler 'x' is unknown; allowed: LOG, THROW, IGNORE, EMAIL, WECHAT, DINGTALK, SLACK"
    ):
        handler_class("x")


# ---- the handlers that send nothing -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["LOG", "THROW"])
def test_log_and_throw_write_one_record_with_fields_and_trace(
    name: str, clock: SetClock, caplog: pytest.LogCaptureFixture
) -> None:
    handler_class(name)({}, clock).handle(failure())
    [record] = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "failed: ValueError: no such order")
    assert fields_of(record) == {
        "job": "shop",
        "item": 3,
        "scheduled_time": INSTANT,
        "token": 17,
        "attempt": 2,
        "reason": Reason.OWNER_LOST,
    }
    assert "    Traceback (most recent call last):" in TextFormatter().format(record)


@pytest.mark.parametrize(("level", "repeated"), [(logging.INFO, False), (logging.WARNING, True)])
def test_the_output_of_a_script_is_logged_with_its_failure_only_if_it_was_not_logged_before(
    level: int, repeated: bool, clock: SetClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(level, "ejpy.job.shop")
    output = str(ScriptFailed("exit code 3", last_lines=["one", "two"])).partition("\n")[2]
    LogHandler({}, clock).handle(failure(error="ScriptFailed: exit code 3: two", traceback=output))
    [record] = caplog.records
    assert record.getMessage() == "failed: ScriptFailed: exit code 3: two"
    assert (record.exc_text == "last lines of its output:\none\ntwo") is repeated
    assert (record.exc_text is None) is not repeated


def test_ignore_does_nothing(clock: SetClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    handler_class("IGNORE")({}, clock).handle(failure())
    assert caplog.records == []


# ---- failures -----------------------------------------------------------------------------------------------------

ATTEMPT = Attempt(
    job_name="shop",
    job_class="m:C",
    job_parameter="",
    sharding_total_count=4,
    sharding_item=3,
    sharding_parameter=None,
    task_id="t",
    scheduled_time=INSTANT,
    attempt=2,
    reason=Reason.OWNER_LOST,
    fencing_token=17,
    checkpoint=None,
    timeout_seconds=1.5,
)


@pytest.mark.parametrize(
    ("outcome", "error", "abandoned", "expected"),
    [
        (Outcome.FAILED, "ValueError: x", False, "ValueError: x"),
        (Outcome.FAILED, None, False, "failed, and did not say why"),
        (Outcome.TIMED_OUT, None, False, "ran past the job's timeout of 1.5 s"),
        (Outcome.TIMED_OUT, None, True, "ran past the job's timeout of 1.5 s and could not be stopped"),
        (Outcome.SUCCEEDED, None, False, None),
        (Outcome.CANCELLED, None, False, None),
        (Outcome.INTERRUPTED, None, False, None),
        (None, None, False, None),
    ],
)
def test_what_counts_as_a_failure(outcome: Outcome | None, error: str | None, abandoned: bool, expected: str | None) -> None:
    ended = Ended(outcome, INSTANT, INSTANT + timedelta(seconds=5), error, abandoned)
    found = failure_of(ATTEMPT, ended, "10.0.0.7@-@4242.k3", traceback="trace")
    if expected is None:
        assert found is None
    else:
        assert found == failure(error=expected, traceback="trace")


# ---- secrets ------------------------------------------------------------------------------------------------------


def test_secrets_are_blotted_out_in_whatever_form_they_appear() -> None:
    props = {
        "email.password": "pa55",
        "dingtalk.secret": "SEC9",
        "dingtalk.webhook": "https://robot:hunter22@example.org/robot/send?access_token=abcdef123&x=1",
        "pager.api.key": "k3y",
        "email.to": "ann@example.org",
        "other.token": " ",
    }
    text = (
        "pa55 SEC9 k3y ann@example.org https://robot:hunter22@example.org/robot/send?access_token=abcdef123&x=1 "
        "/robot/send?access_token=abcdef123&x=1 abcdef123 hunter22 robot"
    )
    assert without_secrets(text, props) == "*** *** *** ann@example.org *** *** *** *** robot"
