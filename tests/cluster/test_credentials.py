"""A registry that has failed for good: ZooKeeper comes back, and does not take the workers' credentials any more.

kazoo gives up for ever then (K4). A worker that stayed would look alive to its supervisor, and never run anything again.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.fleet import Fleet, job, zookeeper_url
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.workers import faults, said
from tests.support.zookeeper import ZooKeeperServer

NO_DIGEST = {"zookeeper.DigestAuthenticationProvider.enabled": "false"}
"""A server that has never heard of digest credentials refuses them."""


def test_a_worker_whose_credentials_are_refused_from_now_on_ends_and_says_why(
    own_server: ZooKeeperServer, tmp_path: Path
) -> None:
    """With bodies in mid-run, which are told to stop."""
    url = zookeeper_url(f"user:secret@{own_server.address}")
    with Fleet(url, tmp_path) as fleet:
        jobs = {"idle": job(), "busy": job(items=2, seconds=1000)}
        [worker] = fleet.start(fleet.write("jobs.yml", jobs), "a", grace=2)
        wait_until(lambda: len(fleet.runs("busy")) == 2, PATIENCE_SECONDS, "long bodies run")
        own_server.kill()
        own_server.java_properties = NO_DIGEST
        own_server.start()

        assert worker.wait_exit(PATIENCE_SECONDS) == 1
        last = worker.log.splitlines()[-1]
        assert own_server.address in last
        assert "refused the credentials" in last
        assert "check the digest user and password" in last
        assert "secret" not in worker.log
        assert [event["message"] for event in said(worker, "ejpy.worker")][-1] == "stopped"
        assert not faults(worker)
        assert {run.how for run in fleet.runs("busy")} == {"raised"}, "the bodies were told to stop"
