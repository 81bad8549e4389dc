"""From `module:Class` in a configuration to the class that it names.

Importing runs the user's code, which may fail in any way; every way ends as one line that says what is missing or what
was raised where, so that a misspelled class is found when the file is loaded and not at the first fire. Where modules are
looked for is the caller's matter (`sys.path`).
"""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Callable
from types import ModuleType

from ejpy.config.kinds import CLASS_OF_TYPE, known_type
from ejpy.errors import ConfigError
from ejpy.job import ShardedJob
from ejpy.terms import Executor
from ejpy.wording import closest, one_line, shown

LONGEST_MESSAGE = 300


def load_class(spec: str) -> type[ShardedJob]:
    """The class that `spec` (`module:Class`, `package.module:Outer.Inner`, or a type: `SCRIPT`, `HTTP`) names, importing its
    module.

    Raises ConfigError with one problem: bad form, module not found, import failed, no such attribute (with a close name),
    not a concrete subclass of ShardedJob, an `execute` that cannot be called with a context alone or would run nothing, a
    constructor that needs arguments.
    """
    known = known_type(spec)
    module_name, colon, path = (CLASS_OF_TYPE[known] if known else spec).partition(":")
    if not colon or not _is_dotted_name(module_name) or not _is_dotted_name(path):
        head, dot, tail = spec.rpartition(".")
        hint = f"; did you mean {head}:{tail}?" if dot and _is_dotted_name(spec) else ""
        raise _refusal(f"{shown(spec)} is not of the form module:Class{hint}")
    owner: object = _import(module_name)
    where = f"module {module_name}"
    for name in path.split("."):
        if not hasattr(owner, name):
            near = closest(name, [other for other in dir(owner) if inspect.isclass(getattr(owner, other, None))])
            raise _refusal(f"{where} has no class {name}" + (f"; did you mean {near}?" if near else ""))
        owner = getattr(owner, name)
        where = f"{name} in {where}"
    if not inspect.isclass(owner):
        raise _refusal(f"{spec} is a {type(owner).__name__}, not a class; a job is a subclass of ShardedJob")
    if not issubclass(owner, ShardedJob):
        raise _refusal(f"{spec} is not a subclass of ShardedJob")
    if inspect.isabstract(owner):
        missing = ", ".join(sorted(owner.__abstractmethods__))
        raise _refusal(f"{spec} is abstract; it must define {missing}")
    _check_execute(spec, owner)
    _check_constructor(spec, owner)
    return owner


def executor_for(job_class: type[ShardedJob], configured: Executor | None) -> Executor:
    """Where the bodies of a job run: as configured, or asyncio for `async def execute` and a thread otherwise.

    Raises ConfigError if the configured executor cannot run this kind of `execute`.
    """
    asynchronous = inspect.iscoroutinefunction(job_class.execute)
    if configured is None:
        return Executor.ASYNCIO if asynchronous else Executor.THREAD
    if asynchronous != (configured is Executor.ASYNCIO):
        defined, allowed = ("async def", "asyncio") if asynchronous else ("def", "thread, process")
        name = job_class.__qualname__
        raise _refusal(f"{configured.value} cannot run {name}: its execute is defined with {defined}; allowed: {allowed}")
    return configured


def _check_execute(spec: str, job_class: type[ShardedJob]) -> None:
    """Refuse an `execute` that would fail, or do nothing, at every fire."""
    found = inspect.getattr_static(job_class, "execute")
    function = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
    is_descriptor = hasattr(type(function), "__get__")
    if not callable(function) and not is_descriptor:
        raise _refusal(f"{spec}: execute is a {type(function).__name__}, not a method")
    if is_descriptor and not inspect.isfunction(function):
        return  # what somebody else's descriptor gives is known when an instance asks it
    place = _place(function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise _refusal(f"{spec}: execute is a generator, so that calling it runs nothing; remove the yield{place}")
    bound = isinstance(found, classmethod) or inspect.isfunction(found)
    if error := _cannot_be_called(function, 2 if bound else 1):
        raise _refusal(f"{spec}: execute is called with the context alone: {error}; define execute(self, shard_ctx){place}")


def _check_constructor(spec: str, job_class: type[ShardedJob]) -> None:
    if error := _cannot_be_called(job_class, 0):
        place = _place(inspect.getattr_static(job_class, "__init__")) or _place(inspect.getattr_static(job_class, "__new__"))
        raise _refusal(f"{spec}: the constructor is called without arguments: {error}; give it defaults{place}")


def _cannot_be_called(function: Callable[..., object], arguments: int) -> str | None:
    """Why a call with so many positional arguments fails; None if it does not, or nobody can tell beforehand.

    A decorator's own signature counts, not that of what it wraps: it may well supply the rest.
    """
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*[None] * arguments)
    except TypeError as error:
        return str(error)
    return None


def _place(function: object) -> str:
    """` (file:line)` of a function that was written in a file."""
    function = function.__func__ if isinstance(function, staticmethod) else function
    code = getattr(function, "__code__", None)
    return f" ({code.co_filename}:{code.co_firstlineno})" if code is not None and not code.co_filename.startswith("<") else ""


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            part = "" if error.name == name else f" (of {name})"
            raise _refusal(f"there is no module {error.name}{part} on Python's path") from error
        raise _import_failed(name, error) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error


def _import_failed(name: str, error: BaseException) -> ConfigError:
    if isinstance(error, SyntaxError):
        text, place = f"{type(error).__name__}: {error.msg}", f" ({error.filename}:{error.lineno})"
    else:
        # Safe even if the exception's own __str__ raises.
        text = traceback.format_exception_only(error)[0].strip()
        # The import machinery's own frames tell nothing.
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_machinery(frame.filename)]
        place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return _refusal(f"importing {name} raised {one_line(text)[:LONGEST_MESSAGE]}{place}")


def _is_machinery(file_name: str) -> bool:
    return file_name in (__file__, importlib.__file__) or file_name.startswith("<frozen importlib")


def _is_dotted_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _refusal(message: str) -> ConfigError:
    return ConfigError([one_line(message)])
