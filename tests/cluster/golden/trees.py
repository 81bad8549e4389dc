"""The trees that a real ElasticJob worker left at known moments, and how another tree differs from one of them.

`trees.json` was read from ElasticJob 3.0.6-SNAPSHOT (commit 89f70b70e) on ZooKeeper 3.8.0: of each moment `how` it was brought
about, the access list that every node had, and path → data, version and, if it is ephemeral, the session.

Ids, addresses and sessions are never the same twice, so trees are compared as *pictures*, in which instance ids are numbered,
`<id1>` being the last by name, as ElasticJob deals items out; an address is `<ip>`, a session that of an instance, and a cron
expression `<cron>`: tests choose their own times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

JOB = "job-0"
_ID = re.compile(r"[0-9.]+@-@[0-9a-z.]+")
_IP = re.compile(r"\b\d+\.\d+\.\d+\.\d+\b")


@dataclass(frozen=True)
class Tree:
    """All nodes below a namespace at one moment."""

    namespace: str
    """With a slash in front."""
    nodes: Mapping[str, tuple[str, int | None]]
    """Path → data, and the session of an ephemeral node."""
    access: frozenset[tuple[str, str, int]]
    """The entries of all nodes' access lists: scheme, id, permissions."""

    @property
    def ids(self) -> set[str]:
        """The instance ids that occur."""
        texts = (text for path, (data, _) in self.nodes.items() for text in (path, data))
        return {found for text in texts for found in _ID.findall(text)}

    def picture(self, ids: Iterable[str]) -> dict[str, str]:
        """Path → what stands there, with names for what is never the same twice. `ids`: all that occur in the tree's story.

        Paths are without namespace and job; each key of the configuration is a path of its own.
        """
        names = {each: f"<id{number}>" for number, each in enumerate(sorted(ids, reverse=True), 1)}
        owners = {
            session: names[path.rpartition("/")[2]]
            for path, (_, session) in self.nodes.items()
            if session is not None and "/instances/" in path
        }

        def named(text: str) -> str:
            return _IP.sub("<ip>", _ID.sub(lambda match: names[match[0]], text))

        picture: dict[str, str] = {}
        for path, (data, session) in self.nodes.items():
            place = path.removeprefix(self.namespace).removeprefix(f"/{JOB}").removeprefix("/")
            if place == "config":
                picture |= _by_key(data)
                continue
            place = named(place) or (JOB if path.endswith(f"/{JOB}") else "(namespace)")
            shown = named(data).rstrip("\n").replace("\n", "; ")
            if session is not None:
                shown += f" (while {owners.get(session, 'nobody')} is there)"
            assert picture.setdefault(place, shown) == shown, f"{place} is {picture[place]!r} and {shown!r}"
        return picture


def _by_key(document: str) -> dict[str, str]:
    values = yaml.load(document, yaml.BaseLoader)
    values |= {"cron": "<cron>"} if "cron" in values else {}
    props = values.pop("props", {})
    return {f"config {key}": value for key, value in [*values.items(), *((f"props {key}", props[key]) for key in props)]}


@cache
def golden() -> dict[str, Tree]:
    """ElasticJob's trees by moment: "a1", "a2" …"""
    moments = json.loads(Path(__file__).with_name("trees.json").read_text())
    return {
        name.partition("-")[0]: Tree(
            namespace=min(moment["nodes"], key=len),
            nodes={path: (data, session[0] if session else None) for path, (data, _, *session) in moment["nodes"].items()},
            access=frozenset((scheme, who, permissions) for scheme, who, permissions in moment["acl"]),
        )
        for name, moment in moments.items()
    }


def golden_ids(series: str) -> set[str]:
    """All instance ids of one worker's or one fleet's story, which its moments' names begin with."""
    return {each for moment, tree in golden().items() if moment.startswith(series) for each in tree.ids}


def differences(moment: str, tree: Tree, ids: Iterable[str]) -> set[str]:
    """What is not as in ElasticJob's tree of this moment, one line each: `-` is there only, `+` here only, `~` there and here.

    `ids`: the instance ids of all workers that took part here.
    """
    theirs = golden()[moment].picture(golden_ids(moment[0]))
    ours = tree.picture(ids)
    lines = {f"- {path}" for path in theirs.keys() - ours.keys()}
    lines |= {f"+ {path}" + (f": {ours[path]}" if ours[path] else "") for path in ours.keys() - theirs.keys()}
    lines |= {f"~ {p}: {theirs[p]} → {ours[p]}" for p in theirs.keys() & ours.keys() if theirs[p] != ours[p]}
    if tree.access != golden()[moment].access:
        lines.add(f"~ access: {sorted(golden()[moment].access)} → {sorted(tree.access)}")
    return lines
