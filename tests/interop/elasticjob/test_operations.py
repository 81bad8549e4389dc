"""What an operator does through ElasticJob's own API reaches workers of ejpy, and what it shows of them is right."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from tests.interop.elasticjob.mixed import Installation, MixedJob
from tests.support.fleet import NEVER, now
from tests.support.waiting import PATIENCE_SECONDS


def test_the_api_shows_workers_of_both_kinds(installation: Installation, address: str, tmp_path: Path) -> None:
    with MixedJob(installation, address, tmp_path) as mixed, mixed.console() as console:
        java = mixed.java("java")
        mixed.wait_until_shared(java)
        python = mixed.python("python")
        owners = mixed.wait_until_shared(java, python)
        job = console.job()
        assert (job["status"], job["instanceCount"], job["shardingTotalCount"]) == ("OK", 2, 4)
        shown = console.items()
        assert {item: row["instanceId"] for item, row in shown.items()} == owners
        ip_of = {java.id: java.ip, python.id: python.id.partition("@-@")[0]}
        assert {item: row["serverIp"] for item, row in shown.items()} == {item: ip_of[owner] for item, owner in owners.items()}


def test_a_worker_that_is_shut_down_ends_its_part(installation: Installation, address: str, tmp_path: Path) -> None:
    with MixedJob(installation, address, tmp_path, seconds=0.05) as mixed, mixed.console() as console:
        java = mixed.java("java")
        mixed.wait_until_shared(java)
        python = mixed.python("python")
        mixed.wait_until_shared(java, python)
        console.do("shutdown", python.id.partition("@-@")[0])
        mixed.wait_until_shared(java)
        python.wait_for_log("an operator removed this instance", PATIENCE_SECONDS)
        begin = now() + timedelta(seconds=1)
        mixed.wait_for_fires(3, after=begin)
        assert {run.pid for run in mixed.runs(begin)} == {java.process.pid}
        assert python.alive
        mixed.fleet.stop()


def test_a_disabled_server_runs_nothing_until_it_is_enabled(installation: Installation, address: str, tmp_path: Path) -> None:
    with MixedJob(installation, address, tmp_path, seconds=0.05) as mixed, mixed.console() as console:
        python, java = mixed.python("python"), mixed.java("java")
        mixed.wait_until_shared(java, python)
        for disabled, other in ((python, java), (java, python)):
            ip = disabled.id.partition("@-@")[0]
            console.do("disable", ip)
            mixed.wait_until_shared(other)
            mixed.wait_until_leads(other)
            begin = now() + timedelta(seconds=1)  # the fire that may have begun before is over
            mixed.wait_for_fires(3, after=begin)
            assert len({run.pid for run in mixed.runs(begin)}) == 1
            console.do("enable", ip)
            mixed.wait_until_shared(java, python)
            mixed.wait_for_fires(2)
        mixed.fleet.stop()


def test_a_trigger_runs_every_item_once(installation: Installation, address: str, tmp_path: Path) -> None:
    with MixedJob(installation, address, tmp_path, settings={"cron": NEVER}) as mixed, mixed.console() as console:
        # ElasticJob's leader shares items out at a fire: with a schedule that does not fire, ejpy has to lead.
        python = mixed.python("python")
        mixed.wait_until_leads(python)
        java = mixed.java("java")
        owners = mixed.wait_until_shared(java, python)
        for number in (1, 2):
            console.do("trigger")
            runs = mixed.wait_for_runs(4 * number)
            assert sorted(run.item for run in runs) == sorted([0, 1, 2, 3] * number)
            assert {run.item: run.pid == python.pid for run in runs} == {i: owners[i] == python.id for i in owners}
        triggers = f"{mixed.fleet.paths('mixed').root}/trigger/"
        assert [path for path in mixed.fleet.nodes("mixed") if path.startswith(triggers)] == []
        mixed.fleet.stop()
