"""Compiled kernels that outlive the pod of an engine.

vLLM and torch name unfinished files by process id, and pods share process ids. Two pods that compile into one
folder could write to the same file. So every pod compiles in its own home folder, and then stores the
compiled files as one archive in the shared folder. The next pod starts with this archive.
"""

import logging
import re
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

logger = logging.getLogger("ray.serve")

KEPT = (
    # Not vLLM's other caches: GPU links and free memory are properties of one node.
    ".cache/vllm/torch_compile_cache",
    ".cache/vllm/modelinfos",
    ".cache/vllm/deep_gemm",
    ".cache/vllm/flashinfer_autotune_cache",
    ".cache/flashinfer",
    ".triton/cache",
)
"""Folders below the home folder. Their files are named by the model and its settings, the versions and the
kind of GPU, so an archive may have files that a pod does not need."""
_WITH_THE_MODEL = "/inductor_cache/"
"""A folder of a compiled model. On CPUs every start adds a few files with new names."""
_UNFINISHED = re.compile(r"\.(lock|tmp|part)$|(^|/)\.?tmp")


def archive_of(shared: str, vllm: str, model: str) -> Path:
    """Return where the archive of a model is, for one release of vLLM."""
    return Path(shared) / f"vllm-{vllm}" / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', model)}.tar"


@contextmanager
def _warning(text: str) -> Iterator[None]:
    try:
        yield
    except (OSError, tarfile.TarError) as error:
        logger.warning("%s: %s", text, error)


def fetch(archive: Path, home: Path) -> None:
    """Unpack files that `home` lacks. Without an archive, or with a broken one, the engine compiles."""
    with _warning(f"{archive} cannot be unpacked, so the engine compiles"):
        _fetch(archive, home)


def store(archive: Path, home: Path) -> None:
    """Replace the archive, whole or not at all, if `home` has files that the archive lacks."""
    with _warning(f"{archive} cannot be written, so the next engine compiles again"):
        _store(archive, home)


def _fetch(archive: Path, home: Path) -> None:
    if not archive.exists():
        return
    with TemporaryDirectory(dir=home) as folder, tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        tar.extractall(folder)  # noqa: S202  the filter keeps it below the folder
        # Existing files stay, because another engine of this pod may have loaded them.
        new = [(path, home / path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()]
        for path, place in new:
            if not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                path.rename(place)
    logger.info("%s: unpacked %d compiled files", archive, len(new))


def _store(archive: Path, home: Path) -> None:
    paths = [path for folder in KEPT for path in sorted((home / folder).rglob("*")) if path.is_file()]
    names = [name for path in paths if not _UNFINISHED.search(name := path.relative_to(home).as_posix())]
    if archive.exists():
        with tarfile.open(archive) as tar:
            known = set(tar.getnames())
        if known.issuperset(name for name in names if _WITH_THE_MODEL not in name):
            return
    archive.parent.mkdir(parents=True, exist_ok=True)
    part = archive.with_name(f"{uuid.uuid4().hex}.part")
    try:
        with tarfile.open(part, "w") as tar:
            for name in names:
                tar.add(home / name, name)
        part.replace(archive)
    finally:
        part.unlink(missing_ok=True)
    logger.info("%s: written with %d compiled files", archive, len(names))
