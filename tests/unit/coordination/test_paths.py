"""Where things are: ElasticJob's own names, and the ledger outside its tree."""

from __future__ import annotations

import pytest

from ejpy.coordination.paths import JobPaths
from tests.unit.coordination.trees import elasticjob_tree

P = JobPaths("/ns", "job")


@pytest.mark.parametrize("moment", ["a1", "a2", "a6", "d1", "d4"])
def test_elasticjobs_names(moment: str) -> None:
    """Each path that is asked for is a node of ElasticJob's."""
    paths, nodes = elasticjob_tree(moment)
    [instance, *_] = [path.rpartition("/")[2] for path in nodes if path.startswith(paths.instances + "/")]
    asked = [paths.root, paths.config, paths.instances, paths.servers, paths.leader, paths.latch]
    asked += [paths.instance(instance), paths.server("192.0.2.2")]
    asked += [paths.resharding_necessary] if moment in ("a1", "d4") else []
    asked += [paths.sharding, *map(paths.item, range(3)), *map(paths.item_instance, range(3))] if moment != "a1" else []
    asked += [paths.item_running(2)] if moment in ("a2", "d1", "d4") else []
    asked += [paths.item_disabled(1)] if moment == "a6" else []
    assert [path for path in asked if path not in nodes] == []


def test_the_flag_of_a_resharding_under_way() -> None:
    assert P.resharding_processing == "/ns/job/leader/sharding/processing"


def test_the_ledger_lies_outside_the_jobs_tree_and_the_namespace() -> None:
    """Whoever watches a job, or lists the namespace for jobs, does not meet it."""
    assert (P.term, P.ledger(12)) == ("/ns.ledger/job", "/ns.ledger/job/12")
    assert not P.ledger(12).startswith("/ns/")
    assert JobPaths("/a/b", "job").ledger(0) == "/a/b.ledger/job/0"
