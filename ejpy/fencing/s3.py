"""Fencing in an object store with S3's conditional put: the object remembers the token of its writer in its metadata.

    no object ──put if there is none (If-None-Match: *)──► stored
    object, token ≤ mine ──put if it is still that one (If-Match: its ETag)──► stored
    object, token > mine ──► StaleAttempt          put refused: somebody was faster ──► look again

Guards against a paused attempt that wakes between looking and putting: the ETag has changed, the store refuses, and the second
look finds the newer token.

S3's ETag is a hash of the content, and neither metadata nor time is in it: had the newer attempt stored the very bytes that
the paused one saw, the ETag would be the same, and the paused one would be let in. So the content must tell the token:
`put_object` wants its decimal digits in the body, and refuses one without. A field of a JSON document, a comment line of a
text, a property of a Parquet file will do. Where the format has no room: put the data under a key of its own that has the
token in it, which needs no guard, and then, guarded, a small document that names this key.

`client` is an S3 client of boto3 1.35.70 or later (`pip install 'ejpy[s3]'`). The store must honour both conditions on a put,
as AWS S3 does since 2024; one that ignores them guards nothing: `check_conditions` tells.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from ejpy.errors import EjpyError
from ejpy.fencing.tokens import Writer, refuse, stored_token, token_of

METADATA_KEY = "ejpy-fencing-token"
"""The object's own metadata that has the token (`x-amz-meta-ejpy-fencing-token`)."""

LOOKS = 20
"""How often a put that others overtake is tried before its error is raised."""

# PreconditionFailed: another object is there than was seen; ConditionalRequestConflict: another put was under way at the same
# moment; NoSuchKey: the object that was seen has been deleted.
_OVERTAKEN = {"PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey"}


class S3Client(Protocol):
    """What is needed of a client."""

    @property
    def exceptions(self) -> Any: ...

    @property
    def head_object(self) -> Any: ...

    @property
    def put_object(self) -> Any: ...


def put_object(
    client: S3Client, bucket: str, key: str, body: bytes, writer: Writer, *, arguments: Mapping[str, Any] | None = None
) -> None:
    """Store `body` as the object `key`, unless a newer attempt has stored it.

    `body` must have the token's decimal digits in it (see the module's text). `arguments` are further ones of boto3's
    `put_object`, such as `ContentType`; its `Metadata` is added to. Deleting the object deletes the token as well.

    Raises StaleAttempt if a newer attempt was here; UnreadableToken if the object carries no token, or what is none;
    ValueError for such a token or body. The object is as it was then. boto3's ClientError passes through, and so does, after
    20 looks, that of a put that others overtook each time. After an error that leaves the outcome open, repeat.
    """
    token = token_of(writer)
    if not re.search(rb"(?<![0-9])%d(?![0-9])" % token, body):
        raise ValueError(f"the body for {key!r} does not have its token {token} in it; the store cannot tell equal bytes apart")
    given = dict(arguments or {})
    given["Metadata"] = {**given.get("Metadata", {}), METADATA_KEY: str(token)}
    for look in range(1, LOOKS + 1):
        condition = _condition(client, bucket, key, writer)
        try:
            client.put_object(**given, Bucket=bucket, Key=key, Body=body, **condition)
        except client.exceptions.ClientError as error:
            if look == LOOKS or _code(error) not in _OVERTAKEN:
                raise
        else:
            return


def check_conditions(client: S3Client, bucket: str, key: str) -> None:
    """Raise EjpyError if the store ignores the conditions of a put.

    Stores a small object at `key`, whatever is there; it may be deleted afterwards. boto3's ClientError passes through.
    """
    client.put_object(Bucket=bucket, Key=key, Body=b"ejpy: does the store honour conditions?")
    for condition in ({"IfNoneMatch": "*"}, {"IfMatch": '"00000000000000000000000000000000"'}):
        try:
            client.put_object(Bucket=bucket, Key=key, Body=b"ejpy: it does not", **condition)
        except client.exceptions.ClientError as error:
            if _code(error) != "PreconditionFailed":
                raise
        else:
            raise EjpyError(
                f"bucket {bucket!r}: the store ignores {next(iter(condition))} of a put; nothing can be guarded there"
            )


def _condition(client: S3Client, bucket: str, key: str, writer: Writer) -> dict[str, str]:
    """The condition under which the writer may put, by what is there now. Raises StaleAttempt if it may not."""
    try:
        seen = client.head_object(Bucket=bucket, Key=key)
    except client.exceptions.ClientError as error:
        if _code(error) != "404":  # a HEAD has no body that could tell more
            raise
        return {"IfNoneMatch": "*"}
    what = f"object {key!r} in bucket {bucket!r}"
    remedy = f"Store it anew with the metadata {METADATA_KEY}=0, or delete it to begin anew"
    stored = stored_token(seen["Metadata"].get(METADATA_KEY), what, remedy)
    if stored > token_of(writer):
        raise refuse(what, writer, stored)
    return {"IfMatch": seen["ETag"]}


def _code(error: Any) -> str:
    return str(error.response["Error"]["Code"])
