"""Reading the `props` of a job: texts by name, as ElasticJob stores them. Each problem is one line, `props: name: what is wrong`.

A misspelled name would mean that a setting is passed over in silence, so names that begin as those of the kind do must be known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar, cast

from ejpy.errors import ConfigError
from ejpy.job import ShardContext
from ejpy.wording import closest, shown

Settings = TypeVar("Settings")

LONGEST_MILLISECONDS = 24 * 60 * 60 * 1000
_WHOLE = re.compile(r"0|[1-9][0-9]{0,8}")


class PropsReader:
    """Reads values one by one and gathers what is wrong with them."""

    def __init__(self, props: Mapping[str, str]) -> None:
        self._props = props
        self._meant: set[str] = set()
        """Names of which a misspelling was found and told."""
        self.problems: list[str] = []

    def problem(self, name: str, what: str) -> None:
        self.problems.append(f"props: {name}: {what}")

    def missing(self, name: str, what: str, *, or_else: str | None = None) -> None:
        """`name` is required (or `or_else`), and there is no value: one problem, also if it is there and misspelled."""
        if not self._meant & {name, or_else}:
            near = closest(name, self._props.keys() - {name})
            self.problem(name, f"is missing; {what}" if near is None else f"is missing; is it what {shown(near)} should be?")

    def refuse_unknown(self, prefix: str, known: Iterable[str]) -> None:
        """Every name that begins with `prefix` must be one of `known`."""
        names = sorted(known)
        for name in sorted(self._props):
            if name.startswith(prefix) and name not in names:
                meant = closest(name, names)
                if meant:
                    self._meant.add(meant)
                hint = f"did you mean {meant}?" if meant else f"known are {', '.join(names)}"
                self.problem(shown(name), f"unknown name; {hint}")

    def text(self, name: str) -> str | None:
        """A text as it stands; None if it is missing or empty."""
        return self._props.get(name) or None

    def boolean(self, name: str, default: bool) -> bool:
        """`true` or `false` in any case, as Java writes them."""
        text = self._props.get(name)
        if text is None:
            return default
        folded = text.strip().lower()
        if folded not in ("true", "false"):
            self.problem(name, f"{shown(text)} is not allowed; allowed: true, false")
        return folded == "true"

    def milliseconds(self, name: str, default: int) -> float:
        """Seconds, from a whole number of milliseconds between 1 and a day."""
        text = self._props.get(name)
        if text is None:
            return default / 1000
        if not _WHOLE.fullmatch(text.strip()) or not 1 <= int(text) <= LONGEST_MILLISECONDS:
            self.problem(name, f"{shown(text)} is not allowed; allowed: milliseconds, 1 to {LONGEST_MILLISECONDS} (a day)")
            return default / 1000
        return int(text) / 1000


def settings_of(shard_ctx: ShardContext, read: Callable[[PropsReader], Settings | None]) -> Settings:
    """What `read` makes of a job's `props`. Raises ConfigError with all problems, each with the job's name."""
    reader = PropsReader(shard_ctx.props)
    settings = read(reader)
    if reader.problems:
        raise ConfigError([f"job {shown(shard_ctx.job_name)}: {problem}" for problem in reader.problems])
    return cast("Settings", settings)


def problems_of(props: Mapping[str, str], read: Callable[[PropsReader], object]) -> list[str]:
    """What is wrong with `props`, one line for each problem; empty if nothing is."""
    reader = PropsReader(props)
    read(reader)
    return reader.problems
