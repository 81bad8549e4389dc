"""The ledger's entry: what is written is read back, rubbish is refused as such, and what happens to an entry happens rightly."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ejpy.coordination.ledger import NOT_RUN_KEPT, Asked, Basis, Entry, NotRunRange, new_entry
from ejpy.coordination.ledger_document import decode, encode
from ejpy.errors import BrokenEntry, NewerEntry, RegistryError
from ejpy.terms import NotRun, Outcome, Reason
from tests.unit.coordination.situations import BASIS, CHANGED, MINUTE, at, idle, ran, running

PATH = "/ns.ledger/job/3"
LEAST = {"v": 1, "accounted_until": "2026-03-02T10:00:00Z", "cron": "0 * * * * ?"}

_offsets = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
times = st.datetimes(datetime(2000, 1, 2), datetime(2199, 1, 1), timezones=_offsets | st.just(timezone.utc))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
ranges = st.builds(NotRunRange, times, times, st.sampled_from(NotRun))
entries = st.builds(
    Entry,
    accounted_until=times,
    basis=st.builds(Basis, st.text(), st.none() | st.text(), st.none() | st.integers(1, 100_000)),
    suspended=st.booleans(),
    not_run=st.lists(ranges, max_size=4).map(tuple),
    fire=st.none() | times,
    attempt=st.integers(0, 10**6),
    reason=st.none() | st.sampled_from(Reason),
    owner=st.none() | st.text(),
    running=st.booleans(),
    token=st.integers(0, 2**63),
    claimed=st.none() | times,
    ended=st.none() | times,
    outcome=st.none() | st.sampled_from(Outcome),
    checkpoint=json_values,
    to_recover=st.booleans(),
    overdue=st.booleans(),
    hand_over=st.booleans(),
)


def document(**changes: Any) -> bytes:
    return json.dumps(LEAST | changes).encode()


# ---- as JSON ----------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(entries)
def test_what_was_written_is_read_back(entry: Entry) -> None:
    assert decode(encode(entry), 99, PATH) == entry


def test_the_document() -> None:
    """Its keys and values never change meaning: workers of different releases share a ledger."""
    entry = replace(
        running("10:05", "10.0.0.1@-@11.aa", attempt=2, reason=Reason.OWNER_LOST),
        accounted_until=at("10:05"),
        not_run=(NotRunRange(at("10:00"), at("10:04"), NotRun.MISSED),),
    )
    assert json.loads(encode(entry)) == {
        "v": 1,
        "accounted_until": "2026-03-02T10:05:00Z",
        "cron": "a",
        "time_zone": "UTC",
        "sharding_total_count": 5,
        "not_run": [["2026-03-02T10:00:00Z", "2026-03-02T10:04:00Z", "missed"]],
        "fire": "2026-03-02T10:05:00Z",
        "attempt": 2,
        "reason": "owner_lost",
        "owner": "10.0.0.1@-@11.aa",
        "running": True,
        "token": 7,
        "claimed": "2026-03-02T10:05:01Z",
        "checkpoint": {"row": 17},
    }


def test_an_entry_of_before_item_counts_were_noted_takes_the_present_one() -> None:
    assert decode(document(), 5, PATH, count=7).basis.sharding_total_count == 7
    assert decode(document(), 5, PATH).basis.sharding_total_count is None
    assert decode(document(sharding_total_count=3), 5, PATH, count=7).basis.sharding_total_count == 3


def test_a_new_entry_starts_at_the_next_fire() -> None:
    entry = new_entry(BASIS, at("10:00:00.25"))
    assert json.loads(encode(entry)) == {
        "v": 1,
        "accounted_until": "2026-03-02T10:00:00.250000Z",
        "cron": "a",
        "time_zone": "UTC",
        "sharding_total_count": 5,
    }
    assert decode(encode(entry), 99, PATH) == entry
    assert entry.token is None, "nothing was claimed"


@given(entries)
@settings(deadline=None)
def test_times_are_written_and_read_in_utc(entry: Entry) -> None:
    read = decode(encode(entry), 99, PATH)
    found = [read.accounted_until, read.fire, read.claimed, read.ended, *(r.after for r in read.not_run)]
    assert all(time is None or time.utcoffset() == timedelta(0) for time in found)


@pytest.mark.parametrize("checkpoint", [0, False, "", [], {}, 0.0, [None]])
def test_a_checkpoint_that_counts_as_false_is_kept(checkpoint: Any) -> None:
    read = decode(encode(running("10:00", "x", checkpoint=checkpoint)), 99, PATH)
    assert read.checkpoint == checkpoint
    assert type(read.checkpoint) is type(checkpoint)


def test_unknown_keys_are_passed_over() -> None:
    """A later release may write more."""
    assert decode(document(since="3.0", more={"x": [1]}), 5, PATH) == decode(document(), 5, PATH)


def test_a_later_format_is_refused() -> None:
    with pytest.raises(NewerEntry, match=rf"^{PATH}: of a later ejpy \(format 2\).*upgrade this worker"):
        decode(document(v=2), 5, PATH)


@pytest.mark.parametrize("version", [0, -1, 1.5, "1", "2", None, [1]])
def test_a_format_that_never_was_is_rubbish(version: object) -> None:
    with pytest.raises(BrokenEntry) as broken:
        decode(document(v=version), 5, PATH)
    assert not isinstance(broken.value, NewerEntry), "nobody shall wait for an upgrade"


# ---- the token ----------------------------------------------------------------------------------------------------------


def test_the_token_of_a_claim_is_the_revision_that_its_node_got() -> None:
    claimed = idle("09:59").claim(at("10:00"), Reason.SCHEDULED, "me", at("10:00"), monitored=True)
    assert "token" not in json.loads(encode(claimed))
    assert decode(encode(claimed), 4711, PATH).token == 4711


def test_the_token_stays_when_the_node_is_written_again() -> None:
    """A checkpoint, the end, the leader's mark: later revisions are not the claim's."""
    claimed = idle("09:59").claim(at("10:00"), Reason.SCHEDULED, "me", at("10:00"), monitored=True)
    read = decode(encode(claimed), 4711, PATH)
    for later in (
        read.save({"row": 1}, 4711),
        read.end(Outcome.SUCCEEDED, 4711, at("10:01")),
        read.interrupt(4711, at("10:01"), recover=True),
        read.give_back(4711, at("09:59")),
        read.mark_overdue(),
        read.ask_for_hand_over(),
        read.rebase(CHANGED, at("10:02")),
        read.record(at("10:00"), at("10:01"), NotRun.MISSED),
    ):
        assert decode(encode(later), 5000, PATH).token == 4711


def test_a_further_claim_gets_a_token_of_its_own() -> None:
    ended = ran("10:00", "10:00", "10:01")
    again = ended.claim(at("10:05"), Reason.SCHEDULED, "me", at("10:05"), monitored=False)
    assert decode(encode(again), 5001, PATH).token == 5001


def test_without_an_attempt_there_is_no_token() -> None:
    assert decode(document(), 4711, PATH).token is None


# ---- what is no entry ---------------------------------------------------------------------------------------------------

BROKEN = {
    "empty": b"",
    "not UTF-8": b"\xff\xfe{}",
    "not JSON": b"{",
    "a text": b'"idle"',
    "a number": b"1",
    "a list": b"[]",
    "null": b"null",
    "an empty object": b"{}",
    "no version": json.dumps({k: v for k, v in LEAST.items() if k != "v"}).encode(),
    "no time": b'{"v":1,"cron":"x"}',
    "no cron": b'{"v":1,"accounted_until":"2026-03-02T10:00:00Z"}',
    "a time that is none": document(accounted_until="soon"),
    "a time that is a number": document(accounted_until=1234567890),
    "a 13th month": document(fire="2026-13-02T10:00:00Z"),
    "an unknown reason": document(reason="because"),
    "an unknown outcome": document(outcome="fine"),
    "an unknown not_run": document(not_run=[["2026-03-02T10:00:00Z", "2026-03-02T10:00:00Z", "bored"]]),
    "a range of two": document(not_run=[["2026-03-02T10:00:00Z", "2026-03-02T10:00:00Z"]]),
    "not_run that is a number": document(not_run=5),
    "an attempt that is a word": document(attempt="two"),
    "an attempt that is null": document(attempt=None),
    "an attempt that is a list": document(attempt=[1]),
    "a token that is a word": document(token="7a"),
    "a token that is NaN": document(token=float("nan")),
    "an attempt without end": document(attempt=float("inf")),
    "a token without end": document(token=float("inf")),
    "a time before all times": document(fire="0001-01-01T00:00:00+10:00"),
    "nested without end": b"[" * 200_000,
    "a checkpoint nested without end": document()[:-1] + b',"checkpoint":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "an owner that is a list": document(owner=["10.0.0.1@-@11"]),
    "an owner that is an object": document(owner={}),
    "a zone that is a list": document(time_zone=["UTC"]),
    "a zone that is a number": document(time_zone=1),
    "a count that is a word": document(sharding_total_count="3"),
    "a count of none": document(sharding_total_count=0),
    "a count that is true": document(sharding_total_count=True),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_rubbish_is_refused_as_such(data: bytes) -> None:
    with pytest.raises(BrokenEntry, match=rf"^{PATH}: not a ledger entry \(\w+: .") as broken:
        decode(data, 5, PATH)
    assert not isinstance(broken.value, NewerEntry)


def test_a_broken_entry_is_an_error_of_the_registry() -> None:
    assert issubclass(BrokenEntry, RegistryError)
    assert issubclass(NewerEntry, BrokenEntry)


def only_known_types(entry: Entry) -> bool:
    """What may be compared, looked up in a mapping and written again."""
    times = [entry.accounted_until, *(t for t in (entry.fire, entry.claimed, entry.ended) if t is not None)]
    times += [t for r in entry.not_run for t in (r.after, r.until)]
    texts = [entry.basis.cron, *(t for t in (entry.basis.time_zone, entry.owner) if t is not None)]
    numbers = [entry.attempt, *([entry.token] if entry.token is not None else [])]
    return (
        all(isinstance(time, datetime) and time.utcoffset() == timedelta(0) for time in times)
        and all(isinstance(text, str) for text in texts)
        and all(isinstance(number, int) for number in numbers)
        and all(
            isinstance(flag, bool) for flag in (entry.suspended, entry.running, entry.to_recover, entry.overdue, entry.hand_over)
        )
    )


KEYS = [
    *json.loads(encode(running("10:00", "x"))),
    "ended",
    "outcome",
    "suspended",
    "to_recover",
    "overdue",
    "hand_over",
    "not_run",
]
oddities = (
    json_values
    | st.sampled_from([float("inf"), float("-inf"), float("nan")])
    | st.sampled_from(["2026-03-02T10:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "10:00", "Z"])
)


@settings(deadline=None, max_examples=500)
@given(st.dictionaries(st.sampled_from(KEYS), oddities), st.booleans())
@example({"attempt": float("inf")}, True)
def test_any_document_is_an_entry_of_the_right_types_or_broken(changes: dict[str, Any], least: bool) -> None:
    data = json.dumps((LEAST if least else {}) | changes).encode()
    try:
        entry = decode(data, 5, PATH)
    except BrokenEntry:
        return
    assert only_known_types(entry)
    assert only_known_types(decode(encode(entry), 5, PATH)), "it cannot be written again"


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=60))
def test_any_bytes_are_an_entry_or_broken(data: bytes) -> None:
    with pytest.raises(BrokenEntry):
        decode(data, 5, PATH)


@pytest.mark.parametrize("key", ["owner", "cron", "time_zone", "checkpoint"])
def test_half_a_surrogate_pair_is_refused_or_can_be_written_again(key: str) -> None:
    r"""JSON may say "\ud800", which no UTF-8 can hold: an entry that can be read and never written would block its item."""
    data = document(**{key: "\ud800"})
    try:
        entry = decode(data, 5, PATH)
    except BrokenEntry:
        return
    encode(entry)


def test_a_time_without_offset_means_the_same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused, or taken as UTC; not as whatever zone the reading worker lives in."""
    import time

    found = set()
    try:
        for zone in ("UTC", "Asia/Tokyo", "America/New_York"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            try:
                found.add(decode(document(accounted_until="2026-03-02T10:00:00"), 5, PATH).accounted_until)
            except BrokenEntry:
                found.add(None)  # type: ignore[arg-type]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert len(found) == 1


# ---- what happens to an entry ---------------------------------------------------------------------------------------------


def test_a_claim_of_another_fire_starts_anew() -> None:
    before = ran("10:00", "10:00", "10:01", attempt=3, outcome=Outcome.FAILED, checkpoint={"row": 1})
    before = replace(before, overdue=True, hand_over=True)
    assert before.claim(at("10:05"), Reason.CATCH_UP, "you", at("10:06"), monitored=True) == replace(
        before,
        fire=at("10:05"),
        attempt=1,
        reason=Reason.CATCH_UP,
        owner="you",
        running=True,
        token=None,
        claimed=at("10:06"),
        ended=None,
        outcome=None,
        checkpoint=None,
        overdue=False,
        hand_over=False,
    )


def test_a_claim_of_the_same_fire_is_a_further_attempt_from_the_checkpoint() -> None:
    before = running("10:00", "dead").interrupt(7, at("10:03"), recover=True)
    claimed = before.claim(at("10:00"), Reason.OWNER_LOST, "you", at("10:04"), monitored=True)
    assert (claimed.attempt, claimed.checkpoint, claimed.reason) == (2, {"row": 17}, Reason.OWNER_LOST)
    assert (claimed.running, claimed.to_recover, claimed.outcome, claimed.ended) == (True, False, None, None)
    third = claimed.claim(at("10:00"), Reason.OWNER_LOST, "him", at("10:06"), monitored=True)
    assert (third.attempt, third.checkpoint) == (3, {"row": 17})


def test_a_claim_that_is_not_monitored_leaves_no_mark_of_running() -> None:
    claimed = idle("09:59").claim(at("10:00"), Reason.SCHEDULED, "me", at("10:00"), monitored=False)
    assert not claimed.running
    assert (claimed.fire, claimed.attempt) == (at("10:00"), 1)


@pytest.mark.parametrize("outcome", Outcome)
def test_an_end(outcome: Outcome) -> None:
    ended = running("10:00", "me").end(outcome, 7, at("10:02"))
    assert (ended.running, ended.outcome, ended.ended, ended.token) == (False, outcome, at("10:02"), 7)
    assert ended.checkpoint is None, "the fire is done: nothing goes on from there"
    assert (ended.fire, ended.attempt, ended.owner) == (at("10:00"), 1, "me")


@pytest.mark.parametrize("recover", [True, False])
def test_an_interruption_keeps_the_checkpoint_only_for_a_further_attempt(recover: bool) -> None:
    entry = running("10:00", "me").interrupt(7, at("10:02"), recover=recover)
    assert (entry.running, entry.outcome, entry.to_recover) == (False, Outcome.INTERRUPTED, recover)
    assert entry.checkpoint == ({"row": 17} if recover else None)


def test_an_interrupted_fire_that_is_not_recovered_is_recorded_as_not_run() -> None:
    lost = running("10:00", "me").interrupt(7, at("10:02"), recover=False)
    assert [(r.until, r.why) for r in lost.not_run] == [(at("10:00"), NotRun.INTERRUPTED)]
    assert at("10:00") - MINUTE < lost.not_run[0].after < at("10:00"), "one fire, and no other"
    assert lost.accounted_until == at("10:00")
    assert running("10:00", "me").interrupt(7, at("10:02"), recover=True).not_run == ()
    assert idle("10:00").interrupt(0, at("10:02"), recover=False).not_run == (), "there was no fire"


def test_the_leaders_marks() -> None:
    entry = running("10:00", "me")
    assert entry.ask_for_hand_over() == replace(entry, hand_over=True)
    assert entry.ask_for_hand_over().ask_for_hand_over(False) == entry
    assert entry.ask_for_hand_over().mark_overdue() == replace(entry, overdue=True), "it was moved: nothing is asked any more"


def test_a_fire_that_was_given_back_is_due_again_and_its_next_claim_a_further_attempt() -> None:
    entry = running("10:00", "me", checkpoint=None).give_back(7, at("09:59:59.999999"))
    assert not entry.running
    assert entry.accounted_until < at("10:00")
    assert entry.claim(at("10:00"), Reason.CATCH_UP, "you", at("10:01"), monitored=True).attempt == 2


@given(times, times)
@settings(deadline=None)
def test_accounted_until_never_goes_back(start: datetime, then: datetime) -> None:
    entry = replace(idle("10:00"), accounted_until=start)
    for later in (
        entry.account(then),
        entry.record(start, then, NotRun.MISSED),
        entry.rebase(CHANGED, then),
        entry.rebase(CHANGED, then, suspended=True),
    ):
        assert later.accounted_until == max(start, then)
    untouched = (
        entry.claim(then, Reason.SCHEDULED, "me", then, monitored=True),
        entry.end(Outcome.SUCCEEDED, 1, then),
        entry.interrupt(1, then, recover=True),
        entry.save(1, 1),
        entry.mark_overdue(),
        entry.ask_for_hand_over(),
    )
    assert all(later.accounted_until == start for later in untouched)


def test_a_range_that_follows_on_the_last_with_the_same_reason_extends_it() -> None:
    entry = idle("10:00").record(at("10:00"), at("10:01"), NotRun.MISSED).record(at("10:01"), at("10:03"), NotRun.MISSED)
    assert entry.not_run == (NotRunRange(at("10:00"), at("10:03"), NotRun.MISSED),)
    assert entry.accounted_until == at("10:03")


@pytest.mark.parametrize(("after", "why"), [("10:01", NotRun.TOO_LATE), ("10:02", NotRun.MISSED)])
def test_a_range_with_another_reason_or_after_a_gap_is_one_more(after: str, why: NotRun) -> None:
    entry = idle("10:00").record(at("10:00"), at("10:01"), NotRun.MISSED).record(at(after), at("10:03"), why)
    assert entry.not_run == (
        NotRunRange(at("10:00"), at("10:01"), NotRun.MISSED),
        NotRunRange(at(after), at("10:03"), why),
    )


def test_of_many_ranges_the_newest_are_kept() -> None:
    entry = idle("10:00")
    for minute in range(NOT_RUN_KEPT + 5):
        start = at("10:00") + 2 * minute * MINUTE
        entry = entry.record(start, start + MINUTE, NotRun.OVERLAP)
    assert len(entry.not_run) == NOT_RUN_KEPT
    assert entry.not_run[-1].until == entry.accounted_until
    assert entry.not_run[0].after == at("10:10")


@pytest.mark.parametrize("suspended", [True, False])
def test_a_rebase_forgets_what_passed(suspended: bool) -> None:
    before = replace(running("10:00", "me").interrupt(7, at("10:02"), recover=True), overdue=True)
    entry = before.rebase(CHANGED, at("10:30"), suspended=suspended)
    assert (entry.basis, entry.suspended, entry.accounted_until) == (CHANGED, suspended, at("10:30"))
    assert (entry.to_recover, entry.overdue) == (False, False)
    assert (entry.fire, entry.attempt, entry.token, entry.ended) == (at("10:00"), 1, 7, at("10:02")), "history stays"


def test_every_field_of_an_entry_is_written() -> None:
    """A field that is forgotten in `encode` or `decode` would be lost with the first change of owner."""
    odd = Entry(
        accounted_until=at("10:01"),
        basis=Basis("x", None, None),
        suspended=True,
        not_run=(NotRunRange(at("10:00"), at("10:01"), NotRun.OVERLAP),),
        fire=at("10:02"),
        attempt=2,
        reason=Reason.MISFIRE,
        owner="me",
        running=True,
        token=3,
        claimed=at("10:03"),
        ended=at("10:04"),
        outcome=Outcome.FAILED,
        checkpoint=1,
        to_recover=True,
        overdue=True,
        hand_over=True,
        asked=Asked(at("10:05"), Reason.TRIGGER),
        asked_revision=1006,
        unscheduled=True,
        usual_seconds=1.5,
        usual_runs=3,
    )
    unset = Entry(accounted_until=at("10:00"), basis=Basis("y", "UTC", 3))
    for field in fields(Entry):
        changed = replace(odd, **{field.name: getattr(unset, field.name)})
        assert changed != odd
        expected = replace(changed, token=9) if field.name == "token" else changed
        assert decode(encode(changed), 9, PATH) == expected, field.name
