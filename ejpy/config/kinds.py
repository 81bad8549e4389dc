"""Typed jobs: those whose class ejpy has itself, named by ElasticJob's text for them.

The text stands in the data of the job's root node, where a job with a class of its own has its class, so that Java workers
and ejpy take such a job for the same one.
"""

from __future__ import annotations

from collections.abc import Mapping

CLASS_OF_TYPE: Mapping[str, str] = {"SCRIPT": "ejpy.jobs:ScriptJob", "HTTP": "ejpy.jobs:HttpJob"}
"""`module:Class` by type."""


def known_type(text: str) -> str | None:
    """The type that `text` names, in any case, in the spelling that is stored; None if there is none of that name."""
    folded = text.strip().upper()
    return folded if folded in CLASS_OF_TYPE else None
