"""The ledger as docs/operations.md shows it: a document that ejpy reads and writes so, and the name of every field."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from datetime import datetime, timezone
from pathlib import Path

from ejpy.coordination.ledger import Asked, Basis, Entry, NotRunRange
from ejpy.coordination.ledger_document import decode, encode
from ejpy.terms import NotRun, Outcome, Reason

PAGE = Path(__file__).resolve().parent.parent.parent.parent / "docs" / "operations.md"
NOW = datetime(2026, 11, 30, 17, tzinfo=timezone.utc)

FULL = Entry(
    accounted_until=NOW,
    basis=Basis("* * * * * ?", "Europe/Berlin", 3),
    suspended=True,
    not_run=(NotRunRange(NOW, NOW, NotRun.MISSED),),
    fire=NOW,
    attempt=1,
    reason=Reason.SCHEDULED,
    owner="i",
    running=True,
    token=1,
    claimed=NOW,
    ended=NOW,
    outcome=Outcome.FAILED,
    checkpoint="c",
    to_recover=True,
    overdue=True,
    hand_over=True,
    asked=Asked(NOW, Reason.TRIGGER),
    asked_revision=1,
    unscheduled=True,
    usual_seconds=1.0,
    usual_runs=1,
)


def section() -> str:
    return PAGE.read_text().partition("## What is stored where")[2].partition("\n## ")[0]


def test_the_document_on_the_page_is_one() -> None:
    shown = re.search(r"^\{.*?\}$", section(), re.MULTILINE | re.DOTALL)
    assert shown
    document = json.loads(shown[0])
    assert json.loads(encode(decode(shown[0].encode(), 90, "/shop.ledger/order-sync/0"))) == document


def test_every_field_is_on_the_page() -> None:
    assert not [field.name for field in fields(FULL) if not getattr(FULL, field.name)], "the entry above must have all"
    missing = {name for name in json.loads(encode(FULL)) if not re.search(rf'["`]{name}["`]', section())}
    assert missing == set()
