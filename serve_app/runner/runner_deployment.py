"""The deployment of the batch runner: one replica without a GPU."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from ray import serve

from serve_app.batch.file_store import FileStore
from serve_app.batch.input_file import validate
from serve_app.batch.queue import BatchQueue
from serve_app.batch.records import OPEN, Batch
from serve_app.batch.store import BatchStore
from serve_app.patches.ray_idle import report_changes
from serve_app.runner.runner import Runner
from serve_app.settings.storage import BatchSettings, batch_database_url, batch_files_url
from serve_app.settings.telemetry import TraceSettings
from serve_app.settings.tree import INGRESS
from serve_app.telemetry.batch_metrics import BatchMetrics
from serve_app.telemetry.collector import Collector
from serve_app.telemetry.traces import SpanSender, dropped_spans
from serve_app.wire import spans as names
from serve_app.wire.batches import BatchBacklog, BatchLine, LineAnswers, backlogs_document
from serve_app.wire.documents import BATCHES, put_document
from serve_app.wire.spans import Span, batch_root

logger = logging.getLogger("ray.serve")

_PUBLISH_S = 1.0
_DELETE_OLD_S = 600.0
"""How often old files are looked for. Clients do not see an expired file in between."""


class BatchRunner:
    """Works on the open batches of one application.

    It sends lines to the ingress deployment by a handle. So lines pass through the same admission, queue,
    pick, ledger and log as all requests.

    Args:
        batch: `BatchSettings` as plain data.
        max_line_bytes: The most bytes of one line.
        traces: `TraceSettings` as plain data.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, batch: dict[str, Any], max_line_bytes: int, traces: dict[str, Any]
    ) -> None:
        settings = BatchSettings.model_validate(batch)
        report_changes()
        context = serve.get_replica_context()
        self._app = context.app_name
        self._metrics = BatchMetrics(context.replica_tag)
        self._spans = batch_spans(TraceSettings.model_validate(traces), os.environ, context.replica_tag)
        self._max_line_bytes = max_line_bytes
        self._store = BatchStore(batch_database_url(settings), settings, self._app)
        self._files = FileStore(batch_files_url(settings))
        self._queue = BatchQueue(self._store, self._files)
        self._runner = Runner(self._queue, self._validate, self._ask, self._note_end, self._metrics.count)
        work = (self._runner.run(), self._publish(), self._delete_old())
        self._tasks = [asyncio.create_task(each) for each in work]

    def _validate(self, batch: Batch) -> None:
        if not validate(self._store, self._files, batch, self._max_line_bytes, time.time()):
            self._note_end(batch.id)

    def _note_end(self, batch_id: str) -> None:
        batch = self._store.batch(batch_id)
        if batch is None or batch.status in OPEN:  # such as a batch that was cancelled during its check
            return
        logger.info("batch %s: %s", batch_id, batch.status)
        if self._spans is not None:
            self._spans.put(1, lambda: [batch_span(batch)])

    async def _ask(self, batch: Batch, lines: Sequence[BatchLine]) -> AsyncGenerator[LineAnswers]:
        # The ingress is built after this deployment, so its handle is taken with each call.
        ingress = serve.get_deployment_handle(INGRESS, self._app).options(stream=True)
        answers = ingress.answer_lines.remote(batch.owner, batch.id, batch.endpoint, batch.model, list(lines))
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
                if deleted := await asyncio.to_thread(self._queue.delete_old, time.time()):
                    logger.info(f"batches: {deleted} old files are deleted")
            except Exception:  # a store does not answer
                logger.warning("old files cannot be deleted", exc_info=True)
            await asyncio.sleep(_DELETE_OLD_S)

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


def batch_spans(settings: TraceSettings, environment: Mapping[str, str], replica: str) -> SpanSender | None:
    """Return the sender of the spans of batches; None without traces."""
    collector = Collector.of(settings, environment)
    return None if collector is None else SpanSender(collector, "runner", replica, dropped_spans(replica))


def batch_span(batch: Batch) -> Span:
    """Return the span of a batch that has ended. The traces of its lines link to it."""
    root, ended = batch_root(batch.id), getattr(batch, f"{batch.status}_at")
    known = {
        names.BATCH_ID: batch.id,
        names.ROUTE: batch.endpoint,
        names.REQUEST_MODEL: batch.model,
        names.KEY: batch.owner,
        names.OUTCOME: batch.status,
        names.BATCH_LINES: batch.total,
        names.BATCH_FAILED: batch.failed,
        names.INPUT_TOKENS: batch.input_tokens,
    }
    return Span(
        names.BATCH,
        root.trace_id,
        root.span_id,
        "",
        batch.created_at * 1_000_000_000,
        ended * 1_000_000_000,
        {name: value for name, value in known.items() if value not in (None, "")},
        error=batch.status if batch.status in ("failed", "expired") else "",
    )
