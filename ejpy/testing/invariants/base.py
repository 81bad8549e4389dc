"""The names of what must hold, and how it is told that something does not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ejpy.testing.history import time_text


class Invariant(str, Enum):
    """S: never broken, at no moment. L: holds when the faults are over and all had its time."""

    S1 = "S1"
    """Writes that are accepted have tokens that never go down, and come from the newest grant."""
    S2 = "S2"
    """One claim for each (job, fire, item) and attempt; attempts are in order, and each after the first has a reason."""
    S3 = "S3"
    """Every item has at most one live owner in the assignment: it is given to nobody who is gone, nor taken from who runs it."""
    S4 = "S4"
    """The assignment is balanced within one; under STICKY, no more items move than have to."""
    S5 = "S5"
    """A leader acts only within its own term."""
    S6 = "S6"
    """Nothing begins before its time, and nothing is made up for after its grace."""
    S7 = "S7"
    """What is disabled never starts."""
    S8 = "S8"
    """A checkpoint never goes back."""
    S9 = "S9"
    """Nothing is marked as running without a live owner for longer than its death takes to be noticed."""
    S10 = "S10"
    """All items of one fire saw the same configuration."""
    L1 = "L1"
    """Every due fire is run or accounted for in time."""
    L2 = "L2"
    """Whatever is run again is a recovery, and its reason is true."""
    L3 = "L3"
    """The sharding converges: all items belong to live workers, there is a leader, and nothing moves any more."""
    L4 = "L4"
    """No node, watch, thread or connection is left over."""
    L5 = "L5"
    """A worker that is told to end does so within its grace."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must hold did not. `where`: the job and what of it."""

    invariant: Invariant
    at: float
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant.value} {time_text(self.at)} {self.where}: {self.text}"


@dataclass(frozen=True, slots=True)
class Limits:
    """What "in time" is, in seconds."""

    session_timeout: float = 4.0
    """How long the death of a worker may stay unnoticed."""
    epsilon: float = 6.0
    """What is allowed beyond that: an election, a hand-over, a repetition."""
    hearing: float = 8.0
    """How late a worker that holds its session may hear of a change."""
    skew: float = 2.05
    """How far clocks may be off."""
    closing: float = 5.5
    """How long after its grace a worker may end."""
    back: float = 0.0
    """How long a worker that is back under its old name may still be taken for gone."""
    calm: float = 12.0
    """For so long before the end nothing moves any more."""

    @property
    def noticed(self) -> float:
        return self.session_timeout + self.epsilon
