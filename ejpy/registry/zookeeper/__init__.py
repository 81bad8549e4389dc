"""The registry on ZooKeeper (3.6 or later), by way of kazoo 2.11.

kazoo runs one thread for its connection. That thread only hands things over to the loop, in the order in which they came
over the wire; everything else happens on the loop.

    registry    the contract of `ejpy.registry.base`, told in ZooKeeper's requests
    link        what exists between `start` and `stop`, and how the parts below are joined
    guard       what the session is worth: `sync` probes, the lease, the state
    channel     requests under way: window, deadlines, what a missing reply means
    watches     recursive watches and one-shot watches, and what happens to them at an interruption
    requests    requests and replies as bytes
    client      kazoo's client and connection with the hooks that all this needs
    handler     kazoo's sockets: polling, bounded connects, a wake-up that never blocks
    faults      ZooKeeper's error codes as ejpy's errors
    hosts       the list of servers as a user writes it
"""

from ejpy.registry.zookeeper.registry import ZooKeeperRegistry

__all__ = ["ZooKeeperRegistry"]
