"""One job on one worker: turns events into decisions, and decisions into deeds.

`coordination` decides, this package acts. Its parts share one control loop and wake each other only by asking for another
look; each keeps no more state than what it has begun and not ended.

    job.py            JobScheduler: the parts put together; the look
    host.py           what all jobs of a worker share
    configuration.py  the configuration that counts, and its changes; schedules.py: its schedule, and earlier ones
    membership.py     the job's and this worker's nodes: registering, draining, leaving
    registration.py   when to do that
    neighbours.py     the other instances, as they come and go
    clock_check.py    this worker's clock against the registry's
    leadership.py     when to do what as a leader
    election.py       becoming the leader, and ceasing to be; term.py: what is known in between
    resharding.py     the leader's changes of the assignment; own_strategy.py: a strategy of the user's
    takeover.py       failover by marks, under the failover latch
    items.py          the items that are mine: what is there to do; item.py: one of them
    entries.py        their ledger entries, read and written
    bodies.py         those that run here: started, ended; checkpoints.py: what they save
    stale_marks.py    marks in this worker's name of what does not run here
    job_runners.py    what the bodies of a job are handed to, with its listeners
    wording.py        words for log lines
"""

from ejpy.scheduler.job import JobScheduler

__all__ = ["JobScheduler"]
