"""Job classes by name, and the one instance that each job has of its class.

Two jobs that name the same class have an instance each: what one keeps in `self` is not seen by the other.
"""

from __future__ import annotations

import threading

from ejpy.attempt import Attempt
from ejpy.config.classes import load_class
from ejpy.job import ShardedJob


def name_of_class(job_class: type[ShardedJob]) -> str:
    """`module:Class`, as it stands in configurations."""
    return f"{job_class.__module__}:{job_class.__qualname__}"


class JobInstances:
    """The instances of one process, made when they are first needed. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._classes: dict[str, type[ShardedJob]] = {}
        self._instances: dict[tuple[str, str], ShardedJob] = {}
        self._locks: dict[tuple[str, str], threading.Lock] = {}

    def provide(self, job_class: type[ShardedJob]) -> str:
        """Use this class for its name instead of importing it, for classes that cannot be imported; returns the name."""
        name = name_of_class(job_class)
        self._classes[name] = job_class
        return name

    def of(self, attempt: Attempt) -> ShardedJob:
        """The instance for a job. Raises ConfigError if its class cannot be loaded, and whatever its constructor raises."""
        key = attempt.job_name, attempt.job_class
        with self._locks.setdefault(key, threading.Lock()):
            instance = self._instances.get(key)
            if instance is None:
                job_class = self._classes.get(attempt.job_class) or load_class(attempt.job_class)
                instance = self._instances[key] = job_class()
            return instance

    def forget(self, job_name: str) -> None:
        """Drop the instances of a job that was removed; bodies that run keep theirs."""
        for key in [key for key in self._instances if key[0] == job_name]:
            self._instances.pop(key, None)
            self._locks.pop(key, None)
