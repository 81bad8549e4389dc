"""`${NAME}` and `${NAME:default}` in the values of a configuration file.

So that secrets and what differs between machines stay outside the file. `$${` stands for a literal `${`. A variable's
text is taken as it is: it is not expanded again, and can never turn into YAML structure, since the file was parsed before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ejpy.wording import shown

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<body>[^}]*)\}|\$\{")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def expand(text: str, environ: Mapping[str, str]) -> str:
    """`text` with all references replaced.

    Raises ValueError for a variable that is not set and has no default, and for a `${` that is no reference. A variable
    that is set to nothing counts as set.
    """

    def value(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        body = match["body"]
        name, colon, default = (body or "").partition(":")
        if body is None or not _NAME.fullmatch(name):
            raise ValueError(f"{shown(match[0])} is not ${{NAME}} or ${{NAME:default}}; write $${{ for a literal ${{")
        if name in environ:
            return environ[name]
        if colon:
            return default
        raise ValueError(f"the environment variable {name} is not set; set it, or give a default: ${{{name}:default}}")

    return _REFERENCE.sub(value, text)
