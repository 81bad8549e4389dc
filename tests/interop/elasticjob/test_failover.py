"""A worker is killed in mid-run: with `failover`, the other, of the other kind, runs its item again, once, without waiting for
a fire; and no mark of it stays.

Nothing fires in these tests but what is triggered, so whatever is run besides is a failover.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.elasticjob.mixed import JOB, Installation, MixedJob
from tests.support.fleet import NEVER
from tests.support.waiting import PATIENCE_SECONDS, wait_until

FAILOVER = {"failover": True, "cron": NEVER}
MARKS = ("failover", "failovering", "running", "misfire")


@pytest.mark.parametrize("leader", ["java", "python"])
@pytest.mark.parametrize("victim", ["java", "python"])
def test_the_other_kind_runs_its_item_again(
    installation: Installation, address: str, tmp_path: Path, leader: str, victim: str
) -> None:
    hold = tmp_path / "hold"
    with MixedJob(installation, address, tmp_path, items=2, settings=FAILOVER, hold=str(hold)) as mixed:
        first = mixed.java("java") if leader == "java" else mixed.python("python")
        mixed.wait_until_leads(first)
        second = mixed.python("python") if leader == "java" else mixed.java("java")
        if leader == "java":  # ElasticJob's leader shares out when it runs, and then runs its own item
            mixed.trigger(first)
        owners = mixed.wait_until_shared(first, second)
        before = mixed.wait_for_runs(1) if leader == "java" else []
        java, python = (first, second) if leader == "java" else (second, first)
        dying, surviving = (java, python) if victim == "java" else (python, java)
        [lost] = [item for item, owner in owners.items() if owner == dying.id]
        hold.touch()
        mixed.trigger(first, second)
        wait_until(lambda: len(mixed.runs()) == len(before) + 2, PATIENCE_SECONDS, "both items run")
        [kept] = [run for run in mixed.runs() if run.end is None and run.item != lost]
        dying.kill9()
        wait_until(lambda: dying.id not in mixed.view().instances, PATIENCE_SECONDS, "its session is over")
        hold.unlink()
        [again] = mixed.wait_for_runs(len(before) + 3, unended=1)[len(before) + 2 :]
        assert (again.item, again.pid) == (lost, kept.pid)
        wait_until(lambda: not marks(mixed), PATIENCE_SECONDS, "no marks stay")
        mixed.trigger(surviving)
        mixed.wait_until_shared(surviving)
        runs = mixed.wait_for_runs(len(before) + 5, unended=1)[len(before) + 3 :]
        assert sorted((run.item, run.pid) for run in runs) == [(0, kept.pid), (1, kept.pid)]


def test_a_killed_worker_with_nothing_running_loses_nothing(installation: Installation, address: str, tmp_path: Path) -> None:
    with MixedJob(installation, address, tmp_path, items=2, settings=FAILOVER) as mixed:
        python = mixed.python("python")
        mixed.wait_until_leads(python)
        java = mixed.java("java")
        mixed.wait_until_shared(python, java)
        java.kill9()
        mixed.wait_until_shared(python)
        assert mixed.runs() == []
        mixed.fleet.stop()


def marks(mixed: MixedJob) -> list[str]:
    paths = mixed.fleet.paths(JOB)
    nodes = mixed.fleet.nodes(JOB)
    of_items = [path for path in nodes if path.startswith(f"{paths.sharding}/") and path.endswith(MARKS)]
    return of_items + [path for path in nodes if path.startswith(f"{paths.root}/leader/failover/items/")]
