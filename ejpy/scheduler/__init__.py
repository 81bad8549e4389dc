"""One job on one worker: turns events into decisions, and decisions into deeds.

`coordination` decides, this package acts. Its parts share one control loop and wake each other only by asking for another
look; each keeps no more state than what it has begun and not ended.

    job.py          JobScheduler: the parts put together; the look
    membership.py   the job's and this worker's nodes: registering, draining, leaving
    leadership.py   election, abdication, resharding
    items.py        the items that are mine: claims, bodies, their ends
    item.py         one of them
    checkpoints.py  what bodies save
    schedules.py    when: the present schedule, and earlier ones
    host.py         what all jobs of a worker share
"""

from ejpy.scheduler.job import JobScheduler

__all__ = ["JobScheduler"]
