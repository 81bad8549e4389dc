"""Keeping this instance registered: its node under the present session, its server's entry, and whether it takes anything new.

A node of ours that is missing means one of two things. The session has ended: register again under the new one. Or an operator
removed it, while the session lives: that is an order to end here (`docs/decisions/operators-orders.md`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ejpy.config.model import JobConfig
from ejpy.coordination.view import JobView
from ejpy.errors import RegistryError
from ejpy.registry.base import Operation, SessionState
from ejpy.scheduler.host import Deed, Host
from ejpy.scheduler.membership import Membership

COMPARE_SECONDS = 60.0
"""How often a clock that is too far off to run anything by is compared again: somebody may have set it right."""


class Registration:
    """See the module's text. All methods on the control loop. `dismissed` is called when an operator removed this instance."""

    def __init__(
        self,
        host: Host,
        membership: Membership,
        resignation: Callable[[], list[Operation]],
        dismissed: Callable[[], None],
        again: Callable[[], None],
        log: logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self.session_id: int | None = None
        """The session that this instance was registered under last."""
        self._host = host
        self._membership = membership
        self._resignation = resignation
        self._dismissed = dismissed
        self._log = log
        self._again = again
        self._deed = Deed("registering", again, log)
        self._disabled = False
        self._comparing: asyncio.TimerHandle | None = None

    def holds(self, view: JobView) -> bool:
        """The others see this instance in its present session. Before, whatever it claims would look like a dead worker's."""
        own = view.instances.get(self._host.instance_id)
        return own is not None and own.session_id == self._host.registry.session_id

    def look(self, view: JobView, config: JobConfig, *, clock_refused: bool) -> None:
        """Begin what there is to do, if nothing is under way. `clock_refused`: nothing may be run here by this worker's clock."""
        if clock_refused and self._comparing is None:
            self._comparing = asyncio.get_running_loop().call_later(COMPARE_SECONDS, self._compare_again)
        self._tell_order(view, config)
        if self._deed.under_way:
            return
        if not self.holds(view):
            self._deed.begin(self._register_again(config))
        elif not view.server_enabled(self._host.ip) and self._host.ip not in view.disabled_servers:
            self._deed.begin(self._restore_server(config))
        elif view.instances[self._host.instance_id].draining != self._membership.draining:
            self._deed.begin(self.say_draining())

    def _tell_order(self, view: JobView, config: JobConfig) -> None:
        """Whoever asks why nothing runs here finds the answer in the log."""
        disabled = self._host.ip in view.disabled_servers
        if disabled and not self._disabled:
            level = logging.INFO if config.disabled else logging.WARNING
            self._log.log(level, "server %s is disabled for this job: nothing of it runs here until it is enabled", self._host.ip)
        elif self._disabled and view.server_enabled(self._host.ip):
            self._log.info("server %s is enabled again", self._host.ip)
        self._disabled = disabled

    def _compare_again(self) -> None:
        self._comparing = None
        if self._deed.under_way or self._host.registry.state is not SessionState.CONNECTED:
            self._again()
        else:
            self._deed.begin(self.say_draining())  # what it writes is dated by the registry

    async def say_draining(self) -> bool:
        """Tell the others whether this worker takes anything new; the copy of the tree will tell whether that was done."""
        try:
            await self._membership.say_draining(self._resignation())
        except RegistryError as error:
            self._log.info("the others are not told yet whether this worker takes anything new: %s", error)
        return False

    async def close(self) -> None:
        if self._comparing is not None:
            self._comparing.cancel()
        await self._deed.cancel()

    async def _register_again(self, config: JobConfig) -> bool:
        try:
            if self.session_id == self._host.registry.session_id:
                if not await self._membership.removed_by_operator():
                    return False  # the copy of the tree is late
                self._dismissed()
                return True
            await self._host.registry.sync()
            self.session_id = await self._membership.rejoin(config)
        except RegistryError as error:
            self._log.info("not registered yet: %s", error)
            return False
        self._log.info("registered again under a new session")
        return True

    async def _restore_server(self, config: JobConfig) -> bool:
        try:
            await self._membership.restore_server(config)
        except RegistryError as error:
            self._log.info("the server's entry not restored: %s", error)
            return False
        return True
