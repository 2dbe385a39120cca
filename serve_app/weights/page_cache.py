"""Have a node's kernel read a model's weights before an engine asks for them."""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

CHUNK_BYTES = 128 << 10
"""Linux reads no more for one call of `posix_fadvise` than the device's read-ahead, by default 128 KiB."""
_SHARE = 0.5
"""Share of the available memory: the page cache must not push out what the node's programs use."""


def prefetch(model: str, revision: str | None = None) -> int:
    """Begin to read a model's weights into the page cache, and return how many bytes; 0 if it is not here.

    Args:
        model: A folder, or a Hugging Face id, of which what has been downloaded is read.
        revision: Of the Hugging Face id.
    """
    files = list(_weights(local_folder(model, revision)))
    wanted = sum(file.stat().st_size for file in files)
    if wanted > _SHARE * psutil.virtual_memory().available:
        return 0
    for file in files:
        with file.open("rb") as opened:
            for start in range(0, file.stat().st_size, CHUNK_BYTES):
                os.posix_fadvise(opened.fileno(), start, CHUNK_BYTES, os.POSIX_FADV_WILLNEED)
    return wanted


def local_folder(model: str, revision: str | None) -> Path | None:
    """Return where a model is on this node: a folder, or a snapshot of the hub's cache. None if not here."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download  # noqa: PLC0415  0.3 s that a folder does not need
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError  # noqa: PLC0415

    try:
        return Path(snapshot_download(model, revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def _weights(folder: Path | None) -> Iterator[Path]:
    """Yield the files that `load_format: auto` would read: those of the first kind in the folder."""
    if folder is not None:
        for kind in ("*.safetensors", "*.bin", "*.pt"):
            if found := sorted(folder.glob(kind)):
                yield from found
                return
