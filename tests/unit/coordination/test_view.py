"""What is read off a job's nodes: of a real ElasticJob's trees at each moment, and of whatever else may stand there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ejpy.coordination.view import Assigned, Instance, JobView, instance_document, view_of
from tests.unit.coordination.trees import Job, elasticjob_tree, node

A, B = "10.0.0.1@-@11.aa", "10.0.0.2@-@22.bb"
W = "192.0.2.2@-@"
"""What the ids of ElasticJob's instances begin with."""


def view(moment: str) -> JobView:
    paths, nodes = elasticjob_tree(moment)
    return view_of(nodes, paths)


# ---- ElasticJob's own trees -----------------------------------------------------------------------------------------------

MOMENTS: dict[str, dict[str, Any]] = {
    "a1": {"instances": ["28653"], "leader": "28653", "necessary": True},
    "a2": {"instances": ["28653"], "leader": "28653", "owners": ["28653"] * 3},
    "a3": {"instances": ["28653"], "leader": "28653", "owners": ["28653"] * 3},
    "a6": {"instances": ["28653"], "leader": "28653", "owners": ["28653"] * 3, "disabled": {1}},
    "a7": {"instances": ["28653"], "owners": ["28653"] * 3, "server": False, "necessary": True},
    "a9": {"instances": ["28653"], "leader": "28653", "owners": ["28653"] * 3, "necessary": True},
    "a10": {"instances": ["28653"], "leader": "28653", "owners": ["28653"] * 3, "necessary": True},
    "a11": {"instances": ["28653"], "leader": "28653", "owners": ["28653"] * 4},
    "a12": {"instances": [], "owners": ["28653"] * 4},
    "b2": {"instances": [], "owners": ["29517"] * 3},
    "c1": {"instances": ["29632"], "leader": "29632", "necessary": True},
    "c2": {"instances": ["29632"], "leader": "29632", "necessary": True},
    "c3": {"instances": [], "necessary": True},
    "d1": {"instances": ["29858", "29861", "29863"], "leader": "29863", "owners": ["29863", "29861", "29858"]},
    "d3": {"instances": ["29861", "29863"], "leader": "29863", "owners": ["29863", "29861", "29858"], "necessary": True},
    "d4": {"instances": ["29861", "29863"], "leader": "29863", "owners": ["29863", "29861", "29858"], "necessary": True},
    "d6": {"instances": ["29861", "29863"], "leader": "29863", "owners": ["29863", "29861", "29863"]},
    "d7": {"instances": ["29861"], "leader": "29861", "owners": ["29863", "29861", "29863"], "necessary": True},
    "d8": {"instances": [], "owners": ["29863", "29861", "29863"], "necessary": True},
    "e1": {"instances": ["30996"], "leader": "30996", "owners": ["30996"] * 3},
    "f1": {"instances": ["31062"], "leader": "31062", "necessary": True},
    "g3": {"instances": ["31109"], "leader": "31109", "owners": ["31109"] * 3},
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_elasticjobs_tree_says(moment: str) -> None:
    said, found = MOMENTS[moment], view(moment)
    owners = said.get("owners", [])
    leader = said.get("leader")
    assert list(found.instances) == [W + pid for pid in said["instances"]]
    assert found.leader == (None if leader is None else W + leader)
    assert {item: assigned.instance_id for item, assigned in found.assigned.items()} == {
        item: W + pid for item, pid in enumerate(owners)
    }
    assert found.items == set(range(len(owners)))
    assert found.disabled_items == said.get("disabled", set())
    assert list(found.servers) == ["192.0.2.2"]
    assert found.server_enabled("192.0.2.2") == said.get("server", True)
    assert (found.necessary, found.processing) == (said.get("necessary", False), False)


def test_sessions_and_addresses_of_elasticjobs_instances() -> None:
    found = view("d1")
    assert found.instances[W + "29863"] == Instance(W + "29863", "192.0.2.2", draining=False, session_id=0x100001470F3000E)
    assert found.leader_session == 0x100001470F3000E
    assert found.assigned[2] == Assigned(W + "29858", version=0)


def test_elasticjobs_instances_are_eligible_while_their_server_is_enabled() -> None:
    assert view("d1").eligible() == [W + "29858", W + "29861", W + "29863"]
    assert view("a7").eligible() == []
    assert view("a7").instances, "it is there, and disabled"


def test_a_job_is_not_enabled_while_every_server_with_an_instance_is_disabled() -> None:
    assert view("a3").enabled
    assert not view("a7").enabled
    assert view("a9").enabled
    assert view("d8").enabled, "nobody is there, and nobody disabled it: what comes due meanwhile is due"


def test_items_of_an_instance_within_the_count() -> None:
    assert view("d6").items_of(W + "29863", 3) == [0, 2]
    assert view("a11").items_of(W + "28653", 2) == [0, 1]
    assert view("a11").items_of(W + "1", 4) == []


# ---- what one node says -----------------------------------------------------------------------------------------------------


def test_a_job_that_does_not_exist_is_an_empty_view() -> None:
    assert view_of({}, Job().paths) == JobView()


@pytest.mark.parametrize("data", [b"ENABLED", b"DISABLED", b"", b"enabled", b"ENABLED\n", b"\xff", b"TRUE"])
def test_a_server_is_enabled_by_exactly_that_word(data: bytes) -> None:
    job = Job(A)
    job.put(job.paths.server("10.0.0.1"), data)
    assert job.view.server_enabled("10.0.0.1") == (data == b"ENABLED")
    assert job.view.eligible() == ([A] if data == b"ENABLED" else [])


def test_a_missing_server_entry_is_not_enabled() -> None:
    job = Job(A)
    job.remove(job.paths.server("10.0.0.1"))
    assert not job.view.server_enabled("10.0.0.1")
    assert job.view.eligible() == []
    assert not job.view.enabled


@pytest.mark.parametrize(
    ("disabled", "enabled", "eligible"),
    [([], True, [A, B]), (["10.0.0.1"], True, [B]), (["10.0.0.1", "10.0.0.2"], False, [])],
)
def test_one_server_of_many_is_enough_for_the_job_to_be_enabled(disabled: list[str], enabled: bool, eligible: list[str]) -> None:
    job = Job(A, B)
    job.put(job.paths.server("10.9.9.9"), "ENABLED")  # C9: without instance, it does not count
    for ip in disabled:
        job.put(job.paths.server(ip), "DISABLED")
    assert job.view.enabled == enabled
    assert sorted(job.view.eligible()) == eligible


def test_a_draining_instance_takes_nothing_new() -> None:
    job = Job(A, B)
    job.drain(A)
    assert job.view.instances[A].draining
    assert job.view.eligible() == [B]


@pytest.mark.parametrize("draining", [True, False])
def test_an_instance_document_has_the_keys_that_elasticjobs_strict_readers_know(draining: bool) -> None:
    lines = instance_document(A, "10.0.0.1", draining=draining).decode().splitlines()
    assert [line.split(": ")[0] for line in lines] == ["jobInstanceId", *["labels"] * draining, "serverIp"]
    if not draining:
        assert instance_document("192.0.2.2@-@28653", "192.0.2.2") == elasticjob_document()


def elasticjob_document() -> bytes:
    paths, nodes = elasticjob_tree("a1")
    return nodes[paths.instance("192.0.2.2@-@28653")].data


@pytest.mark.parametrize(
    ("data", "ip"),
    [
        (b"jobInstanceId: 10.0.0.1@-@11.aa\nserverIp: 10.0.0.7\n", "10.0.0.7"),
        (b"serverIp: '10.0.0.7'\r\njobInstanceId: x", "10.0.0.7"),
        (b'serverIp: "10.0.0.7"', "10.0.0.7"),
        (b"jobInstanceId: 10.0.0.1@-@11.aa\n", "10.0.0.1"),
        (b"", "10.0.0.1"),
        (b"\xff\xfe\x00", "10.0.0.1"),
        (b"[1, 2]", "10.0.0.1"),
    ],
)
def test_an_instances_address_is_what_its_document_says_else_that_of_its_id(data: bytes, ip: str) -> None:
    job = Job()
    job.put(job.paths.instance(A), data, session=5)
    assert job.view.instances[A] == Instance(A, ip, draining=False, session_id=5)


# ---- what others may have left there ------------------------------------------------------------------------------------------


def test_an_instance_node_that_no_session_owns_speaks_for_nobody() -> None:
    job = Job(A)
    job.put(job.paths.instance(B), instance_document(B, "10.0.0.2"))
    assert list(job.view.instances) == [A]


def test_a_leader_node_that_no_session_owns_is_no_leadership() -> None:
    job = Job(A)
    job.put(job.paths.root + "/leader/election")
    job.put(job.paths.leader, A)
    assert (job.view.leader, job.view.leader_session) == (None, None)
    job.remove(job.paths.leader)
    job.put(job.paths.leader, A, session=2)
    assert (job.view.leader, job.view.leader_session) == (A, 2)


@pytest.mark.parametrize("name", ["x", "@-@11", "10.0.0.1", "10.0.0.1@11", "10.0.0.1@-@", "a@b@-@1", "-"])
def test_an_instance_name_that_is_no_id_is_passed_over(name: str) -> None:
    job = Job(A)
    job.put(job.paths.instance(name), "serverIp: 10.0.0.1\n", session=5)
    assert list(job.view.instances) == [A]


@pytest.mark.parametrize(
    "name",
    ["x", "-1", "1.5", "007", "00", "+1", "1 ", " 1", "1e3", "0x1", "١", "²", "1_0", "_", "9" * 5000],
)
def test_an_item_that_is_no_number_is_passed_over(name: str) -> None:
    """Also numbers of other scripts, and one that is too long to be read as a number."""
    job = Job(A)
    for path in (job.paths.sharding + "/1", job.paths.sharding + "/1/instance"):
        job.put(path, A)
    for path in ("", "/instance", "/disabled"):
        job.put(f"{job.paths.sharding}/{name}{path}", A)
    assert job.view.items == {1}
    assert job.view.assigned.keys() == {1}
    assert not job.view.disabled_items


def test_an_item_whose_owner_is_no_text_belongs_to_nobody_alive() -> None:
    job = Job(A)
    for path, data in ((job.paths.item(0), b""), (job.paths.item_instance(0), b"\xff\xfe"), (job.paths.item(1), b"")):
        job.put(path, data)
    job.put(job.paths.item_instance(1), b"")
    assert job.view.items == {0, 1}
    assert all(assigned.instance_id not in job.view.instances for assigned in job.view.assigned.values())


@pytest.mark.parametrize("name", ["localhost", "::1", "主机", "10.0.0.1 ", "ENABLED", "a" * 300])
def test_strange_server_names_do_no_harm(name: str) -> None:
    job = Job(A)
    job.put(job.paths.server(name), "ENABLED")
    assert job.view.server_enabled(name)
    assert job.view.eligible() == [A]


def test_nodes_of_elasticjob_that_ejpy_does_not_use_do_no_harm() -> None:
    job = Job(A)
    root = job.paths.root
    for path in ("/trigger", f"/trigger/{A}", "/guarantee", "/systemTime", "/systemTime/current", "/next-job-instance-ip"):
        job.put(root + path, A)
    for path in ("/0", "/0/instance", "/0/running", "/0/misfire", "/0/failover", "/0/failovering", "/0/odd", "/0/odd/instance"):
        job.put(job.paths.sharding + path, B if path == "/0/odd/instance" else A)
    job.put(f"{job.paths.servers}/10.0.0.1/below", "DISABLED")
    job.put(f"{job.paths.instances}-old")
    job.put(f"{job.paths.instances}-old/{B}", session=5)
    assert job.view.assigned == {0: Assigned(A, 0)}
    assert list(job.view.instances) == [A]
    assert list(job.view.servers) == ["10.0.0.1"]
    assert job.view.server_enabled("10.0.0.1")


parts = st.sampled_from(
    ["", "instances", "servers", "sharding", "leader", "election", "instance", "necessary", "0", "007", A, "é"]
)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), max_size=5)


@settings(deadline=None, max_examples=200)
@given(
    st.dictionaries(
        st.lists(parts | texts, max_size=5).map("/".join),
        st.builds(
            node, st.binary(max_size=40) | st.just(b"serverIp: x\nlabels: draining\n: \n: : :"), session=st.none() | st.just(3)
        ),
        max_size=8,
    )
)
def test_whatever_stands_in_the_tree_it_can_be_read(below: dict[str, Any]) -> None:
    paths = Job().paths
    found = view_of({f"{paths.root}/{path}" if path else paths.root: written for path, written in below.items()}, paths)
    assert set(found.assigned) | found.disabled_items <= found.items
    assert set(found.eligible()) <= set(found.instances)
    assert all(instance.session_id is not None for instance in found.instances.values())


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(st.sampled_from(["instances", "servers", "sharding"]), texts), st.binary(max_size=30))
def test_any_name_with_any_data_can_be_read(names: dict[str, str], data: bytes) -> None:
    job = Job(A)
    for parent, name in names.items():
        if name:
            job.put(f"{job.paths.root}/{parent}/{name}", data, session=9 if parent == "instances" else None)
    assert A in job.view.instances
    assert list(job.view.assigned) == []
