"""Time zones: names, Java's offsets, and the changes of a zone's clocks."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from importlib import resources
from io import BytesIO
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest

from ejpy.errors import CronError
from ejpy.schedule.zones import segment_at, time_zone
from ejpy.wording import shown
from tests.unit.schedule.instants import fires, utc

SINCE = round(datetime(2016, 1, 1, tzinfo=timezone.utc).timestamp())


@pytest.mark.parametrize(
    ("name", "minutes"),
    [
        ("GMT+08:00", 480),
        ("GMT+8:00", 480),
        ("GMT+8", 480),
        ("GMT+08", 480),
        ("GMT+0800", 480),
        ("GMT+800", 480),
        ("GMT-3:30", -210),
        ("GMT-12", -720),
        ("GMT+23:59", 1439),
        ("GMT+0", 0),
        ("GMT", 0),
        ("UTC", 0),
        ("Asia/Kolkata", 330),
        ("Etc/GMT+8", -480),  # IANA's signs are the other way round
    ],
)
def test_names(name: str, minutes: int) -> None:
    assert time_zone(name).utcoffset(datetime(2026, 1, 1)) == timedelta(minutes=minutes)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Europe/Berln", "did you mean Europe/Berlin"),
        ("berlin", "did you mean Europe/Berlin"),
        ("America/New York", "did you mean America/New_York"),
        ("UTC+8", "did you mean GMT+08:00?"),
        ("gmt+8", "did you mean GMT+08:00?"),
        ("+0530", "did you mean GMT+05:30?"),
        ("GMT+24", "an offset has hours 0-23"),
        ("GMT+8:60", "an offset has hours 0-23 and minutes 00-59"),
        ("America", "is not known"),
        ("../etc/passwd", "is not known"),
        ("/etc/localtime", "is not known"),
        ("Xyzzy123", "use an IANA name (Europe/Berlin) or a fixed offset (GMT+08:00)"),
    ],
)
def test_other_names_are_refused_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(CronError) as refused:
        time_zone(name)
    assert repr(name) in str(refused.value)
    assert hint in str(refused.value)


def test_java_offsets_have_no_daylight_saving() -> None:
    assert fires("0 0 0 1 1,7 ?", "GMT+08:00", "2026-01-02", 2) == ["2026-07-01T00:00+08:00", "2027-01-01T00:00+08:00"]


def test_without_a_name_it_is_the_local_zone_of_the_machine() -> None:
    program = (
        "from datetime import datetime, timezone\n"
        "from ejpy.schedule.cron import fire_times\n"
        "for zone in (None, ''):\n"
        "    print(next(fire_times('@daily', zone, datetime(2026, 1, 1, tzinfo=timezone.utc))).isoformat())\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "TZ": "Asia/Tokyo"}, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["2026-01-02T00:00:00+09:00"] * 2


@pytest.mark.parametrize(
    "name",
    ["EST5EDT,M3.2.0,M11.1.0", "UTC0", "Garbage/Zone", ":/etc/nonexist", ":", "/etc", "/etc/passwd", "x" * 5000, "\x1b[2J"],
)
def test_a_local_zone_without_an_iana_name_is_refused_in_one_line_that_tells_what_to_do(name: str) -> None:
    """POSIX's rules are right for libc, and unknown to the zone data; libc itself reads what it does not know as UTC."""
    program = (
        "from ejpy.errors import CronError\n"
        "from ejpy.schedule.zones import time_zone\n"
        "print(time_zone('Asia/Tokyo'))\n"
        "try:\n"
        "    time_zone(None)\n"
        "except CronError as error:\n"
        "    print(error)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "TZ": name}, capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines() == [
        "Asia/Tokyo",
        f"no time zone is given, which means the machine's, and TZ={shown(name)} in the environment is not an IANA name; "
        "give time_zone for the job, or set TZ to an IANA name (Europe/Berlin)",
    ]


def test_a_machine_that_contradicts_itself_about_its_zone_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def contradicted() -> None:
        raise ZoneInfoNotFoundError("Multiple conflicting configurations:\n/etc/a: X\n")

    monkeypatch.delenv("TZ", raising=False)
    monkeypatch.setattr("tzlocal.get_localzone", contradicted)
    with pytest.raises(CronError, match=r"machine's, and that cannot be told \('Multiple .*X.*'\); give time_zone") as refused:
        time_zone(None)
    assert "\n" not in str(refused.value)


def test_every_change_of_offset_that_the_zone_data_list_is_found() -> None:
    root = resources.files("tzdata.zoneinfo")
    contents = {root.joinpath(*name.split("/")).read_bytes() for name in tzdata_names()}
    checked = 0
    for content in contents:
        zone = ZoneInfo.from_file(BytesIO(content))
        for change, offset_before, offset in _changes(content, since=SINCE):
            segment = segment_at(zone, change)
            assert (segment.begin, segment.offset_before, segment.offset) == (change, offset_before, offset)
            assert segment_at(zone, change - 1).end == change
            checked += 1
    assert checked > 500


def tzdata_names() -> list[str]:
    return resources.files("tzdata").joinpath("zones").read_text().split()


def test_segments_cover_time_without_holes() -> None:
    zone = ZoneInfo("America/New_York")
    instant = round(utc("2025-06-01").timestamp())
    ends = []
    for _ in range(6):
        segment = segment_at(zone, instant)
        assert segment.begin <= instant < segment.end
        ends.append(datetime.fromtimestamp(segment.end, timezone.utc).isoformat(timespec="hours")[:13])
        instant = segment.end
    assert ends == ["2025-11-02T06", "2026-01-01T00", "2026-03-08T07", "2026-11-01T06", "2027-01-01T00", "2027-03-14T07"]


def _changes(content: bytes, *, since: int) -> Iterator[tuple[int, int, int]]:
    """(instant, offset before, offset after) of the changes since an instant in a TZif file (RFC 8536)."""

    def header(at: int) -> tuple[int, ...]:
        return struct.unpack(">6l", content[at + 20 : at + 44])

    utc_count, standard_count, leap_count, time_count, type_count, char_count = header(0)
    at = 44 + time_count * 5 + type_count * 6 + char_count + leap_count * 8 + standard_count + utc_count
    _, _, _, time_count, type_count, _ = header(at)
    at += 44
    times = struct.unpack(f">{time_count}q", content[at : at + 8 * time_count])
    kinds = content[at + 8 * time_count : at + 9 * time_count]
    at += 9 * time_count
    offsets = [struct.unpack(">l", content[at + 6 * i : at + 6 * i + 4])[0] for i in range(type_count)]
    before = offsets[0]
    for time, kind in zip(times, kinds, strict=True):
        if offsets[kind] != before and time >= since:
            yield time, before, offsets[kind]
        before = offsets[kind]
