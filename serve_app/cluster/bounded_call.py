"""A blocking call with a limited wait, after which the last answer is used.

Calls to Ray's GCS and to the Serve controller may never return, because those processes may be stopped. In
the event loop's pool each such call would occupy a thread for ever.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

logger = logging.getLogger("ray.serve")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The value that a call returned, and the time at which the call began."""

    value: T
    asked_at: float


@dataclass(slots=True, eq=False)
class BoundedCall(Generic[T]):
    """Makes one call at a time, in a thread of its own, for all callers of `get`."""

    name: str
    """Subject of the call, for the thread and the log."""
    call: Callable[[], T]
    """The call. An error is logged once, and the last answer stays."""
    fresh_s: float
    """An answer no older than this is returned without another call."""
    clock: Callable[[], float] = time.monotonic
    """The time in seconds."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _running: tuple[float, Future[None]] | None = field(default=None, init=False)
    _failure: str = field(default="", init=False)
    last: Answer[T] | None = field(default=None, init=False)
    """The newest answer, however old; None before the first."""

    def age_s(self) -> float | None:
        """Return the seconds since the call of the newest answer began; None before the first."""
        last = self.last
        return None if last is None else max(0.0, self.clock() - last.asked_at)

    async def get(self, wait_s: float, since: float | None = None) -> Answer[T] | None:
        """Return the answer to a call that began at or after `since`, or by default a fresh one.

        If it takes longer than `wait_s` seconds, the last answer is returned. A call that has been running
        for longer than that is not waited for at all.
        """
        deadline = self.clock() + wait_s
        while self.last is None or self.last.asked_at < (
            self.clock() - self.fresh_s if since is None else since
        ):
            began, done = self._begin()
            left_s = min(deadline, began + wait_s) - self.clock()
            if left_s <= 0.0:
                break
            await asyncio.wait((asyncio.wrap_future(done),), timeout=left_s)
            if not done.done() or since is None or began >= since:
                break  # it takes too long, or it has failed
        return self.last

    def _begin(self) -> tuple[float, Future[None]]:
        """Return when the running call, or a new one, began, and a future that is done when it ends."""
        with self._lock:
            if self._running is None:
                self._running = (self.clock(), Future())
                # A daemon: a call that never returns must not keep the process from ending.
                threading.Thread(target=self._run, args=self._running, name=self.name, daemon=True).start()
            return self._running

    def _run(self, began: float, done: Future[None]) -> None:
        try:
            self.last = Answer(self.call(), began)
            self._failure = ""
        except Exception as error:  # callers get the last answer
            text = f"{type(error).__name__}: {error}"
            if text != self._failure:
                logger.warning("%s: failed: %s", self.name, text)
            self._failure = text
        finally:
            with self._lock:
                self._running = None
            done.set_result(None)
