"""docs/kinds-of-job.md tells what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ejpy.jobs import dataflow, http, script
from ejpy.jobs.context import sharding_context_json
from ejpy.jobs.output import LINE_CHARACTERS, TAIL_LINES
from tests.unit.jobs.contexts import KindContextForTest

PAGE = (Path(__file__).parents[3] / "docs" / "kinds-of-job.md").read_text(encoding="utf-8")
NAMES = [dataflow.STREAMING, script.COMMAND_LINE, script.SHELL, http.URI, http.URL, http.METHOD, http.DATA, http.CONTENT_TYPE]


@pytest.mark.parametrize("name", [*NAMES, http.CONNECT_TIMEOUT, http.READ_TIMEOUT])
def test_every_prop_is_on_the_page(name: str) -> None:
    assert name in PAGE


def test_the_example_of_a_dataflow_job_can_be_defined() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(program, "docs/kinds-of-job.md", "exec"), names)
    assert issubclass(names["CloseOrders"], dataflow.DataflowJob)  # type: ignore[arg-type]  # the page says that it is a class


def test_the_json_is_what_a_script_gets() -> None:
    (shown,) = re.findall(r"```json\n(.*?)\n```", PAGE, re.DOTALL)
    assert shown == sharding_context_json(KindContextForTest(sharding_parameter="north"), ascii_only=False)


def test_the_limits_are_those_of_the_code() -> None:
    assert f"lines over {LINE_CHARACTERS:,}" in PAGE
    assert f"the last {TAIL_LINES} lines" in PAGE
    assert f"SIGKILL to all of it {script.ScriptJob.grace_seconds:g} seconds later" in PAGE
    assert f"up to {http.MOST_REDIRECTIONS} times" in PAGE
    assert f"longer than {http.ANSWER_BYTES // 1024**2} MiB" in PAGE
    assert ", ".join(http.METHODS) in PAGE
