"""Who runs what: pure decisions about one job.

Functions and small data classes that look at what is known (the registry's nodes, the ledger's entries) and at the time, all
passed in, and return what should be done: operations for the registry, attempts to start. Nothing here performs input or
output, reads a clock, starts a thread or keeps state between calls, so that a lost or doubled event changes nothing.
"""
