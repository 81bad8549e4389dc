"""`${name}` and `${name:default}` as Spring Boot reads them in an application's YAML.

Unlike in ejpy's own files (`environment`), a name may be a property of the same file (`${spring.application.name}`), stand
for an environment variable in Spring's way (`zk.server-lists`: ZK_SERVERLISTS), and a default may hold placeholders. `\\${` is
a literal `${`. Also unlike Spring, which leaves it as it stands, a name that nothing is known of is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ejpy.config.yaml_tree import MapNode, Scalar, YamlNode
from ejpy.wording import shown

_DEEPEST = 20


def relaxed(key: str) -> str:
    """What Spring compares keys by: `reg-center`, `regCenter` and `REG_CENTER` are one."""
    return key.replace("-", "").replace("_", "").lower()


class Placeholders:
    """Replaces the placeholders in the texts of one file."""

    def __init__(self, root: MapNode, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._properties: dict[str, str] = {}
        for name, text in _flat(root, ""):
            self._properties.setdefault(name, text)

    def expand(self, text: str) -> str:
        """`text` with all placeholders replaced. Raises ValueError for one that cannot be."""
        return self._expand(text, 0)

    def _expand(self, text: str, depth: int) -> str:
        if depth > _DEEPEST:
            raise ValueError(f"{shown(text)}: placeholders within placeholders without an end")
        done = ""
        while (start := text.find("${")) >= 0:
            if text[:start].endswith("\\"):
                done, text = done + text[: start - 1] + "${", text[start + 2 :]
                continue
            end = _end(text, start + 2)
            if end is None:
                raise ValueError(f"{shown(text[start:])} has no end: a '}}' is missing; write \\${{ for a literal ${{")
            done += text[:start] + self._value(text[start + 2 : end], depth + 1)
            text = text[end + 1 :]
        return done + text

    def _value(self, body: str, depth: int) -> str:
        name, colon, default = self._split(body, depth)
        as_variable = name.replace(".", "_").replace("-", "").upper()
        for variable in (name, as_variable):
            if variable in self._environ:
                return self._environ[variable]
        found = self._properties.get(relaxed(name))
        if found is not None:
            return self._expand(found, depth)
        if colon:
            return self._expand(default, depth)
        raise ValueError(
            f"{shown(name)} is neither in the environment (as {as_variable}) nor a property of this file; set it, or give a "
            f"default: ${{{name}:default}}"
        )

    def _split(self, body: str, depth: int) -> tuple[str, str, str]:
        """Name, colon and default. A placeholder may stand in the name; a colon within it is its own."""
        start = body.find("${")
        colon = body.find(":")
        if start >= 0 and (colon < 0 or start < colon):
            body = self._expand(body, depth)
        return body.partition(":")


def _end(text: str, start: int) -> int | None:
    """Where the brace is that ends what begins before `start`; braces within count, as in Spring."""
    depth = 0
    for place in range(start, len(text)):
        if text[place] == "{":
            depth += 1
        elif text[place] == "}":
            if depth == 0:
                return place
            depth -= 1
    return None


def _flat(node: YamlNode, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, Scalar) and name:
        yield name, "" if node.is_null else node.text
    elif isinstance(node, MapNode):
        for key, value in node.entries:
            if isinstance(key, Scalar):
                yield from _flat(value, f"{name}.{relaxed(key.text)}" if name else relaxed(key.text))
