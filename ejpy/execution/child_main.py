"""The child process of the `process` executor: loads job classes and runs one body at a time.

The body runs in the main thread, so that SIGTERM can interrupt it; a second thread reads what the worker says. Nothing here
decides anything: the worker says when to enter, when to stop, and kills what does not listen.

A child must not outlive its worker, and neither may the processes that bodies started: the items run elsewhere by then. A
worker that dies by `kill -9` can say nothing, so the child sees to it in three ways, each of which ends its whole process group:

* the connection ends: the reading thread sees it, on every system;
* Linux signals the group when the other end of the *lifeline*, a pipe that nobody writes to, is closed; this reaches also a
  child whose body holds Python's lock in foreign code;
* Linux sends SIGTERM when the thread that started the child ends (PR_SET_PDEATHSIG); this works also when a process that
  the worker forked holds copies of both descriptors.
"""

from __future__ import annotations

import contextvars
import ctypes
import fcntl
import itertools
import json
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from types import FrameType
from typing import Any

from ejpy.attempt import Attempt
from ejpy.cancellation import Cancellation
from ejpy.errors import ConfigError
from ejpy.execution.body import BodyEnd, How, Interrupted, run_body
from ejpy.execution.instances import JobInstances
from ejpy.execution.wire import Message, attempt_from_wire, encode, error_from_wire, received
from ejpy.job import ShardContext, ShardedJob
from ejpy.logs import ContextFields, fields_of, plain

_PR_SET_PDEATHSIG = 1


def main(arguments: str) -> None:
    """Serve the worker until it says exit. `arguments` is JSON: the descriptors `connection` and `lifeline`, the pid of the
    `parent`, and `levels`, its log levels by logger name."""
    given = json.loads(arguments)
    del sys.argv[1:]  # what a body sees there is nothing of its business
    for descriptor in (given["connection"], given["lifeline"]):
        os.set_inheritable(descriptor, False)  # a process that a body starts must not hold them open
    child = Child(socket.socket(fileno=given["connection"]), given["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which will say what to do
    signal.signal(signal.SIGTERM, child.on_sigterm)
    die_with_parent(given["lifeline"], given["parent"])
    for name, level in given["levels"].items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger().addHandler(ForwardingHandler(child.send))
    child.serve()


def die_with_parent(lifeline: int, parent: int) -> None:
    """Have the kernel end this process group when the worker dies. Linux only; elsewhere the connection's end does it."""
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before all that
        end_group()


def end_group() -> None:
    """Kill this process and all that its bodies have started."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


class ForwardingHandler(logging.Handler):
    """Sends every record to the worker, which logs it as its own, with the fields of the body that runs."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        super().__init__()
        self._send_message = send
        self.addFilter(ContextFields())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            trace = record.exc_text or (_EXCEPTIONS.formatException(record.exc_info) if record.exc_info else None)
            self._send_message(
                {
                    "type": "log",
                    "record": {
                        "name": record.name,
                        "levelno": record.levelno,
                        "levelname": record.levelname,
                        "msg": record.getMessage(),
                        "created": record.created,
                        "msecs": record.msecs,
                        "pathname": record.pathname,
                        "filename": record.filename,
                        "module": record.module,
                        "lineno": record.lineno,
                        "funcName": record.funcName,
                        "process": record.process,
                        "threadName": record.threadName,
                        "exc_text": trace,
                        "stack_info": record.stack_info,
                    },
                    "fields": {name: plain(value) for name, value in fields_of(record).items()},
                }
            )
        except Exception:  # noqa: BLE001 - as every handler of the standard library does: a log call does not raise
            self.handleError(record)


_EXCEPTIONS = logging.Formatter()


class Child:
    """The child's side of the connection."""

    def __init__(self, connection: socket.socket, parent: int) -> None:
        self._connection = connection
        self._parent = parent
        self._sending = threading.Lock()
        self._orders: SimpleQueue[Message] = SimpleQueue()
        """run, go, skip, exit: for the main thread."""
        self._instances = JobInstances()
        self._cancellations: dict[int, Cancellation] = {}
        self._hand_offs: dict[int, Cancellation] = {}
        self._saving: dict[int, Future[None]] = {}
        self._numbers = itertools.count(1)
        self._in_body: Cancellation | None = None

    # -- the main thread --

    def serve(self) -> None:
        threading.Thread(target=self._read, name="ejpy-connection", daemon=True).start()
        while (order := self._orders.get())["type"] != "exit":
            number = order["run"]
            self._run(number, attempt_from_wire(order["attempt"]), self._cancellations[number])
            del self._cancellations[number], self._hand_offs[number]

    def _run(self, number: int, attempt: Attempt, cancellation: Cancellation) -> None:
        try:
            if attempt.job_class.startswith("__main__:"):
                raise ConfigError([f"job class {attempt.job_class}: a child process cannot import it; put it into a module"])
            loaded = self._instances.of(attempt)
        except BaseException as error:  # noqa: BLE001 - whatever a user's module or constructor raises; the body raises it
            job = _raising(error)
        else:
            job = _returning(loaded)
        self.send({"type": "ready", "run": number})
        if self._orders.get()["type"] == "go":
            end = self._body(number, attempt, cancellation, job)
            self.send({"type": "ended", "run": number, "how": end.how.value, "error": end.error, "trace": end.trace})

    def _body(self, number: int, attempt: Attempt, cancellation: Cancellation, job: Callable[[], ShardedJob]) -> BodyEnd:
        context = ShardContext(attempt, cancellation, lambda value: self._save(number, value), self._hand_offs[number])
        self._in_body = cancellation
        try:
            return contextvars.copy_context().run(run_body, attempt, context, cancellation, job)
        except Interrupted:  # a moment too late for the body
            return BodyEnd(How.STOPPED)
        finally:
            self._in_body = None

    def on_sigterm(self, signal_number: int, frame: FrameType | None) -> None:
        """The worker interrupts a body that does not stop; or it is gone; or somebody else sent this."""
        if os.getppid() != self._parent:
            end_group()
        if self._in_body is None:
            raise SystemExit(128 + signal_number)
        if self._in_body.is_set:
            raise Interrupted("SIGTERM")
        raise KeyboardInterrupt("the child process was sent SIGTERM, and not by ejpy")

    # -- any thread --

    def send(self, message: Message) -> None:
        data = encode(message)
        with self._sending:
            self._connection.sendall(data)

    def _save(self, run: int, value: Any) -> Future[None]:
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        number = next(self._numbers)
        self._saving[number] = future
        self.send({"type": "save", "run": run, "save": number, "value": value})
        return future

    # -- the reading thread --

    def _read(self) -> None:
        try:
            for message in received(self._connection):
                self._take(message)
        except BaseException:  # noqa: BLE001 - without this thread the child is deaf
            traceback.print_exc()
        end_group()

    def _take(self, message: Message) -> None:
        kind = message["type"]
        if kind in ("stop", "hand_off"):
            flags = self._cancellations if kind == "stop" else self._hand_offs
            flag = flags.get(message["run"])
            if flag is not None:
                flag.set()
        elif kind == "saved":
            future = self._saving.pop(message["save"])
            if message["error"] is None:
                future.set_result(None)
            else:
                future.set_exception(error_from_wire(message["error"]))
        else:
            if kind == "run":
                self._cancellations[message["run"]] = Cancellation()
                self._hand_offs[message["run"]] = Cancellation()
            self._orders.put(message)


def _returning(job: ShardedJob) -> Callable[[], ShardedJob]:
    return lambda: job


def _raising(error: BaseException) -> Callable[[], ShardedJob]:
    def job() -> ShardedJob:
        raise error

    return job
