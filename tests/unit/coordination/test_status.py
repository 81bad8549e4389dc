"""States of a job and its items, by ElasticJob's rules, so that its console and ejpy's commands say the same."""

from __future__ import annotations

import pytest

from ejpy.coordination.ledger import Entry
from ejpy.coordination.status import item_status, job_status
from ejpy.coordination.view import view_of
from ejpy.terms import ItemStatus, JobStatus, Outcome
from tests.unit.coordination.situations import at, idle, running
from tests.unit.coordination.trees import Job, elasticjob_tree

A, B, GONE = "10.0.0.1@-@11.aa", "10.0.0.2@-@22.bb", "10.0.0.3@-@33.cc"


def job(*instances: str, items: dict[int, str] | None = None, servers: dict[str, str] | None = None) -> Job:
    made = Job(*instances)
    for item, owner in (items or {}).items():
        made.put(made.paths.item(item))
        made.put(made.paths.item_instance(item), owner)
    for ip, state in (servers or {}).items():
        made.put(made.paths.server(ip), state)
    return made


# ---- jobs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moment", "status"),
    [
        ("a1", JobStatus.SHARDING_FLAG),
        ("a2", JobStatus.OK),
        ("a3", JobStatus.OK),
        ("a6", JobStatus.OK),
        ("a7", JobStatus.DISABLED),
        ("a9", JobStatus.OK),
        ("a10", JobStatus.OK),
        ("a11", JobStatus.OK),
        ("a12", JobStatus.CRASHED),
        ("b2", JobStatus.CRASHED),
        ("c1", JobStatus.SHARDING_FLAG),
        ("c3", JobStatus.CRASHED),
        ("d1", JobStatus.OK),
        ("d4", JobStatus.SHARDING_FLAG),
        ("d6", JobStatus.OK),
        ("d7", JobStatus.SHARDING_FLAG),
        ("d8", JobStatus.CRASHED),
    ],
)
def test_the_status_of_elasticjobs_own_trees(moment: str, status: JobStatus) -> None:
    paths, nodes = elasticjob_tree(moment)
    assert job_status(view_of(nodes, paths)) is status


ON, OFF = "ENABLED", "DISABLED"


@pytest.mark.parametrize(
    ("case", "made", "status"),
    [
        ("no instance", job(items={0: A}), JobStatus.CRASHED),
        ("no instance, server disabled", job(servers={"10.0.0.1": OFF}), JobStatus.CRASHED),
        ("all servers disabled", job(A, B, items={0: A}, servers={"10.0.0.1": OFF, "10.0.0.2": OFF}), JobStatus.DISABLED),
        ("some servers disabled", job(A, B, items={0: A, 1: B}, servers={"10.0.0.1": OFF}), JobStatus.OK),
        ("disabled before it was ever sharded", job(A, servers={"10.0.0.1": OFF}), JobStatus.DISABLED),
        ("an assignment to somebody gone", job(A, items={0: A, 1: GONE}), JobStatus.SHARDING_FLAG),
        ("no assignment", job(A), JobStatus.SHARDING_FLAG),
        ("all assigned to the living", job(A, B, items={0: A, 1: B}), JobStatus.OK),
        ("an instance without items", job(A, B, items={0: A, 1: A}), JobStatus.OK),
        ("an enabled server without instance", job(A, items={0: A}, servers={"10.0.0.1": OFF, "10.9.9.9": ON}), JobStatus.OK),
        ("a disabled server without instance", job(A, items={0: A}, servers={"10.9.9.9": OFF}), JobStatus.OK),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_j8_the_status_of_a_job(case: str, made: Job, status: JobStatus) -> None:
    """J8: disabled was shown as sharding, online as offline."""
    assert job_status(made.view) is status, case


def test_a_job_without_any_server_entry_is_disabled() -> None:
    made = job(A, items={0: A})
    made.remove(made.paths.server("10.0.0.1"))
    assert job_status(made.view) is JobStatus.DISABLED


@pytest.mark.parametrize("data", ["", "enabled", "whatever"])
def test_only_entries_that_say_exactly_disabled_make_a_job_disabled(data: str) -> None:
    """Protocol reference, 8.2: as many entries with exactly DISABLED as there are entries."""
    assert job_status(job(A, items={0: A}, servers={"10.0.0.1": data}).view) is JobStatus.OK


def test_j9_stale_server_entries_do_not_change_the_status() -> None:
    """J9: each restart of a container leaves an address behind for ever."""
    made = job(A, B, items={0: A, 1: B}, servers={f"10.1.{n // 256}.{n % 256}": ON for n in range(500)})
    assert job_status(made.view) is JobStatus.OK
    made.leave(A)
    made.leave(B)
    assert job_status(made.view) is JobStatus.CRASHED


# ---- items ------------------------------------------------------------------------------------------------------------------

LIVE, DEAD = running("10:00", A), running("10:00", GONE)


@pytest.mark.parametrize("disabled", [True, False])
@pytest.mark.parametrize("owner", [A, GONE, None])
@pytest.mark.parametrize("entry", [LIVE, DEAD, LIVE.end(Outcome.FAILED, 7, at("10:01")), idle("10:00"), None])
@pytest.mark.parametrize("mark", [True, False])
def test_j8_the_status_of_an_item(disabled: bool, owner: str | None, entry: Entry | None, mark: bool) -> None:
    """J8: running was shown as failed. The order of the rules is ElasticJob's."""
    made = job(A)
    made.put(made.paths.item(0))
    if owner is not None:
        made.put(made.paths.item_instance(0), owner)
    if disabled:
        made.put(made.paths.item_disabled(0))
    found = item_status(made.view, 0, entry, running_mark=mark)
    if disabled:
        assert found is ItemStatus.DISABLED
    elif mark or entry is LIVE:
        assert found is ItemStatus.RUNNING
    elif owner is None or owner == GONE:
        assert found is ItemStatus.SHARDING_FLAG
    else:
        assert found is ItemStatus.PENDING


@pytest.mark.parametrize(
    ("moment", "item", "status"),
    [
        ("a2", 0, ItemStatus.RUNNING),
        ("a3", 0, ItemStatus.PENDING),
        ("a6", 1, ItemStatus.DISABLED),
        ("a6", 2, ItemStatus.PENDING),
        ("a10", 3, ItemStatus.SHARDING_FLAG),
        ("d4", 1, ItemStatus.PENDING),
        ("d4", 2, ItemStatus.RUNNING),
        ("d5", 2, ItemStatus.SHARDING_FLAG),
        ("d7", 0, ItemStatus.SHARDING_FLAG),
        ("d7", 1, ItemStatus.PENDING),
    ],
)
def test_the_status_of_items_in_elasticjobs_own_trees(moment: str, item: int, status: ItemStatus) -> None:
    paths, nodes = elasticjob_tree(moment)
    assert item_status(view_of(nodes, paths), item, None, running_mark=paths.item_running(item) in nodes) is status
