from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ejpy.config.classes import executor_for, load_class
from ejpy.errors import ConfigError
from ejpy.job import ShardContext, ShardedJob
from ejpy.terms import Executor

Module = Callable[[str, str], Path]


def refusal(spec: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_class(spec)
    [problem] = caught.value.problems
    assert problem.isprintable()
    return problem


@pytest.mark.usefixtures("shop")
def test_a_class_is_imported() -> None:
    orders = load_class("shop.jobs:Orders")
    assert issubclass(orders, ShardedJob)
    assert orders.__name__ == "Orders"
    assert load_class("shop.jobs:Fetch.Inner").__qualname__ == "Fetch.Inner"


@pytest.mark.parametrize(
    "spec", ["", ":", "shop", "shop.jobs:", ":Orders", "shop/jobs.py:Orders", "shop.jobs:Orders()", "a:b:c", "a b:C"]
)
def test_a_bad_form_is_refused(spec: str) -> None:
    assert refusal(spec) == f"'{spec}' is not of the form module:Class"


def test_a_dot_for_the_colon_is_a_known_mistake() -> None:
    assert refusal("shop.jobs.Orders") == "'shop.jobs.Orders' is not of the form module:Class; did you mean shop.jobs:Orders?"


def test_a_module_that_is_missing_is_named(module: Module) -> None:
    module("shop.jobs", "")
    assert refusal("nowhere:Job") == "there is no module nowhere on Python's path"
    assert refusal("nowhere.jobs:Job") == "there is no module nowhere (of nowhere.jobs) on Python's path"
    assert refusal("shop.job:Job") == "there is no module shop.job on Python's path"
    assert refusal("shop.jobs.more:Job") == "there is no module shop.jobs.more on Python's path"


def test_a_module_that_imports_a_missing_one_is_not_missing_itself(module: Module) -> None:
    path = module("importer", "\nimport nowhere_at_all\n")
    assert refusal("importer:Job") == (
        f"importing importer raised ModuleNotFoundError: No module named 'nowhere_at_all' ({path}:2)"
    )


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("\n\nraise ValueError('two\\nlines')", "ValueError: two\\nlines ({path}:3)"),
        ("import sys\nsys.exit(3)", "SystemExit: 3 ({path}:2)"),
        ("def f():\n    1 / 0\nf()", "ZeroDivisionError: division by zero ({path}:2)"),
        (
            "class E(Exception):\n    def __str__(self):\n        raise OSError\nraise E",
            "importing broken raised broken.E: <exception str() failed> ({path}:4)",
        ),
    ],
)
def test_a_module_that_raises_is_told_with_the_place(module: Module, source: str, said: str) -> None:
    path = module("broken", source)
    assert refusal("broken:Job").endswith(said.format(path=path))


def test_a_module_with_a_syntax_error_is_told_with_the_place(module: Module) -> None:
    path = module("broken", "x = 1\ndef f(:\n")
    problem = refusal("broken:Job")
    assert problem.startswith("importing broken raised SyntaxError: ")
    assert problem.endswith(f"({path}:2)")


def test_a_long_message_is_cut(module: Module) -> None:
    module("broken", "raise ValueError('x' * 100_000)")
    assert len(refusal("broken:Job")) < 1000


def test_an_interrupt_during_the_import_is_not_a_problem_of_the_file(module: Module) -> None:
    module("broken", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_class("broken:Job")


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("shop.jobs:Ordres", "module shop.jobs has no class Ordres; did you mean Orders?"),
        ("shop.jobs:Zzz", "module shop.jobs has no class Zzz"),
        ("shop.jobs:Fetch.Iner", "Fetch in module shop.jobs has no class Iner; did you mean Inner?"),
        ("shop.jobs:function", "shop.jobs:function is a function, not a class; a job is a subclass of ShardedJob"),
        ("shop.jobs:NotAJob", "shop.jobs:NotAJob is not a subclass of ShardedJob"),
        ("shop.jobs:Abstract", "shop.jobs:Abstract is abstract; it must define execute"),
        ("shop.jobs:ShardedJob", "shop.jobs:ShardedJob is abstract; it must define execute"),
    ],
)
def test_what_is_no_job_is_refused(spec: str, said: str) -> None:
    assert refusal(spec) == said


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("    def execute(self):", "execute is called with the context alone: too many positional arguments"),
        ("    def execute(self, a, b):", "execute is called with the context alone: missing a required argument: 'b'"),
        ("    async def execute(self, a, b):", "execute is called with the context alone: missing a required argument: 'b'"),
        ("    def execute(self, a, *, b):", "execute is called with the context alone: missing a required .*argument: 'b'"),
        ("    @staticmethod\n    def execute():", "execute is called with the context alone: too many positional arguments"),
        ("    @classmethod\n    def execute(cls):", "execute is called with the context alone: too many positional arguments"),
        ("    def execute(self, a): yield", "execute is a generator, so that calling it runs nothing; remove the yield"),
        ("    async def execute(self, a): yield", "execute is a generator, so that calling it runs nothing; remove the yield"),
        ("    def __init__(self, x): pass", "the constructor is called without arguments: missing a required argument: 'x'"),
        ("    def __new__(cls, x): pass", "the constructor is called without arguments: missing a required argument: 'x'"),
    ],
)
def test_what_could_not_be_called_is_refused_with_the_place(module: Module, lines: str, said: str) -> None:
    """Mistakes that every fire would otherwise make anew."""
    execute = "" if "execute" in lines else "    def execute(self, a): pass\n"
    body = lines if lines.endswith(("pass", "yield")) else f"{lines} pass"
    path = module("called", f"from ejpy import ShardedJob\nclass Job(ShardedJob):\n{body}\n{execute}")
    problem = refusal("called:Job")
    assert re.match(f"called:Job: {said}", problem), problem
    assert problem.endswith(f" ({path}:3)")


@pytest.mark.parametrize("value", ["None", "'text'", "3"])
def test_an_execute_that_is_no_method_is_refused(module: Module, value: str) -> None:
    module("called", f"from ejpy import ShardedJob\nclass Job(ShardedJob):\n    execute = {value}\n")
    assert re.fullmatch("called:Job: execute is a (NoneType|str|int), not a method", refusal("called:Job"))


@pytest.mark.parametrize(
    "lines",
    [
        "    def execute(self, anything, /): pass",
        "    def execute(self, a, b=None, *c, d=1, **e): pass",
        "    def execute(*args): pass",
        "    @staticmethod\n    def execute(a): pass",
        "    @classmethod\n    def execute(cls, a): pass",
        "    @supplying\n    def execute(self, a, session): pass",
        "    execute = functools.partialmethod(lambda self, b, a: None, 1)",
        "    execute = print",
        "    def __init__(self, x=1, *y, **z): pass\n    def execute(self, a): pass",
        "    execute = Descriptor()",
    ],
)
def test_whatever_can_be_called_with_a_context_is_accepted(module: Module, lines: str) -> None:
    """A decorator may supply what the function that it wraps needs, and a descriptor is its author's own."""
    module(
        "called",
        f"""\
import functools
from ejpy import ShardedJob

def supplying(function):
    @functools.wraps(function)
    def with_session(*args):
        return function(*args, "session")
    return with_session

class Descriptor:
    def __get__(self, instance, owner):
        return lambda a: None
    def __call__(self, instance, a):
        pass

class Job(ShardedJob):
{lines}
""",
    )
    job = load_class("called:Job")()
    assert job.execute(ShardContext.for_test()) is None


@pytest.mark.usefixtures("shop")
def test_the_executor_follows_the_kind_of_execute() -> None:
    plain, asynchronous = load_class("shop.jobs:Orders"), load_class("shop.jobs:Fetch")
    assert executor_for(plain, None) is Executor.THREAD
    assert executor_for(asynchronous, None) is Executor.ASYNCIO
    assert executor_for(plain, Executor.PROCESS) is Executor.PROCESS
    assert executor_for(plain, Executor.THREAD) is Executor.THREAD
    assert executor_for(asynchronous, Executor.ASYNCIO) is Executor.ASYNCIO
    with pytest.raises(ConfigError, match="asyncio cannot run Orders: its execute is defined with def; allowed: thread, process"):
        executor_for(plain, Executor.ASYNCIO)
    for executor in (Executor.THREAD, Executor.PROCESS):
        with pytest.raises(ConfigError, match=f"{executor.value} cannot run Fetch: .* with async def; allowed: asyncio"):
            executor_for(asynchronous, executor)
