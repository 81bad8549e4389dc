"""Where things are: ElasticJob's node layout of one job, and the ledger beside it.

The job's own tree (`/{namespace}/{job}/…`) is ElasticJob's, name by name. What ejpy adds is written at every fire, and so
lies outside that tree, under `/{namespace}.ledger/{job}`: whoever watches a job must not be woken by every claim.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobPaths:
    """The nodes of one job. `namespace` starts with "/" and has no trailing "/"."""

    namespace: str
    job: str

    @property
    def root(self) -> str:
        """Data: the job class's text."""
        return f"{self.namespace}/{self.job}"

    @property
    def config(self) -> str:
        return f"{self.root}/config"

    @property
    def instances(self) -> str:
        return f"{self.root}/instances"

    def instance(self, instance_id: str) -> str:
        """Ephemeral; the worker's membership."""
        return f"{self.instances}/{instance_id}"

    @property
    def servers(self) -> str:
        return f"{self.root}/servers"

    def server(self, ip: str) -> str:
        """Data: ENABLED or DISABLED; an operator's switch for all instances on that address."""
        return f"{self.servers}/{ip}"

    @property
    def latch(self) -> str:
        """Directory of the election's LeaderLatch."""
        return f"{self.root}/leader/election/latch"

    @property
    def leader(self) -> str:
        """Ephemeral; data: the leader's instance id. This node is the leadership."""
        return f"{self.root}/leader/election/instance"

    @property
    def resharding_necessary(self) -> str:
        return f"{self.root}/leader/sharding/necessary"

    @property
    def resharding_processing(self) -> str:
        return f"{self.root}/leader/sharding/processing"

    @property
    def sharding(self) -> str:
        return f"{self.root}/sharding"

    def item(self, item: int) -> str:
        return f"{self.sharding}/{item}"

    def item_instance(self, item: int) -> str:
        """Data: id of the instance that the item is assigned to."""
        return f"{self.sharding}/{item}/instance"

    def item_disabled(self, item: int) -> str:
        return f"{self.sharding}/{item}/disabled"

    def item_running(self, item: int) -> str:
        return f"{self.sharding}/{item}/running"

    def item_misfire(self, item: int) -> str:
        """The item was still running when it was due: it runs once more."""
        return f"{self.sharding}/{item}/misfire"

    def item_failover(self, item: int) -> str:
        """Ephemeral; data: id of the instance that took the item of a dead one over."""
        return f"{self.sharding}/{item}/failover"

    def item_failovering(self, item: int) -> str:
        """As `item_failover`, and persistent: so that the death of the taker is seen."""
        return f"{self.sharding}/{item}/failovering"

    @property
    def failover_items(self) -> str:
        return f"{self.root}/leader/failover/items"

    def failover_item(self, item: int) -> str:
        """The item's instance died while it ran: whoever is free takes it."""
        return f"{self.failover_items}/{item}"

    @property
    def failover_latch(self) -> str:
        return f"{self.root}/leader/failover/latch"

    @property
    def next_server(self) -> str:
        """Ephemeral; data: address of the server that runs next, of a job of one item under SINGLE_SHARDING_BALANCE."""
        return f"{self.root}/next-job-instance-ip"

    @property
    def triggers(self) -> str:
        return f"{self.root}/trigger"

    def trigger(self, instance_id: str) -> str:
        """That instance shall run its items now."""
        return f"{self.triggers}/{instance_id}"

    @property
    def ledger_namespace(self) -> str:
        return f"{self.namespace}.ledger"

    @property
    def term(self) -> str:
        """The ledger's root for this job. Its version is the leader's term: whoever is elected writes it, and every
        decision of a leader is guarded by the version that its own term left there."""
        return f"{self.ledger_namespace}/{self.job}"

    def ledger(self, item: int) -> str:
        return f"{self.term}/{item}"
