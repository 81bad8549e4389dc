"""Job classes by name, and the one instance that each job has of its class.

Two jobs that name the same class have an instance each: what one keeps in `self` is not seen by the other.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

from ejpy.errors import ConfigError
from ejpy.execution.base import Attempt
from ejpy.execution.body import describe_error
from ejpy.job import ShardedJob


def name_of_class(job_class: type[ShardedJob]) -> str:
    """`module:Class`, as it stands in configurations."""
    return f"{job_class.__module__}:{job_class.__qualname__}"


def load_job_class(name: str) -> type[ShardedJob]:
    """The class that `module:Class` names. Raises ConfigError with what is wrong: form, module, class, kind of class."""
    module_name, colon, qualname = name.partition(":")
    if not colon or not module_name or not qualname:
        raise ConfigError([f"job class {name!r}: must be written as module:Class, for example shop.jobs:Export"])
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError([f"job class {name!r}: module {module_name} cannot be imported: {describe_error(error)}"]) from error
    for part in qualname.split("."):
        if not hasattr(found, part):
            hint = (
                "; the main script cannot be imported by others, put the class into a module" if module_name == "__main__" else ""
            )
            raise ConfigError([f"job class {name!r}: module {module_name} has no class {qualname}{hint}"])
        found = getattr(found, part)
    if not (isinstance(found, type) and issubclass(found, ShardedJob)):
        raise ConfigError([f"job class {name!r}: must be a subclass of ejpy.ShardedJob"])
    return found


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
                job_class = self._classes.get(attempt.job_class) or load_job_class(attempt.job_class)
                instance = self._instances[key] = job_class()
            return instance

    def forget(self, job_name: str) -> None:
        """Drop the instances of a job that was removed; bodies that run keep theirs."""
        for key in [key for key in self._instances if key[0] == job_name]:
            self._instances.pop(key, None)
            self._locks.pop(key, None)
