"""What is done about the marks of the dead: each step applied to a tree, and looked at again."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ejpy.config.model import JobConfig
from ejpy.coordination import failover
from ejpy.coordination.marks import Marks, marks_of
from ejpy.errors import GuardFailed
from ejpy.registry.base import Operation
from tests.unit.coordination.trees import Job

A, B, DEAD = "10.0.0.1@-@11.aa", "10.0.0.2@-@22", "10.0.0.3@-@33"


def config(**keys: object) -> JobConfig:
    return JobConfig.model_validate(
        {"job_name": "job", "job_class": "m:C", "cron": "* * * * * ?", "sharding_total_count": 3, "failover": True, **keys}
    )


def marks(job: Job) -> Marks:
    return marks_of(job.nodes, job.paths)


def after_deaths(job: Job, settings: JobConfig) -> list[list[Operation]]:
    return failover.after_deaths(job.paths, job.view, marks(job), settings, job.nodes)


def commit_all(job: Job, groups: Iterable[list[Operation]]) -> None:
    for group in groups:
        job.commit(group)


def tree() -> Job:
    job = Job(A, B)
    for item in range(3):
        job.put_below(f"sharding/{item}/instance", A)
    return job


def test_an_item_whose_instance_died_is_flagged_and_its_mark_removed() -> None:
    job = tree()
    job.put_below("sharding/1/running", DEAD)
    job.put_below("sharding/2/running", B)
    commit_all(job, after_deaths(job, config()))
    assert marks(job).to_fail_over == {1}
    assert sorted(marks(job).running) == [2]
    assert after_deaths(job, config()) == []


def test_several_items_share_the_parents_that_are_missing() -> None:
    job = tree()
    for item in range(3):
        job.put_below(f"sharding/{item}/running", DEAD)
    commit_all(job, after_deaths(job, config()))
    assert marks(job).to_fail_over == {0, 1, 2}


@pytest.mark.parametrize("off", [{"failover": False}, {"monitor_execution": False}])
def test_without_failover_the_marks_of_the_dead_are_only_removed(off: dict[str, bool]) -> None:
    job = tree()
    job.put_below("sharding/1/running", DEAD)
    job.put_below("sharding/1/failovering", DEAD)
    commit_all(job, after_deaths(job, config(**off)))
    assert marks(job) == Marks()


def test_w11_a_taker_that_died_loses_what_it_took_and_what_it_ran_itself() -> None:
    """ElasticJob flags either the one or the other, and the rest blocks its resharding."""
    job = tree()
    job.put_below("sharding/0/failovering", DEAD)
    job.put_below("sharding/0/running", DEAD)
    job.put_below("sharding/2/running", DEAD)
    commit_all(job, after_deaths(job, config()))
    assert marks(job) == Marks(to_fail_over=frozenset({0, 2}))


def test_w32_a_server_that_was_disabled_before_it_crashed_is_failed_over_all_the_same() -> None:
    job = tree()
    job.put_below("servers/10.0.0.3", "DISABLED")
    job.put_below("sharding/1/running", DEAD)
    commit_all(job, after_deaths(job, config()))
    assert marks(job).to_fail_over == {1}


def test_an_item_that_is_flagged_or_taken_already_is_not_flagged_again() -> None:
    job = tree()
    job.put_below("sharding/0/running", DEAD)
    job.put_below("leader/failover/items/0", "")
    job.put_below("sharding/1/running", DEAD)
    job.put_below("sharding/1/failover", B)
    commit_all(job, after_deaths(job, config()))
    assert marks(job).to_fail_over == {0}
    assert not marks(job).running


def test_an_item_beyond_the_count_is_not_flagged() -> None:
    job = tree()
    job.put_below("sharding/7/running", DEAD)
    commit_all(job, after_deaths(job, config()))
    assert marks(job) == Marks()


def test_of_two_who_see_the_same_death_one_flags() -> None:
    job = tree()
    job.put_below("sharding/1/running", DEAD)
    first, second = after_deaths(job, config()), after_deaths(job, config())
    commit_all(job, first)
    with pytest.raises(GuardFailed):
        commit_all(job, second)


@pytest.mark.parametrize("left", [None, DEAD])
def test_taking_marks_the_item_and_unflags_it(left: str | None) -> None:
    job = tree()
    job.put_below("leader/failover/items/1", "")
    if left is not None:
        job.put_below("sharding/1/failovering", left)
    job.commit(failover.take(job.paths, marks(job), 1, A))
    assert marks(job).taken_by(A) == [1]
    assert marks(job).failovering[1].instance_id == A
    assert not marks(job).to_fail_over


@pytest.mark.parametrize(("items", "first"), [([], None), ([1, 2], 2), ([2, 10], 2)])
def test_elasticjob_takes_the_largest_text_first(items: list[int], first: int | None) -> None:
    assert failover.next_to_take(Marks(to_fail_over=frozenset(items)), 20) == first


def test_a_flag_beyond_the_count_is_not_taken_and_removed() -> None:
    job = tree()
    job.put_below("leader/failover/items/5", "")
    assert failover.next_to_take(marks(job), 3) is None
    commit_all(job, failover.left_over(job.paths, job.view, marks(job), config(), job.nodes))
    assert marks(job) == Marks()


def test_marks_of_what_is_switched_off_are_removed() -> None:
    job = tree()
    for path, data in {
        "sharding/0/running": B,
        "sharding/1/failover": B,
        "sharding/2/misfire": "",
        "leader/failover/items/2": "",
    }.items():
        job.put_below(path, data)
    assert failover.switched_off(job.paths, marks(job), config()) == []
    job.commit(failover.switched_off(job.paths, marks(job), config(failover=False, misfire=False)))
    assert marks(job).running.keys() == {0}
    job.commit(failover.switched_off(job.paths, marks(job), config(monitor_execution=False)))
    assert marks(job) == Marks()


def test_j10_triggers_for_the_dead_are_removed() -> None:
    job = tree()
    job.put_below(f"trigger/{DEAD}", "")
    job.put_below(f"trigger/{A}", "")
    job.commit(failover.orphaned_triggers(job.paths, job.view, marks(job), config()))
    assert list(marks(job).triggers) == [A]


@pytest.mark.parametrize("static", [False, True])
def test_a_trigger_for_the_dead_stays_until_its_items_have_moved_and_taken_it_along(static: bool) -> None:
    """Under `static_sharding` they never do."""
    job = tree()
    job.put_below(f"trigger/{DEAD}", "")
    job.put_below("sharding/1/instance", DEAD)
    assert bool(failover.orphaned_triggers(job.paths, job.view, marks(job), config(static_sharding=static))) == static


def test_a_failover_mark_of_the_dead_that_no_session_removes_is_removed() -> None:
    job = tree()
    job.put_below("sharding/0/failover", DEAD)
    job.put_below("sharding/1/failover", A)
    commit_all(job, failover.left_over(job.paths, job.view, marks(job), config(failover=True), job.nodes))
    assert marks(job).failover.keys() == {1}


def test_an_entry_that_an_operator_enabled_stays_where_a_start_would_disable_it() -> None:
    """The job says `disabled: true`. A worker that is away for a while would make its entry anew, as DISABLED."""
    job = tree()
    job.put_below("servers/10.0.0.8", "ENABLED")
    job.put_below("servers/10.0.0.7", "")
    assert failover.servers_without_instance(job.view, config(disabled=True)) == {"10.0.0.7"}


def test_j9_entries_of_servers_that_are_gone_are_removed_but_for_disabled_ones() -> None:
    job = tree()
    for ip, state in {"10.0.0.8": "ENABLED", "10.0.0.9": "DISABLED", "10.0.0.7": ""}.items():
        job.put_below(f"servers/{ip}", state)
    gone = failover.servers_without_instance(job.view, config())
    assert gone == {"10.0.0.8", "10.0.0.7"}
    assert failover.left_over(job.paths, job.view, marks(job), config(), job.nodes) == []
    commit_all(job, failover.left_over(job.paths, job.view, marks(job), config(), job.nodes, gone))
    assert job.view.servers.keys() == {"10.0.0.1", "10.0.0.2", "10.0.0.9"}
