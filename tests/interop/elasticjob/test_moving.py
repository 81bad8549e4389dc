"""Items move between workers of both kinds while the job fires: whoever joins or leaves, no fire of an item is run by two
workers, unless both are ElasticJob's own."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.interop.elasticjob.mixed import Installation, MixedJob, overlapping

ROUNDS = int(os.environ.get("EJPY_MIXED_ROUNDS", "1"))
"""How often a worker of either kind joins, and leaves again."""


@pytest.mark.parametrize("leader", ["java", "python"])
def test_joining_and_leaving(installation: Installation, address: str, tmp_path: Path, leader: str) -> None:
    with MixedJob(installation, address, tmp_path, items=10, seconds=0.1) as mixed:
        first = mixed.java("java") if leader == "java" else mixed.python("python")
        mixed.wait_until_leads(first)
        staying = [first, mixed.python("python") if leader == "java" else mixed.java("java")]
        mixed.wait_until_shared(*staying)
        [begin] = mixed.wait_for_fires(1)
        for number in range(ROUNDS):
            java = mixed.java(f"java-{number}")
            mixed.wait_for_fires(3)
            python = mixed.python(f"python-{number}")
            mixed.wait_for_fires(3)
            java.stop()
            mixed.wait_for_fires(3)
            python.sigterm()
            mixed.wait_until_shared(*staying)
            mixed.wait_for_fires(2)
        pids = {worker.pid for worker in mixed.fleet.workers}
        runs = mixed.runs(begin)
        twice = Counter(
            " then ".join("python" if run.pid in pids else "java" for run in sorted(each, key=lambda run: run.start))
            for each in mixed.twice(begin)
        )
        fires, overlaps = Counter(run.scheduled_time for run in runs), len(overlapping(runs))
        whole = [fires[at] for at in sorted(fires)[1:-1]]
        print(
            f"\n{leader} leads: {len(fires)} fires of 10 items, {len(runs)} runs, {overlaps} overlapping, twice: {dict(twice)}, "
            f"missed: {sum(10 - runs for runs in whole if runs < 10)} in {sum(runs < 10 for runs in whole)} fires"
        )
        assert not [order for order in twice if "python" in order]
