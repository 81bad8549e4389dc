"""The one place that holds the version of ejpy."""

__version__ = "0.1.0"
