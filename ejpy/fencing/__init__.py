"""Fencing: what a job writes outside of ejpy is refused when it comes from an attempt that has lost its item.

A worker can be paused in the middle of a body (a suspended machine, a long stop of the process) while another worker runs
the item anew. When it wakes, its next line of code may be a write. No look at a clock or a flag before the write can prevent
that, since the pause may come between the look and the write; only the place that is written to can, by comparing tokens:

    attempt 1, token 41 ──reads──[paused ................................]──writes──► refused: 41 < 57
                                     attempt 2, token 57 ──writes──► stored, with 57

Each module here is such a place, or what makes one of it:

    sql     a table of tokens beside the caller's own, or a column of the caller's table
    files   a file that is replaced as a whole
    redis   keys of a Redis server
    s3      an object of a store with S3's conditional put

The rule is the same in all: what is guarded remembers the greatest token that has written to it; a smaller one is refused with
StaleAttempt, an equal one may write again (so a write whose reply was lost can be repeated), a greater one takes over. A token
that is stored and cannot be understood raises UnreadableToken: nothing is written where nothing can be compared.

What may share a guard. A token is the registry's revision of the claim: it grows with every change of the whole registry, so the
tokens of all jobs and items of one registry can be compared, but only for successive attempts of one item does a greater one
mean that the smaller has lost its right. Items that are claimed together even have the same one. So whatever has a guard must be
written by one item of one job at a time, and its name must say which: the item, or better the part of the data that the item
stands for. Tokens of different registries, or of one that was set up anew, cannot be compared.
"""
