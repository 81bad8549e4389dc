"""Whole clusters in one process and in virtual time, faults from a seed, and a checker of what came of it.

    virtual_loop.py  an event loop whose time costs nothing, and whose tasks can be frozen, worker by worker
    network.py       the in-memory registry behind a bad network
    bodies.py        bodies that only take time
    worker.py        a worker: the real JobScheduler and coordination code, paused and killed at will
    cluster.py       workers, the store that they share, and what is in it
    outsider.py      somebody who is no worker and writes nodes by hand
    plan.py          a cluster, its jobs and its faults, as data that a seed yields
    faults.py        carries out what a plan says
    history.py       what happened, as rows
    observer.py      sees each transaction of the store, and tells it as such rows
    play.py          plays a plan, and gives its history
    checker.py       finds what is wrong in a history; invariants/: what must hold
    production.py    reads the log of real workers as a history
    shrink.py        the shortest plan that still breaks an invariant
    simulate.py      the command: python -m ejpy.testing.simulate

Nothing here reads a clock, a random source or the environment of its own: the same plan gives the same history, byte for byte.
"""
