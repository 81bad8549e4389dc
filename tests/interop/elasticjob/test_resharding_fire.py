"""ElasticJob's leader deals anew at a fire: a follower of ejpy runs that fire too, for what it holds before and after."""

from __future__ import annotations

from pathlib import Path

from tests.interop.elasticjob.conftest import address, installation
from tests.interop.elasticjob.mixed import Installation, MixedJob

__all__ = ["address", "installation"]


def test_the_fire_of_a_resharding_is_run(installation: Installation, address: str, tmp_path: Path) -> None:
    with MixedJob(installation, address, tmp_path, items=10, seconds=0.1) as mixed:
        java = mixed.java("java")
        mixed.wait_until_shared(java)
        python = mixed.python("python")
        mixed.wait_until_shared(java, python)
        [begin] = mixed.wait_for_fires(1)
        leaving = mixed.python("leaving")
        mixed.wait_until_shared(java, python, leaving)
        mixed.wait_for_fires(2)
        leaving.sigterm()
        mixed.wait_until_shared(java, python)
        [*_, end] = mixed.wait_for_fires(2)
        fires = {at: runs for at, runs in mixed.fleet.fires("mixed", begin).items() if at <= end}
        by_python = [{item for item, runs in runs.items() if runs[0].pid == python.pid} for runs in fires.values()]
        kept = {
            (at, item)
            for at, before, runs, after in zip(list(fires)[1:], by_python, list(fires.values())[1:], by_python[2:], strict=False)
            for item in before & after
            if item not in runs
        }
        assert kept == set()
