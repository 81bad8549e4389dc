"""The simulated worker, where tests find it; it is part of `ejpy.testing`."""

from __future__ import annotations

from ejpy.testing.bodies import Evidence, Run, VirtualExecution, VirtualRunner
from ejpy.testing.worker import NAMESPACE, SESSION_TIMEOUT, SimRegistry, SimWorker

__all__ = ["NAMESPACE", "SESSION_TIMEOUT", "Evidence", "Run", "SimRegistry", "SimWorker", "VirtualExecution", "VirtualRunner"]
