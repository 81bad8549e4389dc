"""Fencing in Redis: a script compares the tokens and writes, and the server runs a script as one step.

The token of `KEY` is the value of `ejpy-token:{KEY}:KEY`, without an expiry. The braces put both into one slot of a cluster.

    no token, or an older or equal one ──► token stored ──► commands run     newer ──► StaleAttempt

Guards against a paused attempt at any moment: there is nothing between comparing and writing. What Redis itself can lose, the
guard loses as well: an eviction policy `allkeys-…` may drop tokens, and a fail-over to a replica drops what was not replicated.

`client` is a client of redis-py 5 or later (`pip install 'ejpy[redis]'`), plain or for a cluster, not of `redis.asyncio`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ejpy.fencing.tokens import Writer, refuse, stored_token, token_of

Argument = str | bytes | int | float

_TAKEN, _STALE, _UNREADABLE = 0, 1, 2

# Tokens are compared as text, by length first: Lua's numbers are exact up to 2**53 only. ARGV: the token, then for each
# command the number of its words and the words.
_SCRIPT = f"""
local token = ARGV[1]
local stored = redis.pcall('GET', KEYS[1])
if type(stored) == 'table' then return {{{_UNREADABLE}, stored['err']}} end
if stored then
  if not (stored == '0' or string.find(stored, '^[1-9]%d*$')) or #stored > 19 then
    return {{{_UNREADABLE}, (string.gsub(string.sub(stored, 1, 80), '[^\\32-\\126]', '?'))}}
  end
  if #token < #stored or (#token == #stored and token < stored) then return {{{_STALE}, stored}} end
end
redis.call('SET', KEYS[1], token)
local replies, at = {{}}, 2
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  replies[#replies + 1] = redis.call(unpack(ARGV, at + 1, at + words))
  at = at + 1 + words
end
return {{{_TAKEN}, replies}}
"""


class ScriptingClient(Protocol):
    """What is needed of a client."""

    def register_script(self, script: Any, /) -> Callable[..., Any]: ...


def token_key(key: str) -> str:
    """The key that the token of `key` is stored under, in the same slot of a cluster.

    Raises ValueError if no key can be in the slot of `key` with certainty: braces that are no hash tag.
    """
    _, opened, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    if not (opened and closed and tag):
        tag = key
    if not key or "}" in tag:
        raise ValueError(
            f"{key!r} cannot be guarded: it is empty, or has a brace that is no hash tag; name it like 'report' or '{{report}}:x'"
        )
    return f"ejpy-token:{{{tag}}}:{key}"


def set_value(client: ScriptingClient, key: str, value: Argument, writer: Writer) -> None:
    """SET `key` to `value`, unless a newer attempt was here.

    Raises as `run_fenced`; what was stored stays then.
    """
    run_fenced(client, key, [("SET", key, value)], writer, keys=[key])


def run_fenced(
    client: ScriptingClient, resource: str, commands: Sequence[Sequence[Argument]], writer: Writer, *, keys: Sequence[str]
) -> list[Any]:
    """Run `commands` in their order, as one step, unless a newer attempt was at `resource`; returns what the server replied
    to each.

    A command is its words: `("HSET", "report", "rows", 120)`. `resource` names what is guarded, as a key would, and need not
    be one. `keys` are all keys that the commands touch: in a cluster they must be in the slot of `resource`, which a hash tag
    sees to: `orders{beijing}`. A command that fails ends the run with redis-py's ResponseError; what came before it stays, as
    in every script. All commands together have some thousand words at most.

    Raises StaleAttempt if a newer attempt was here, UnreadableToken if what is stored is no token: no command was run then.
    ValueError for such a token or resource. redis-py's errors pass through; after one that leaves the outcome open, repeat.
    """
    arguments: list[Argument] = [str(token_of(writer))]
    for command in commands:
        arguments += [len(command), *command]
    named = token_key(resource)
    state, detail = client.register_script(_SCRIPT)(keys=[named, *keys], args=arguments)
    if state == _TAKEN:
        replies: list[Any] = detail
        return replies
    text = detail.decode() if isinstance(detail, bytes) else detail
    what = f"Redis key {resource!r}"
    stored = stored_token(text, what, f"SET {named!r} to the token of the newest attempt, or delete it to begin anew")
    raise refuse(what, writer, stored)
