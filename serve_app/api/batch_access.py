"""What the endpoints of files and batches share: the stores, their threads and their errors."""

import asyncio
import logging
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from fastapi import Request
from sqlalchemy.exc import SQLAlchemyError

from serve_app.api.errors import ApiError
from serve_app.api.request_head import key_of
from serve_app.batch.file_store import STORE_ERRORS, DamagedError, FileStore
from serve_app.batch.store import CONNECTIONS, BatchStore, LimitError
from serve_app.database import TablesVersionError

logger = logging.getLogger("ray.serve")

T = TypeVar("T")
FAILURES = (SQLAlchemyError, TablesVersionError, DamagedError, *STORE_ERRORS)
_NO_RETRY = {"X-Should-Retry": "false"}
_ID = re.compile(r"(file-|batch_)[0-9a-f]{32}")
_FULL = re.compile(r"no space left|disk is full|disk full|quota exceeded", re.IGNORECASE)


@dataclass(slots=True, eq=False)
class BatchAccess:
    """The HTTP API's access to files and batches."""

    store: BatchStore
    files: FileStore
    clock: Callable[[], float] = time.time
    """Unix time in seconds."""
    # Own threads: a slow database must not take the event loop's.
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(CONNECTIONS, "batches"), init=False
    )

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns. It runs in a thread.

        Raises:
            ApiError: 429 for a limit, 507 without space, 503 if a store does not answer.
        """
        future = asyncio.wrap_future(job := self._threads.submit(work))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:  # the client has left
            job.cancel()
            while not future.done():  # the thread goes on, and its work may have to be undone
                with suppress(asyncio.CancelledError):  # as a cancelled scope sends it again and again
                    await asyncio.wait([future])
            if not future.cancelled():
                future.exception()  # asyncio logs one that nobody has read
            raise
        except LimitError as error:
            raise ApiError(429, f"{error}.", code="limit_exceeded", headers=_NO_RETRY) from None
        except FAILURES as error:
            raise store_failed(error) from None


def store_failed(error: Exception) -> ApiError:
    """Return a 500 for a damaged file, a 507 if there is no space left, else a 503.

    The cause is logged, because it may name hosts.
    """
    logger.warning("files and batches: %s: %s", type(error).__name__, error)
    if isinstance(error, DamagedError):
        message = "The stored content of this file is damaged: it cannot be read any more."
        return ApiError(500, message, param="file_id", code="file_damaged", headers=_NO_RETRY)
    if _FULL.search(str(error)):
        message = "There is no space left for files and batches. Nothing that was stored is lost."
        return ApiError(507, message, code="storage_full", headers=_NO_RETRY)
    message = "The store of files and batches does not answer."
    return ApiError(503, message, code="batch_store_unavailable", headers={"Retry-After": "10"})


def owner_of(request: Request) -> str:
    """Return the owner of the client's files and batches: the name of its API key; "" without keys."""
    key = key_of(request)
    return "" if key is None else key.name


def check_id(given: str, param: str) -> str:
    """Return an id. Raises ApiError 404 for a text that cannot be one."""
    if not _ID.fullmatch(given):
        raise not_found(given, param)
    return given


def not_found(given: str, param: str) -> ApiError:
    """Return the error for a file or batch that does not exist, or that is another key's."""
    kind = param.removesuffix("_id")
    return ApiError(404, f"{param} = {given[:100]!r}: no such {kind}.", param=param, code=f"{kind}_not_found")
