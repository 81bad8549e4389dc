"""Reading a handler's settings from a job's `props`: texts by name, with ElasticJob's names and defaults.

All that is wrong is found at once, one line each, so that a job is refused with the whole list. The value of a setting that
may be secret is never in a line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from ejpy.wording import shown

_WHOLE = re.compile(r"[0-9]{1,9}")


class Settings:
    """Reads settings, and notes in `problems` what is wrong with them. A setting that is missing or empty has its default."""

    def __init__(self, props: Mapping[str, str]) -> None:
        self._props = props
        self.problems: list[str] = []

    def text(self, name: str, default: str = "") -> str:
        return self._props.get(name, "").strip() or default

    def required(self, name: str, what: str) -> str:
        found = self.text(name)
        if not found:
            self.problems.append(f"props: {name}: required; give {what}")
        return found

    def whole(self, name: str, *, default: int | None, least: int, most: int) -> int:
        """A whole number from `least` to `most`; `default` None: required."""
        found = self.text(name)
        if not found and default is not None:
            return default
        if not found:
            self.problems.append(f"props: {name}: required; give a whole number from {least} to {most}")
        elif not _WHOLE.fullmatch(found) or not least <= int(found) <= most:
            self.problems.append(f"props: {name}: {shown(found)} is not allowed; allowed: a whole number from {least} to {most}")
        else:
            return int(found)
        return least

    def flag(self, name: str, *, default: bool) -> bool:
        found = self.text(name).lower()
        if found not in ("", "true", "false"):
            self.problems.append(f"props: {name}: {shown(found)} is not allowed; allowed: true, false")
        return found == "true" if found else default

    def url(self, name: str) -> str:
        """The address of a webhook: its path and query are as good as a password."""
        found = self.required(name, "the address of the webhook")
        if found:
            try:
                parts = urlsplit(found)
                well_formed = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            except ValueError:  # the port is no number, or the host no address
                well_formed = False
            if not well_formed or not found.isascii() or not found.isprintable() or " " in found:
                self.problems.append(f"props: {name}: not an address that begins with https:// or http:// (it is not shown here)")
        return found
