"""How a failure is worded to people: a subject, and a text of a few lines that a chat or a mail can show."""

from __future__ import annotations

from ejpy.error_handlers.base import JobFailure
from ejpy.wording import one_line


def subject_of(failure: JobFailure) -> str:
    """One line: job, item, error."""
    item = "" if failure.sharding_item is None else f", item {failure.sharding_item}"
    return one_line(f"Job '{failure.job_name}'{item} failed: {failure.error}")


def text_of(failure: JobFailure) -> str:
    """All that is known, the most important first, since services cut long messages at the end."""
    attempt = "" if failure.attempt is None else f"attempt {failure.attempt}, "
    lines = [
        subject_of(failure),
        f"scheduled: {failure.scheduled_time.isoformat()} ({attempt}{failure.reason.value})",
        f"failed: {failure.failed_at.isoformat()} on {one_line(failure.instance_id)}",
    ]
    if failure.idempotency_key is not None:
        lines.append(f"key: {one_line(failure.idempotency_key)}, token {failure.fencing_token}")
    if failure.suppressed:
        lines.append(f"{failure.suppressed} more with the same error since the last message")
    if failure.traceback:
        lines += ["", failure.traceback.rstrip()]
    return "\n".join(lines)


def cut(text: str, most_bytes: int) -> str:
    """`text`, if it has at most so many bytes in UTF-8, or its beginning, with a mark."""
    data = text.encode("utf-8", "replace")
    if len(data) <= most_bytes:
        return data.decode()
    return data[: most_bytes - len("…".encode())].decode("utf-8", "ignore") + "…"
