"""Writes the knobs in force into Ray's key-value store, however long that takes."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from serve_app.wire.documents import KNOBS, put_document

logger = logging.getLogger("ray.serve")

_RETRY_S = 1.0


class KnobPublisher:
    """Publishes the newest knobs of one application, in threads: Ray hands knobs over in the event loop."""

    def __init__(self, app: str) -> None:
        self._app = app
        self._newest: Mapping[str, Any] = {}
        self._writing = threading.Lock()

    async def publish(self, document: Mapping[str, Any], wait_s: float) -> None:
        """Have `document` written, and wait for that for at most `wait_s` seconds."""
        self._newest = document
        written: Future[None] = Future()
        threading.Thread(
            target=self._write, args=(document, written), name=f"knobs of {self._app}", daemon=True
        ).start()
        await asyncio.wait((asyncio.wrap_future(written),), timeout=wait_s)

    def _write(self, document: Mapping[str, Any], written: Future[None]) -> None:
        failed = threading.Event()
        logged = False
        # One at a time: of two that hang, the older must not be written after the newer.
        with self._writing:
            while document is self._newest:
                try:
                    put_document(KNOBS, self._app, document)
                    break
                except Exception:
                    if not logged:
                        logger.exception("the knobs of %s could not be published; trying again", self._app)
                    logged = True
                    failed.wait(_RETRY_S)
        written.set_result(None)
