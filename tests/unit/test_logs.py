from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest

from ejpy import logs
from ejpy.job import ShardContext
from ejpy.logs import ContextFields, FieldsAdapter, configure, current_fields, fields
from ejpy.terms import Outcome

INSTANT = datetime(2026, 3, 1, 12, 0, 30, tzinfo=timezone.utc)
ATTEMPT: dict[str, Any] = {
    "job": "shop",
    "item": 3,
    "scheduled_time": INSTANT,
    "token": 17,
    "attempt": 1,
    "reason": "scheduled",
    "task_id": "shop@-@3",
}


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """A stream to configure logging with; what `configure` changed is put back."""
    root = logging.getLogger()
    names = ("kazoo", "apscheduler")
    before = root.level, list(root.handlers), [logging.getLogger(name).level for name in names]
    yield io.StringIO()
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    for name, level in zip(names, before[2], strict=True):
        logging.getLogger(name).setLevel(level)


def text_line(stream: io.StringIO) -> str:
    """What was printed, without the time."""
    time, _, rest = stream.getvalue().partition(" ")
    assert datetime.fromisoformat(time.replace("Z", "+00:00")).utcoffset() is not None
    return rest


def in_body(call: Any) -> None:
    """Call something as in a body's context."""
    import contextvars

    def inside() -> None:
        current_fields.set(ATTEMPT)
        call()

    contextvars.copy_context().run(inside)


def test_text_has_time_level_logger_message_and_fields(stream: io.StringIO) -> None:
    configure("info", "text", stream)
    logging.getLogger("ejpy.items").info("claimed %d", 1, extra=fields(job="shop", item=3, token=17, scheduled_time=INSTANT))
    assert text_line(stream) == "INFO    ejpy.items claimed 1 job=shop item=3 scheduled=2026-03-01T12:00:30Z token=17\n"


def test_lines_without_fields_have_none(stream: io.StringIO) -> None:
    configure("info", "text", stream)
    logging.getLogger("shop").warning("hello")
    assert text_line(stream) == "WARNING shop hello\n"


def test_a_job_s_own_lines_carry_the_fields_of_its_body(stream: io.StringIO) -> None:
    configure("info", "text", stream)
    in_body(lambda: logging.getLogger("shop").info("sold"))
    logging.getLogger("shop").info("outside")
    first, second = stream.getvalue().splitlines()
    assert first.endswith("shop sold job=shop item=3 scheduled=2026-03-01T12:00:30Z token=17")
    assert second.endswith("shop outside")


def test_the_context_s_logger_carries_the_fields_in_any_thread(stream: io.StringIO) -> None:
    configure("info", "text", stream)
    context = ShardContext.for_test(job_name="shop", sharding_item=3, sharding_total_count=4, fencing_token=17)
    context.log.info("sold %s", "it", extra=fields(rows=5))
    assert text_line(stream) == "INFO    ejpy.job.shop sold it job=shop item=3 scheduled=2026-01-01T00:00:00Z token=17 rows=5\n"


def test_what_is_out_of_the_ordinary_is_shown(stream: io.StringIO) -> None:
    configure("info", "text", stream)
    log = FieldsAdapter(logging.getLogger("ejpy.x"), {**ATTEMPT, "attempt": 2, "reason": "owner_lost"})
    log.info("begun")
    assert text_line(stream).endswith("token=17 attempt=2 reason=owner_lost\n")


def test_the_call_s_own_fields_win(stream: io.StringIO) -> None:
    configure("info", "text", stream)
    in_body(lambda: logging.getLogger("shop").info("sold", extra=fields(item=9)))
    assert " job=shop item=9 " in stream.getvalue()


def test_no_value_and_no_message_can_pass_for_another_line_or_field(stream: io.StringIO) -> None:
    configure("info", "text", stream)
    logging.getLogger("shop").info("one\ntwo\r\x1b[2J", extra=fields(job='a" item=7', empty="", end="x\ny"))
    assert text_line(stream) == 'INFO    shop one\\ntwo\\r\\x1b[2J job="a\\" item=7" empty="" end="x\\ny"\n'


def test_a_trace_follows_indented(stream: io.StringIO) -> None:
    configure("info", "text", stream)
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger("shop").exception("failed")
    lines = stream.getvalue().splitlines()
    assert lines[0].endswith("ERROR   shop failed")
    assert lines[1] == "    Traceback (most recent call last):"
    assert lines[-1] == "    ValueError: bad"


def test_json_is_one_object_a_line_with_all_fields(stream: io.StringIO) -> None:
    configure("info", "json", stream)
    in_body(lambda: logging.getLogger("shop").info("sold\n北京", extra=fields(outcome=Outcome.FAILED, rows=[1, 2])))
    (line,) = stream.getvalue().splitlines()
    event = json.loads(line)
    datetime.fromisoformat(event.pop("time").replace("Z", "+00:00"))
    assert event == {
        "level": "INFO",
        "logger": "shop",
        "message": "sold\n北京",
        "job": "shop",
        "item": 3,
        "scheduled_time": "2026-03-01T12:00:30Z",
        "token": 17,
        "attempt": 1,
        "reason": "scheduled",
        "task_id": "shop@-@3",
        "outcome": "failed",
        "rows": [1, 2],
    }


def test_json_has_the_exception_as_text_and_no_field_hides_the_event_s_own(stream: io.StringIO) -> None:
    configure("info", "json", stream)
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger("shop").exception("failed", extra=fields(message="forged", odd=object))
    event = json.loads(stream.getvalue())
    assert event["exception"].endswith("ValueError: bad")
    assert event["message"] == "failed"
    assert "object" in event["odd"]


def test_level_and_format_are_checked(stream: io.StringIO) -> None:
    with pytest.raises(ValueError, match="log level 'loud' is unknown: use debug"):
        configure("loud", "text", stream)
    with pytest.raises(ValueError, match="log format 'xml' is unknown: use text or json"):
        configure("info", "xml", stream)  # type: ignore[arg-type]  # what is tested
    assert not any(type(handler).__module__ == logs.__name__ for handler in logging.getLogger().handlers)


def test_the_level_holds_and_configuring_again_replaces(stream: io.StringIO) -> None:
    configure("info", "json", sys.stdout)
    configure("WARNING", "text", stream)
    logging.getLogger("shop").info("quiet")
    logging.getLogger("shop").warning("loud")
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize(("level", "shown"), [("debug", {"info", "warning"}), ("info", {"warning"}), ("error", set())])
def test_k5_requests_of_the_registry_client_are_never_printed(stream: io.StringIO, level: str, shown: set[str]) -> None:
    """K5: kazoo prints its requests at DEBUG, the one with the password among them."""
    configure(level, "text", stream)
    for name in ("debug", "info", "warning"):
        getattr(logging.getLogger("kazoo.client"), name)("kazoo-%s", name)
    assert {name for name in ("debug", "info", "warning") if f"kazoo-{name}" in stream.getvalue()} == shown


def test_the_filter_serves_handlers_of_applications() -> None:
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Keep()
    handler.addFilter(ContextFields())
    logger = logging.getLogger("application")
    logger.addHandler(handler)
    try:
        in_body(lambda: logger.warning("inside"))
        logger.warning("outside")
    finally:
        logger.removeHandler(handler)
    assert [logs.fields_of(record).get("job") for record in records] == ["shop", None]
