"""The job's nodes and this worker's among them: registering, draining, leaving.

Registering is one read and one transaction of what is missing (the order of ElasticJob's `SetUpFacade`, config,
servers, instance, holds trivially). Two workers that register a new job at once: one transaction fails, and reads again.
Nothing is written before the stored job class has been compared.

    unregistered ──register──► registered ──drain──► draining ──leave──► gone
                      ▲             │ session lost
                      └─────────────┘

The server's entry keeps what an operator set; ElasticJob would enable it again at every start.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from ejpy.config.document import differences, from_document, to_document
from ejpy.config.model import JobConfig
from ejpy.coordination.paths import JobPaths
from ejpy.coordination.view import DISABLED, ENABLED, instance_document
from ejpy.errors import ConfigError, CronError, GuardFailed, JobConflict, RegistryError
from ejpy.registry.base import Check, Committed, Create, Delete, Node, Operation, SetData, ancestors
from ejpy.schedule.cron import parse
from ejpy.scheduler.host import Host
from ejpy.scheduler.schedules import STILL_GOOD
from ejpy.wording import shown

Result = TypeVar("Result")

ATTEMPTS = 20
"""Registering at the same moment as many others: each failure means that somebody else's succeeded."""


@dataclass(frozen=True, slots=True)
class Dated:
    """A write of this instance's node: its revision, and this worker's clock before and after it."""

    revision: int
    before: datetime
    after: datetime


class Membership:
    """This worker's place in one job."""

    def __init__(self, host: Host, paths: JobPaths, file: JobConfig, log: logging.LoggerAdapter[logging.Logger]) -> None:
        self._host = host
        self._paths = paths
        self._file = file
        self._log = log
        self.dated: Dated | None = None
        """When this instance's node was written last, if nobody has looked at that yet."""
        self.draining = False
        """Whether this instance's node says, whenever it is written, that nothing new shall be given to it."""

    async def register(self) -> tuple[JobConfig, int | None]:
        """Make sure that the job and this instance are there; returns the configuration that counts, and the session.

        Raises JobConflict, ConfigError (the stored configuration is broken and `overwrite` is off), RegistryError.
        """

        async def missing(found: dict[str, Node]) -> tuple[JobConfig, list[Operation]]:
            self._refuse_conflict(found)
            config, writes = self._configuration(found)
            writes += await self._switch_servers(found)
            return config, self._parents(found) + writes + self._own_nodes(found, config)

        return await self._write(missing)

    async def rejoin(self, config: JobConfig) -> int | None:
        """Make sure that this instance is there under the current session, which it returns; the configuration stays as it
        is, whatever the file says: `config` counts. Raises RegistryError."""

        async def missing(found: dict[str, Node]) -> tuple[None, list[Operation]]:
            return None, self._parents(found) + self._own_nodes(found, config)

        return (await self._write(missing))[1]

    async def _write(
        self, missing: Callable[[dict[str, Node]], Awaitable[tuple[Result, list[Operation]]]]
    ) -> tuple[Result, int | None]:
        for _ in range(ATTEMPTS):
            session_id = self._host.registry.session_id
            before = self._host.clock.now()
            result, operations = await missing(await self._read())
            try:
                if operations:
                    committed = await self._host.group.commit(operations, not_after=self._host.registry.lease_until)
                    self.dated = Dated(committed.revision, before, self._host.clock.now())
                return result, session_id
            except GuardFailed as error:
                self._log.debug("registering met somebody else's change (%s); reading again", error)
        raise RegistryError(f"{self._paths.root}: could not register in {ATTEMPTS} attempts: others keep changing it")

    async def removed_by_operator(self) -> bool:
        """Whether this instance's node was removed while the session that made it lives: an operator's order to stop here.

        A node that went with its session is no order, and a worker may see it missing before it hears that its session has
        ended. So the session is proved alive after the node was found missing.
        """
        [node] = await self._host.registry.read([self._paths.instance(self._host.instance_id)])
        if node is not None:
            return False
        try:
            await self._host.registry.commit([Check(self._paths.ledger_namespace)])
        except GuardFailed:
            self._log.debug("the ledger was removed as well; the answer was the session's all the same")
        return True

    async def restore_server(self, config: JobConfig) -> None:
        """Make this server's entry again, which somebody removed, or put a word for what is none there: as it was, nothing would
        ever run here. (A Java worker writes its entry at each start.)

        Only while this instance is registered, so that a job that is being removed does not come back. Raises RegistryError.
        """
        path, state = self._paths.server(self._host.ip), DISABLED if config.disabled else ENABLED
        registered = Check(self._paths.instance(self._host.instance_id))
        parent, entry = await self._host.registry.read([self._paths.servers, path])
        if entry is not None and entry.data in (ENABLED, DISABLED):
            return
        writes: list[Operation] = [Create(self._paths.servers)] if parent is None else []
        writes.append(Create(path, state) if entry is None else SetData(path, state, entry.version))
        await self._host.group.commit([registered, *writes], not_after=self._host.registry.lease_until)
        was = "had been removed" if entry is None else f"said {shown(entry.data.decode('utf-8', 'replace'))}"
        self._log.warning("the entry of server %s %s, and says %s again", self._host.ip, was, state.decode())

    async def say_draining(self, resignation: list[Operation]) -> None:
        """Tell the leader to give this worker nothing new, or something again; give up the leadership. Raises RegistryError."""
        before = self._host.clock.now()
        written = SetData(self._paths.instance(self._host.instance_id), self._document())
        committed = await self._commit_with([written], resignation)
        if committed is not None:
            self.dated = Dated(committed.revision, before, self._host.clock.now())

    async def leave(self, resignation: list[Operation]) -> None:
        """Remove this instance's node and, if it leads, the leader's, in one transaction. Raises RegistryError."""
        await self._commit_with([Delete(self._paths.instance(self._host.instance_id))], resignation)

    async def _commit_with(self, operations: list[Operation], resignation: list[Operation]) -> Committed | None:
        if resignation:
            try:
                return await self._host.group.commit([*operations, *resignation])
            except GuardFailed as error:
                self._log.debug("not the leader any more: %s", error)
        try:
            return await self._host.group.commit(operations)
        except GuardFailed as error:
            self._log.debug("this instance's node had gone already: %s", error)
            return None

    def _document(self) -> bytes:
        return instance_document(self._host.instance_id, self._host.ip, draining=self.draining)

    # -- what is there, and what is missing --

    async def _read(self) -> dict[str, Node]:
        p, host = self._paths, self._host
        wanted = [p.root, p.config, p.instances, p.instance(host.instance_id), p.servers, p.server(host.ip), p.term]
        wanted += [a for path in (p.root, p.term) for a in ancestors(path)]
        nodes = await host.registry.read(wanted)
        return {path: node for path, node in zip(wanted, nodes, strict=True) if node is not None}

    def _parents(self, found: dict[str, Node]) -> list[Operation]:
        p = self._paths
        wanted = [*ancestors(p.root), *ancestors(p.term), p.root, p.servers, p.term, p.instances]
        job_class = self._file.job_class.encode()
        return [Create(path, job_class if path == p.root else b"") for path in dict.fromkeys(wanted) if path not in found]

    def _configuration(self, found: dict[str, Node]) -> tuple[JobConfig, list[Operation]]:
        p, job_class = self._paths, self._file.job_class.encode()
        config, document = self._effective(found)
        writes: list[Operation] = []
        if document is not None and p.config in found:
            writes.append(SetData(p.config, document, found[p.config].version))
        elif document is not None:
            writes.append(Create(p.config, document))
        if p.root in found and found[p.root].data != job_class and (document is not None or self._file.overwrite):
            writes.append(SetData(p.root, job_class, found[p.root].version))
        return config, writes

    def _own_nodes(self, found: dict[str, Node], config: JobConfig) -> list[Operation]:
        p, host = self._paths, self._host
        path = p.instance(host.instance_id)
        own = found.get(path)
        writes: list[Operation] = []
        if p.server(host.ip) not in found:
            writes.append(Create(p.server(host.ip), DISABLED if config.disabled else ENABLED))
        if own is not None and own.session_id == host.registry.session_id:
            return writes
        if own is not None:
            writes.append(Delete(path))
        return [*writes, Create(path, self._document(), ephemeral=True)]

    async def _switch_servers(self, found: dict[str, Node]) -> list[Operation]:
        """A file that overwrites the stored `disabled` flag means all servers; otherwise their entries are the operator's."""
        node = found.get(self._paths.config)
        if node is None or not self._file.overwrite:
            return []
        try:
            stored = from_document(node.data, self._paths.job, self._file.job_class, self._file.python_class)
        except ConfigError as error:
            self._log.warning("the stored configuration is broken and will be replaced: %s", "; ".join(error.problems))
            return []
        if stored.disabled == self._file.disabled:
            return []
        [servers] = await self._host.registry.children([self._paths.servers])
        state = DISABLED if self._file.disabled else ENABLED
        return [SetData(self._paths.server(ip), state) for ip in servers or []]

    def _refuse_conflict(self, found: dict[str, Node]) -> None:
        root = found.get(self._paths.root)
        stored = root.data.decode("utf-8", "replace").strip() if root else ""
        if stored and stored != self._file.job_class and not self._file.overwrite:
            raise JobConflict(
                f"job '{self._paths.job}' is registered with class {stored}, this file says {self._file.job_class}: "
                "rename the job, or set overwrite: true to replace it"
            )

    def _effective(self, found: dict[str, Node]) -> tuple[JobConfig, bytes | None]:
        """ElasticJob's rule: the stored configuration counts, unless there is none or the file says `overwrite`.

        Returns the configuration that counts, and the document to write, if any.
        """
        node = found.get(self._paths.config)
        if node is None:
            return self._file, to_document(self._file)
        if self._file.overwrite:
            document = to_document(self._file, previous=node.data)
            return self._file, document if document != node.data else None
        try:
            stored = from_document(node.data, self._paths.job, self._file.job_class, self._file.python_class)
            self._check_cron(stored)
        except ConfigError as error:
            raise ConfigError(
                [f"{self._paths.config}: {problem}; overwrite: true in the file replaces it" for problem in error.problems]
            ) from error
        if different := differences(self._file, stored):
            self._log.warning(
                "the registry's configuration counts, not the file's (set overwrite: true to change that): %s",
                ", ".join(f"{d.key}: file {d.file_value!r}, registry {d.registry_value!r}" for d in different),
            )
        return stored, None

    def _check_cron(self, config: JobConfig) -> None:
        if config.cron is None:
            return
        try:
            parse(config.cron, config.time_zone, now=self._host.clock.now() - STILL_GOOD)
        except CronError as error:
            raise ConfigError([str(error)]) from error
