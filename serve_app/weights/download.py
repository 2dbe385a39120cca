"""Download models from the Hugging Face hub into its cache, before replicas need them.

    python -m serve_app.weights.download MODEL[@REVISION]... [--tokenizer MODEL[@REVISION]]...

huggingface_hub downloads, with a lock per file, so that engines may load at the same time. `HF_HOME` names
the cache and `HF_TOKEN` the account. This command selects the files that vLLM reads, checks the free space
before the first byte, and prints progress every 30 s. Its exit status is 0 when everything is there, 1 when
another try may succeed, and 2 when none can (a gated or unknown repository, an unknown revision, a full disk,
a folder that cannot be written).
"""

import argparse
import errno
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import filter as matching
from glob import escape
from io import StringIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple, Self

from huggingface_hub import DryRunFileInfo, HfApi, constants, errors, snapshot_download
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils.tqdm import tqdm

_INDEX = "model.safetensors.index.json"
_BESIDE_WEIGHTS = ["*.json", "*.txt", "*.model", "*.model.v*", "*.tiktoken", "*.jinja", "*.py"]
"""Configurations, tokenizers, chat templates and the code of `trust_remote_code`."""
_SECOND_COPY = "original/*"
"""Llama's weights once more, in Meta's format."""
_REPORT_S = 30.0
_STALE_S = 3600.0
"""A running download writes far more often. A file untouched for an hour is left from a killed download."""


class NothingToLoadError(Exception):
    """The repository has no weights or no tokenizer."""


_PERMANENT = (
    errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.DisabledRepoError,
    errors.OfflineModeIsEnabled, errors.HFValidationError, NothingToLoadError,
)  # fmt: skip
"""A gated repository counts as not found. `HFValidationError` is for an invalid name."""
_PERMANENT_ERRNO = (
    errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST,
)  # fmt: skip


class Wanted(NamedTuple):
    """A repository to download: everything that vLLM reads of it, or only its tokenizer."""

    repository: str
    revision: str = constants.DEFAULT_REVISION
    tokenizer_only: bool = False

    @classmethod
    def parse(cls, text: str, *, tokenizer_only: bool = False) -> Self:
        """Read `MODEL` or `MODEL@REVISION`."""
        repository, _, revision = text.partition("@")
        return cls(repository, revision or constants.DEFAULT_REVISION, tokenizer_only)

    def __str__(self) -> str:
        pinned = "" if self.revision == constants.DEFAULT_REVISION else f"@{self.revision}"
        return f"{'tokenizer ' if self.tokenizer_only else ''}{self.repository}{pinned}"


def weight_patterns(files: Sequence[str], indexed: Sequence[str]) -> list[str]:
    """Return patterns of the weights that vLLM's `load_format: auto` reads; none if there are no weights.

    Repositories hold the same weights up to four times. vLLM takes Mistral's format if it is there, else the
    safetensors that the index names (`indexed`), else the first kind of file that the top folder has. `files`
    are the paths of all files, from the repository's top.
    """
    if matching(files, "consolidated*.safetensors"):
        return ["consolidated*.safetensors"]
    if indexed:
        return [escape(name) for name in indexed if name in files]
    kinds = ("*.safetensors", "*.bin", "*.pt")
    return next(([kind] for kind in kinds if any("/" not in name for name in matching(files, kind))), [])


def download_all(wanted: Sequence[Wanted]) -> int:
    """Download each of `wanted`, even if others fail; return the exit status."""
    cache = Path(constants.HF_HUB_CACHE)
    permanent: list[bool] = []
    plans: dict[Wanted, tuple[dict[str, Any], list[DryRunFileInfo]]] = {}
    with _report_failure(cache, permanent):
        cache.mkdir(parents=True, exist_ok=True)
        for each in dict.fromkeys(wanted):
            with _report_failure(each, permanent):
                folder = cache / repo_folder_name(repo_id=each.repository, repo_type="model")
                _remove_leftovers(folder)
                plans[each] = _plan(each)
        missing = sum(_missing_bytes(files) for _, files in plans.values())
        free = shutil.disk_usage(cache).free
        if missing > free:
            plans = {}
            text = f"{_gigabytes(missing)} to download, {_gigabytes(free)} free; nothing was downloaded"
            raise OSError(errno.ENOSPC, text)
    for each, (arguments, files) in plans.items():
        with _report_failure(each, permanent):
            total, missing = sum(file.file_size or 0 for file in files), _missing_bytes(files)
            print(f"{each}: downloading {_gigabytes(missing)} of {_gigabytes(total)}", flush=True)
            snapshot_download(**arguments)
            # If the hub fails now, its client returns the files that were there before.
            absent = [file.filename for file in files if not Path(file.local_path).is_file()]
            if absent:
                raise OSError(f"{len(absent)} of {len(files)} files were not downloaded, such as {absent[0]}")
            print(f"{each}: downloaded", flush=True)
    return 0 if not permanent else 2 if all(permanent) else 1


def missing_bytes(wanted: Wanted) -> int:
    """Return the bytes of `wanted` that the cache lacks; 0 if the hub does not tell."""
    try:
        return _missing_bytes(_plan(wanted)[1])
    except Exception:  # of the network or the hub: the engine will name it, or find all it needs in the cache
        return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser("python -m serve_app.weights.download", description="Download models.")
    models, tokenizer = "download everything that vLLM reads of it", "download only its tokenizer"
    name = "MODEL[@REVISION]"
    parser.add_argument("models", nargs="*", metavar=name, help=models)
    parser.add_argument("--tokenizer", action="append", default=[], metavar=name, help=tokenizer)
    options = parser.parse_args(argv)
    wanted = [Wanted.parse(text) for text in options.models]
    wanted += [Wanted.parse(text, tokenizer_only=True) for text in options.tokenizer]
    if not wanted:
        parser.error("name at least one model or tokenizer")
    return download_all(wanted)


class LogProgress(tqdm):
    """A progress bar for logs: a line every 30 s. The client's own bars need a terminal."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._shown_at = time.monotonic()
        # This one of three bars counts bytes on the disk. Its total grows with each file that begins.
        self._shown = options.get("name") == "huggingface_hub.snapshot_download"
        super().__init__(*args, **{**options, "file": StringIO(), "disable": False})  # type: ignore[no-untyped-call]

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Print a line if the last one is 30 s old."""
        now = time.monotonic()
        if self._shown and now - self._shown_at >= _REPORT_S:
            self._shown_at = now
            rate = (self.format_dict["rate"] or 0.0) / 1e6
            print(f"{_gigabytes(self.n)} downloaded, {rate:.0f} MB/s", flush=True)


def _plan(wanted: Wanted) -> tuple[dict[str, Any], list[DryRunFileInfo]]:
    """Return the arguments of `snapshot_download`, and the files of them. Raises the hub's errors."""
    api = HfApi()
    info = api.model_info(wanted.repository, revision=wanted.revision)
    files = [file.rfilename for file in info.siblings or ()]
    weights: list[str] = []
    if not wanted.tokenizer_only:
        indexed: set[str] = set()
        if _INDEX in files:
            path = api.hf_hub_download(wanted.repository, _INDEX, revision=wanted.revision)
            indexed = set(json.loads(Path(path).read_text(encoding="utf-8")).get("weight_map", {}).values())
        weights = weight_patterns(files, sorted(indexed))
        if not weights:
            raise NothingToLoadError("the repository has no weights that vLLM can load")
    elif not any(matching(files, kind) for kind in _BESIDE_WEIGHTS):
        raise NothingToLoadError("the repository has no tokenizer")
    arguments: dict[str, Any] = {
        "repo_id": wanted.repository,
        "revision": wanted.revision,
        "allow_patterns": [*_BESIDE_WEIGHTS, *weights],
        "ignore_patterns": _SECOND_COPY,
        "tqdm_class": LogProgress,
    }
    # By commit: by name the client would move the cached branch before anything is downloaded.
    return arguments, snapshot_download(**{**arguments, "revision": info.sha}, dry_run=True)


def _missing_bytes(files: Sequence[DryRunFileInfo]) -> int:
    return sum(file.file_size or 0 for file in files if file.will_download)


@contextmanager
def _report_failure(subject: Wanted | Path, permanent: list[bool]) -> Iterator[None]:
    """Print the error that ends the block, and note whether it is permanent."""
    try:
        yield
    except Exception as raised:  # the other models are still to be downloaded
        wraps = isinstance(raised, errors.DryRunError | errors.LocalEntryNotFoundError)
        error = raised.__cause__ if wraps and isinstance(raised.__cause__, Exception) else raised
        words = f"{type(error).__name__}: {' '.join(str(error).split())}"
        status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
        if status in (401, 403, 404):
            words += f" (HF_TOKEN is {'set' if os.environ.get('HF_TOKEN') else 'not set'})"
        print(f"{subject}: {words}", file=sys.stderr, flush=True)
        permanent.append(
            isinstance(error, _PERMANENT)
            or status in (401, 403)
            or (isinstance(error, OSError) and error.errno in _PERMANENT_ERRNO)
        )


def _remove_leftovers(repository: Path) -> None:
    """Remove the files of killed downloads, which the client never resumes.

    Their age is by the clock of the volume, which other nodes may share. This node's clock may be ahead.
    """
    for path in repository.glob("blobs/*.incomplete"):
        try:
            with TemporaryFile(dir=path.parent) as new:
                now = os.fstat(new.fileno()).st_mtime
            if now - path.stat().st_mtime > _STALE_S:
                path.unlink()
                print(f"{path}: removed, because the download that wrote it was killed", flush=True)
        except OSError as error:  # it is gone, or somebody else's
            print(f"{path}: not removed: {error.strerror}", file=sys.stderr, flush=True)


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.2f} GB" if size < 1e10 else f"{size / 1e9:.1f} GB"


if __name__ == "__main__":
    sys.exit(main())
