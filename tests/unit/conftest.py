from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Path]]:
    """Makes a module that can be imported during the test: `module("shop.jobs", source)`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def make(name: str, source: str) -> Path:
        *packages, last = name.split(".")
        folder = tmp_path
        for package in packages:
            folder /= package
            folder.mkdir(exist_ok=True)
            (folder / "__init__.py").touch()
        path = folder / f"{last}.py"
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        return path

    yield make
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def shop(module: Callable[[str, str], Path]) -> None:
    """Job classes under `shop.jobs`."""
    module(
        "shop.jobs",
        """
        from ejpy.job import ShardedJob

        class Orders(ShardedJob):
            def execute(self, shard_ctx):
                pass

        class Fetch(ShardedJob):
            async def execute(self, shard_ctx):
                pass

            class Inner(ShardedJob):
                def execute(self, shard_ctx):
                    pass

        class Abstract(ShardedJob):
            pass

        class NotAJob:
            def execute(self, shard_ctx):
                pass

        def function(shard_ctx):
            pass
        """,
    )
