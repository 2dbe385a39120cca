"""Delete what is old: expired files, interrupted uploads, and batches that ended long ago."""

from serve_app.batch.file_store import FileStore
from serve_app.batch.store import BatchStore

INTERVAL_S = 600.0
"""How often old files are looked for. Clients do not see an expired file in between."""


def delete_old(store: BatchStore, files: FileStore, now: float) -> int:
    """Return the number of deleted files. Several processes may delete at the same time.

    Args:
        store: The database.
        files: The bytes of files.
        now: Unix time.
    """
    deleted = 0
    while old := store.expire(now):
        files.delete([file.object for file in old])
        store.forget_files([file.id for file in old])
        deleted += len(old)
    return deleted
