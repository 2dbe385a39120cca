"""The deployment of the batch runner: one replica without a GPU."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from ray import serve

from serve_app.batch.file_store import FileStore
from serve_app.batch.input_file import validate
from serve_app.batch.queue import BatchQueue
from serve_app.batch.records import Batch
from serve_app.batch.retention import INTERVAL_S, delete_old
from serve_app.batch.store import BatchStore
from serve_app.runner.runner import Runner
from serve_app.settings.batch import BatchSettings, batch_database_url, batch_files_url
from serve_app.settings.tree import INGRESS
from serve_app.telemetry.batch_metrics import BatchMetrics
from serve_app.wire.batch_backlog import BatchBacklog, backlogs_document
from serve_app.wire.batch_lines import BatchLine, LineAnswers
from serve_app.wire.documents import BATCHES, put_document

logger = logging.getLogger("ray.serve")

_PUBLISH_S = 1.0


class BatchRunner:
    """Works on the open batches of one application.

    It sends lines to the ingress deployment by a handle. So lines pass through the same admission, queue,
    pick, ledger and log as all requests.

    Args:
        batch: `BatchSettings` as plain data.
        max_line_bytes: The most bytes of one line.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, batch: dict[str, Any], max_line_bytes: int
    ) -> None:
        settings = BatchSettings.model_validate(batch)
        context = serve.get_replica_context()
        self._app = context.app_name
        self._metrics = BatchMetrics(context.replica_tag)
        self._max_line_bytes = max_line_bytes
        self._store = BatchStore(batch_database_url(settings), settings)
        self._files = FileStore(batch_files_url(settings))
        self._queue = BatchQueue(self._store, self._files)
        self._runner = Runner(self._queue, self._validate, self._ask, self._metrics.count)
        work = (self._runner.run(), self._publish(), self._delete_old())
        self._tasks = [asyncio.create_task(each) for each in work]

    def _validate(self, batch: Batch) -> None:
        validate(self._store, self._files, batch, self._max_line_bytes, time.time())

    async def _ask(self, batch: Batch, lines: Sequence[BatchLine]) -> AsyncGenerator[LineAnswers]:
        # The ingress is built after this deployment, so its handle is taken with each call.
        ingress = serve.get_deployment_handle(INGRESS, self._app).options(stream=True)
        answers = ingress.answer_lines.remote(batch.owner, batch.endpoint, batch.model, list(lines))
        try:
            async for part in answers:
                yield part
        finally:
            answers.cancel()

    async def _delete_old(self) -> None:
        """Delete expired files and batches, and what a killed runner left, every ten minutes."""
        while True:
            try:
                await asyncio.to_thread(self._queue.discard_leftovers)
                if deleted := await asyncio.to_thread(delete_old, self._store, self._files, time.time()):
                    logger.info(f"batches: {deleted} old files are deleted")
            except Exception:  # a store does not answer
                logger.warning("old files cannot be deleted", exc_info=True)
            await asyncio.sleep(INTERVAL_S)

    async def _publish(self) -> None:
        """Publish what is left to the policy and as metrics, every second while there is any."""
        written: dict[str, BatchBacklog] | None = None
        while True:
            backlogs = self._runner.backlogs()
            self._metrics.publish(backlogs)
            try:
                if backlogs or written != backlogs:
                    document = backlogs_document(backlogs, time.time())
                    await asyncio.to_thread(put_document, BATCHES, self._app, document)
                    written = backlogs
            except Exception:  # the GCS does not answer
                logger.warning("the backlog of batches cannot be written", exc_info=True)
            await asyncio.sleep(_PUBLISH_S)
