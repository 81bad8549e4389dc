"""Listeners: code that is called before and after the fires of a job, on each worker or once for all."""

from ejpy.listeners.base import DistributeOnceListener, FireInfo, JobListener
from ejpy.listeners.guarantee import Guarantee
from ejpy.listeners.types import listener_class

__all__ = ["DistributeOnceListener", "FireInfo", "Guarantee", "JobListener", "listener_class"]
