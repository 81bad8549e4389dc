"""Error handlers: who is told when an attempt of a job fails, and how."""

from ejpy.error_handlers.base import JobErrorHandler, JobFailure, failure_of
from ejpy.error_handlers.handling import ErrorHandling
from ejpy.error_handlers.types import HandlerSettings, handler_class, problems_of

__all__ = ["ErrorHandling", "HandlerSettings", "JobErrorHandler", "JobFailure", "failure_of", "handler_class", "problems_of"]
