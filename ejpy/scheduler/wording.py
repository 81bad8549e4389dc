"""Short words for what log lines tell of."""

from __future__ import annotations

from collections.abc import Iterable

ONE_OFF = "one-off: runs only when it is triggered"
"""Of a job without a schedule."""


def item_ranges(numbers: Iterable[int]) -> str:
    """`0-3, 7`; `none`."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges) or "none"
