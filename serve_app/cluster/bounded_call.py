"""A blocking call whose answer is waited for only so long: after that, the last answer has to do.

Calls of Ray's GCS and of the Serve controller may never return: the process may have been stopped. In the
event loop's own pool of threads each of them would occupy a thread for ever, until none is left.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

logger = logging.getLogger("ray.serve")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What a call returned."""

    value: T
    asked_at: float
    """When the call began, by the clock of its `BoundedCall`."""


class BoundedCall(Generic[T]):
    """Makes one call at a time, in a thread of its own, for all who ask meanwhile.

    Args:
        name: What is read or written, for the thread and the log.
        call: The call. What it raises is logged once, and the last answer stays.
        fresh_s: An answer no older than this is given without another call.
        clock: Seconds.
    """

    def __init__(
        self, name: str, call: Callable[[], T], fresh_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._call = call
        self._fresh_s = fresh_s
        self._clock = clock
        self._lock = threading.Lock()
        self._last: Answer[T] | None = None
        self._under_way: tuple[float, Future[None]] | None = None
        self._failure = ""

    @property
    def last(self) -> Answer[T] | None:
        """The newest answer, however old it is; None before the first."""
        return self._last

    def age_s(self) -> float | None:
        """Seconds since the question that was answered last; None before the first."""
        last = self._last
        return None if last is None else max(0.0, self._clock() - last.asked_at)

    async def get(self, wait_s: float, since: float | None = None) -> Answer[T] | None:
        """The newest answer, after at most `wait_s` seconds.

        A call that has been under way for longer than `wait_s` is not waited for at all.

        Args:
            wait_s: For a call that takes longer, the last answer is given.
            since: Wait for an answer asked for at or after this, by the clock; by default a fresh one does.
        """
        deadline = self._clock() + wait_s
        while not self._good_enough(since):
            began, done = self._begin()
            patience = min(deadline, began + wait_s) - self._clock()
            if patience <= 0.0:
                break
            await asyncio.wait((asyncio.wrap_future(done),), timeout=patience)
            if not done.done() or since is None or began >= since:
                break  # it takes too long, or is over: if no answer came of it, it failed
        return self._last

    def _good_enough(self, since: float | None) -> bool:
        last = self._last
        if last is None:
            return False
        return last.asked_at >= (self._clock() - self._fresh_s if since is None else since)

    def _begin(self) -> tuple[float, Future[None]]:
        """The call under way, or a new one: when it began, and what is done when it is over."""
        with self._lock:
            if self._under_way is None:
                self._under_way = (self._clock(), Future())
                # A daemon: a call that never returns must not keep the process from ending.
                threading.Thread(target=self._run, args=self._under_way, name=self._name, daemon=True).start()
            return self._under_way

    def _run(self, began: float, done: Future[None]) -> None:
        try:
            self._last = Answer(self._call(), began)
            self._failure = ""
        except Exception as error:  # whoever asked gets the last answer, with its age
            text = f"{type(error).__name__}: {error}"
            if text != self._failure:
                logger.warning("%s: failed: %s", self._name, text)
            self._failure = text
        finally:
            with self._lock:
                self._under_way = None
            done.set_result(None)
