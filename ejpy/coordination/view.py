"""What is known of a job, read off its nodes: a snapshot that decisions are made from.

The nodes come from a copy of the job's tree that watches keep current. Whatever others wrote there (a Java worker, an
operator, rubbish) must not break the reading: what cannot be understood is left out. An instance or leader node that is not
ephemeral speaks for nobody: no session's end would ever remove it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ejpy.coordination.paths import JobPaths
from ejpy.registry.base import Node

ENABLED = b"ENABLED"
DISABLED = b"DISABLED"
DRAINING_LABEL = "draining"

ITEM = re.compile(r"0|[1-9][0-9]{0,8}")
"""ElasticJob writes plain numbers; "007" is somebody's rubbish, not item 7."""
_ID = re.compile(r"^(?P<ip>[^/@]+)@-@(?P<token>[^/]+)$")


@dataclass(frozen=True, slots=True)
class Instance:
    """A live worker process of the job."""

    id: str
    ip: str
    draining: bool
    """It is shutting down: it ends what it runs, and takes nothing new."""
    session_id: int | None


@dataclass(frozen=True, slots=True)
class Assigned:
    """To whom an item is assigned, and the version of that node."""

    instance_id: str
    version: int


@dataclass(frozen=True, slots=True)
class JobView:
    """One look at a job's tree."""

    instances: Mapping[str, Instance] = field(default_factory=dict)
    servers: Mapping[str, bool] = field(default_factory=dict)
    """Address → its entry says exactly ENABLED."""
    disabled_servers: frozenset[str] = frozenset()
    """Addresses whose entries say exactly DISABLED."""
    leader: str | None = None
    leader_session: int | None = None
    items: frozenset[int] = frozenset()
    """Children of `sharding`."""
    assigned: Mapping[int, Assigned] = field(default_factory=dict)
    disabled_items: frozenset[int] = frozenset()
    necessary: bool = False
    processing: bool = False
    next_server: str | None = None
    """Under SINGLE_SHARDING_BALANCE: the address of the server whose turn it is."""

    def server_enabled(self, ip: str) -> bool:
        """ElasticJob's rule: the data is exactly ENABLED; a missing entry is not enabled."""
        return self.servers.get(ip, False)

    def eligible(self) -> list[str]:
        """Ids of the instances that may be given items."""
        return [i.id for i in self.instances.values() if self.server_enabled(i.ip) and not i.draining]

    @property
    def enabled(self) -> bool:
        """False while every server that has a live instance is disabled: then nothing is due."""
        return not self.instances or any(self.server_enabled(i.ip) for i in self.instances.values())

    def items_of(self, instance_id: str, total: int) -> list[int]:
        return sorted(i for i, a in self.assigned.items() if a.instance_id == instance_id and i < total)


def view_of(nodes: Mapping[str, Node], paths: JobPaths) -> JobView:
    """Read a job's nodes (path → node) into a view."""
    instances: dict[str, Instance] = {}
    servers: dict[str, bool] = {}
    disabled_servers: set[str] = set()
    items: set[int] = set()
    assigned: dict[int, Assigned] = {}
    disabled: set[int] = set()
    start = len(paths.root) + 1
    for path, node in nodes.items():
        parts = path[start:].split("/")
        if parts[0] == "instances" and len(parts) == 2:
            if node.session_id is not None and (match := _ID.match(parts[1])):
                instances[parts[1]] = _instance(parts[1], match["ip"], node)
        elif parts[0] == "servers" and len(parts) == 2:
            servers[parts[1]] = node.data == ENABLED
            if node.data == DISABLED:
                disabled_servers.add(parts[1])
        elif parts[0] == "sharding" and len(parts) >= 2 and ITEM.fullmatch(parts[1]):
            item = int(parts[1])
            items.add(item)
            if parts[2:] == ["instance"]:
                assigned[item] = Assigned(node.data.decode("utf-8", "replace"), node.version)
            elif parts[2:] == ["disabled"]:
                disabled.add(item)
    turn = nodes.get(paths.next_server)
    leader = nodes.get(paths.leader)
    if leader is not None and leader.session_id is None:
        leader = None
    return JobView(
        instances=instances,
        servers=servers,
        disabled_servers=frozenset(disabled_servers),
        leader=leader.data.decode("utf-8", "replace") if leader else None,
        leader_session=leader.session_id if leader else None,
        items=frozenset(items),
        assigned=assigned,
        disabled_items=frozenset(disabled),
        necessary=paths.resharding_necessary in nodes,
        processing=paths.resharding_processing in nodes,
        next_server=turn.data.decode("utf-8", "replace") if turn is not None and turn.session_id is not None else None,
    )


def instance_document(instance_id: str, ip: str, *, draining: bool = False) -> bytes:
    """An instance node's data: ElasticJob's bean, whose strict readers allow no further key.

    `labels` is its one free field; ejpy says there that it is draining.
    """
    labels = f"labels: {DRAINING_LABEL}\n" if draining else ""
    return f"jobInstanceId: {instance_id}\n{labels}serverIp: {ip}\n".encode()


def _instance(instance_id: str, ip: str, node: Node) -> Instance:
    document = dict(line.split(": ", 1) for line in node.data.decode("utf-8", "replace").splitlines() if ": " in line)
    return Instance(
        id=instance_id,
        ip=document.get("serverIp", ip).strip("'\" "),
        draining=document.get("labels", "").strip("'\" ") == DRAINING_LABEL,
        session_id=node.session_id,
    )
