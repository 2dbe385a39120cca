import asyncio
import threading
from pathlib import Path

import pytest

from serve_app.api.batch_access import BatchAccess
from serve_app.batch.file_store import FileStore
from serve_app.batch.store import BatchStore

LIMIT_S = 60.0


async def test_each_cancellation_waits_for_the_thread(tmp_path: Path) -> None:
    """What the thread has done may have to be undone, but not while it works."""
    access = BatchAccess(BatchStore(f"sqlite:///{tmp_path}/batch.db"), FileStore(f"file://{tmp_path}/files"))
    begun, go = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go.wait(LIMIT_S)

    call = asyncio.create_task(access.run(work))
    assert await asyncio.to_thread(begun.wait, LIMIT_S)
    for _ in range(3):
        call.cancel()
        await asyncio.wait([call], timeout=0.05)
        assert not call.done()
    go.set()

    with pytest.raises(asyncio.CancelledError):
        await call
