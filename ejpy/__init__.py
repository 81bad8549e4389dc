"""ejpy: scheduled jobs, sharded over many machines, without a central server."""

from ejpy.version import __version__

__all__ = ["__version__"]
