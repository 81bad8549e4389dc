"""ElasticJob's marks, read from the trees that it left and from ones made up."""

from __future__ import annotations

import pytest

from ejpy.coordination.marks import Marks, foreign_instances, is_foreign, marks_of
from tests.unit.coordination.trees import Job, elasticjob_tree

A, B, JAVA = "10.0.0.1@-@11.aa", "10.0.0.2@-@22.bb", "10.0.0.3@-@33"


def read(moment: str) -> Marks:
    paths, nodes = elasticjob_tree(moment)
    return marks_of(nodes, paths)


def test_running_marks_of_elasticjob() -> None:
    marks = read("a2")
    assert sorted(marks.running) == [0, 1, 2]
    assert {mark.instance_id for mark in marks.running.values()} == {"192.0.2.2@-@28653"}
    assert read("a3").running == {}


def test_a_trigger_of_elasticjob() -> None:
    assert list(read("a4").triggers) == ["192.0.2.2@-@28653"]
    assert read("a5").triggers == {}


def test_an_item_that_elasticjob_fails_over() -> None:
    marks = read("d3")
    taker = "192.0.2.2@-@29863"
    assert marks.taken_by(taker) == [2]
    assert marks.failovering[2].instance_id == taker
    assert not marks.to_fail_over
    assert marks.held_by_other(2, A)
    assert not marks.held_by_other(2, taker)


def test_misfires_of_elasticjob() -> None:
    assert read("e1").misfire == {0, 1, 2}


@pytest.mark.parametrize(("instance", "foreign"), [(A, False), (JAVA, True), ("10.0.0.3@-@x", True), ("10.0.0.3@-@33.", False)])
def test_an_ejpy_instance_has_a_random_part(instance: str, foreign: bool) -> None:
    assert is_foreign(instance) is foreign


def test_foreign_instances_are_those_that_live() -> None:
    assert foreign_instances(Job(A, JAVA).view) == {JAVA}
    assert foreign_instances(Job(A, B).view) == frozenset()


@pytest.mark.parametrize(
    ("nodes", "held"),
    [
        ({}, False),
        ({"sharding/1/running": A}, False),
        ({"sharding/1/running": B}, True),
        ({"sharding/1/failover": A, "sharding/1/running": A}, False),
        ({"sharding/1/failover": B}, True),
        ({"leader/failover/items/1": ""}, True),
        ({"leader/failover/items/1": "", "sharding/1/failover": A}, False),
        ({"sharding/1/failovering": B}, False),
        ({"sharding/2/running": B}, False),
    ],
)
def test_when_an_item_is_somebody_elses_matter(nodes: dict[str, str], held: bool) -> None:
    job = Job(A, B)
    for path, data in nodes.items():
        job.put_below(path, data)
    assert marks_of(job.nodes, job.paths).held_by_other(1, A) is held


@pytest.mark.parametrize("name", ["007", "x", "-1", "1.0", "9999999999"])
def test_marks_of_what_is_no_item_are_left_out(name: str) -> None:
    job = Job(A)
    for path in (f"sharding/{name}/running", f"sharding/{name}/misfire", f"leader/failover/items/{name}"):
        job.put_below(path, B)
    assert marks_of(job.nodes, job.paths) == Marks()


def test_a_mark_that_is_no_text_names_nobody_alive() -> None:
    job = Job(A)
    job.put(job.paths.item(0))
    job.put(job.paths.item_running(0), b"\xff\xfe")
    assert marks_of(job.nodes, job.paths).held_by_other(0, A)
