"""From `module:Class` in a configuration to the class that it names.

Importing runs the user's code, which may fail in any way; every way ends as one line that says what is missing or what
was raised where, so that a misspelled class is found when the file is loaded and not at the first fire. Where modules are
looked for is the caller's matter (`sys.path`).
"""

from __future__ import annotations

import importlib
import inspect
import traceback
from types import ModuleType

from ejpy.errors import ConfigError
from ejpy.job import ShardedJob
from ejpy.terms import Executor
from ejpy.wording import closest, one_line, shown

LONGEST_MESSAGE = 300


def load_class(spec: str) -> type[ShardedJob]:
    """The class that `spec` (`module:Class`, `package.module:Outer.Inner`) names, importing its module.

    Raises ConfigError with one problem: bad form, module not found, import failed, no such attribute (with a close name),
    not a concrete subclass of ShardedJob.
    """
    module_name, colon, path = spec.partition(":")
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
