"""Who is told when a job fails: real workers, and a chat that is a web server here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ejpy.config.document import from_document, to_document
from ejpy.registry.base import SetData
from ejpy.terms import Outcome
from tests.support.fleet import Fleet, job, sqlite_url
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.workers import WorkerProcess, said
from tests.unit.error_handlers.servers import Webhook

SLACK = b"ok"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(sqlite_url(tmp_path), tmp_path) as fleet:
        yield fleet


def failing(handler: str | None = None, *, error: str = "no such shop", **settings: Any) -> dict[str, Any]:
    given = {"job_parameter": error, **({"job_error_handler_type": handler} if handler else {}), **settings}
    return job(body="tests.cluster.kinds:Short", settings=given)


def failed(worker: WorkerProcess, name: str) -> list[dict[str, Any]]:
    """Its failures, as the worker's journal tells of them."""
    return said(worker, "ejpy.history", job=name, outcome=Outcome.FAILED.value)


def errors(worker: WorkerProcess, name: str) -> list[dict[str, Any]]:
    return [event for event in worker.events if event["level"] == "ERROR" and event.get("job") == name]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_each_handler_does_what_it_is_for_and_no_failure_is_logged_twice(fleet: Fleet, executor: str) -> None:
    with Webhook(SLACK) as chat:
        names: dict[str, dict[str, Any]] = {
            "default": failing(executor=executor),
            "log": failing("log", executor=executor),
            "throw": failing("THROW", executor=executor),
            "ignored": failing("IGNORE", executor=executor),
            "slack": failing("SLACK", executor=executor, props={"slack.webhook": f"{chat.address}/T/secret"}),
            "well": job(),
        }
        [worker] = fleet.start(fleet.write("jobs.yml", names), "a")
        bad = [name for name in names if name != "well"]
        wait_until(lambda: all(len(failed(worker, name)) >= 3 for name in bad), PATIENCE_SECONDS, "all have failed three times")
        worker.sigterm()
        assert worker.wait_exit(PATIENCE_SECONDS) == 0
    for name in bad:
        records = errors(worker, name)
        assert len(records) == (0 if name == "ignored" else len(failed(worker, name))), name
        for record in records:
            assert record["message"] == "failed: ValueError: no such shop"
            assert record["logger"] == f"ejpy.job.{name}"
            assert record["item"] == 0
            assert "in execute" in record["exception"]
    assert errors(worker, "well") == []
    [message] = chat.posted
    text = message.document["text"]
    assert text.startswith("Job 'slack', item 0 failed: ValueError: no such shop")
    assert "in execute" in text, "with the stack trace"
    [counted] = said(worker, "ejpy.error_handlers", level="INFO")
    more = len(failed(worker, "slack")) - 1
    assert counted["message"] == f"{more} more with the same error were not told: ValueError: no such shop"
    assert "T/secret" not in worker.log


def test_a_body_past_its_timeout_is_a_failure_to_be_told(fleet: Fleet) -> None:
    with Webhook(SLACK) as chat:
        props = {"slack.webhook": chat.address}
        settings = {"timeout": "1s", "job_error_handler_type": "SLACK", "props": props, "misfire": False}
        jobs = {"slow": job(seconds=1000, settings=settings)}
        [worker] = fleet.start(fleet.write("jobs.yml", jobs), "a", grace=0)
        wait_until(lambda: chat.posted, PATIENCE_SECONDS, "the chat was told")
        worker.sigterm()
        assert worker.wait_exit(PATIENCE_SECONDS) == 0
    assert chat.posted[0].document["text"].startswith("Job 'slow', item 0 failed: ran past the job's timeout of 1 s")


def test_an_operator_changes_who_is_told_while_the_job_runs_and_a_name_that_nobody_knows_is_said_once(fleet: Fleet) -> None:
    with Webhook(SLACK) as chat:
        [worker] = fleet.start(fleet.write("jobs.yml", {"bad": failing()}), "a")

        def change(handler: str, **props: str) -> None:
            path = fleet.paths("bad").config
            node = fleet.nodes("bad")[path]
            config = from_document(node.data, "bad", "m:C")
            changed = config.model_copy(update={"job_error_handler_type": handler, "props": props})
            fleet.change(SetData(path, to_document(changed, node.data), node.version))

        change("SLACK", **{"slack.webhook": chat.address})
        wait_until(lambda: chat.posted, PATIENCE_SECONDS, "the chat was told")
        change("PAGR")
        wait_until(
            lambda: "error handler 'PAGR' is unknown" in worker.log, PATIENCE_SECONDS, "it is said that nobody knows the handler"
        )
        seen = len(failed(worker, "bad"))
        wait_until(lambda: len(failed(worker, "bad")) > seen + 2, PATIENCE_SECONDS, "it has failed on")
        worker.sigterm()
        assert worker.wait_exit(PATIENCE_SECONDS) == 0
    assert worker.log.count("error handler 'PAGR' is unknown") == 1
    traces = [record for record in errors(worker, "bad") if "exception" in record]
    assert len(traces) == len(failed(worker, "bad")), "what cannot be told stands in the log"


def test_a_chat_that_hangs_holds_up_neither_the_jobs_nor_the_end(fleet: Fleet) -> None:
    with Webhook(SLACK) as chat:
        gone = chat.address
    props = {"slack.webhook": gone}  # nobody listens there any more
    [worker] = fleet.start(fleet.write("jobs.yml", {"bad": failing("SLACK", props=props)}), "a")
    wait_until(lambda: len(failed(worker, "bad")) >= 3, PATIENCE_SECONDS, "it fails on")
    wait_until(
        lambda: [event for event in said(worker, "ejpy.error_handlers") if "the error handler failed" in event["message"]],
        PATIENCE_SECONDS,
        "it is said that nobody could be told",
    )
    worker.sigterm()
    assert worker.wait_exit(PATIENCE_SECONDS) == 0
