"""Load models from the Hugging Face hub into its cache, before replicas need them.

    python -m serve_app.weights.download MODEL[@REVISION]... [--tokenizer MODEL[@REVISION]]...

It takes the same locks as the engines, file by file, so that both may load at once. `HF_HOME` says where
to, `HF_TOKEN` who asks. Exit status: 0 when all is there, 1 when another try may do better, 2 when none
can: a gated or unknown repository, a revision that does not exist, no room, a folder it may not write to.
"""

from __future__ import annotations

import argparse
import glob
import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download, try_to_load_from_cache

from serve_app.weights.hub_errors import HubError, hub_error, no_room
from serve_app.weights.hub_files import INDEX, tokenizer_files, weight_files

_REPORT_S = 30.0
_STALE_S = 3600.0
"""A running download writes to its file far more often; one untouched for so long was killed."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A repository to load: all that vLLM reads of it, or only its tokenizer."""

    repository: str
    revision: str = constants.DEFAULT_REVISION
    tokenizer_only: bool = False

    @classmethod
    def parse(cls, text: str, *, tokenizer_only: bool = False) -> Wanted:
        """`MODEL` or `MODEL@REVISION`."""
        repository, _, revision = text.partition("@")
        return cls(repository, revision or constants.DEFAULT_REVISION, tokenizer_only)

    def __str__(self) -> str:
        name = self.repository
        if self.revision != constants.DEFAULT_REVISION:
            name += f"@{self.revision}"
        return f"tokenizer {name}" if self.tokenizer_only else name


@dataclass(frozen=True, slots=True)
class Plan:
    """What a repository has for us, and how much of it is not here yet."""

    wanted: Wanted
    files: tuple[str, ...]
    total_bytes: int
    missing_bytes: int


@dataclass(frozen=True, slots=True)
class Hub:
    """Where models come from, and the folder of the cache."""

    endpoint: str
    cache: Path

    def plan(self, wanted: Wanted) -> Plan:
        """Ask the hub what there is. Raises the hub's errors, and HubError where there are no weights."""
        info = HfApi(endpoint=self.endpoint).model_info(
            wanted.repository, revision=wanted.revision, files_metadata=True
        )
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        names = list(sizes)
        files = tokenizer_files(names)
        if not wanted.tokenizer_only:
            weights = weight_files(names, self._indexed(wanted, names))
            if not weights:
                raise HubError(f"{wanted}: has no weights that vLLM could load", permanent=True)
            files = list(dict.fromkeys(files + weights))
        if not files:
            raise HubError(f"{wanted}: has no tokenizer", permanent=True)
        missing = [name for name in files if not self._here(wanted, name, info.sha)]
        return Plan(
            wanted, tuple(files), sum(sizes[name] for name in files), sum(sizes[name] for name in missing)
        )

    def load(self, plan: Plan) -> None:
        """Load what is missing, and note the revision: without the hub, it is found by its name.

        Raises the hub's errors, and HubError where it did not give all of it.
        """
        folder = snapshot_download(
            plan.wanted.repository,
            revision=plan.wanted.revision,
            allow_patterns=[glob.escape(name) for name in plan.files],
            cache_dir=self.cache,
            endpoint=self.endpoint,
        )
        # Where the hub fails to tell once more what it has, its client returns what was there before.
        gone = [name for name in plan.files if not Path(folder, name).is_file()]
        if gone:
            words = f"{len(gone)} of {len(plan.files)} files have not come, {gone[0]} among them"
            raise HubError(f"{plan.wanted}: {words}", permanent=False)

    def folder(self, wanted: Wanted) -> Path:
        """Where a repository's files lie."""
        return self.cache / f"models--{wanted.repository.replace('/', '--')}" / "blobs"

    def _here(self, wanted: Wanted, name: str, commit: str | None) -> bool:
        found = try_to_load_from_cache(wanted.repository, name, cache_dir=self.cache, revision=commit)
        return isinstance(found, str)

    def _indexed(self, wanted: Wanted, names: Sequence[str]) -> list[str]:
        """The files that the index of weights in parts names; none without an index."""
        if INDEX not in names:
            return []
        path = hf_hub_download(
            wanted.repository, INDEX, revision=wanted.revision, cache_dir=self.cache, endpoint=self.endpoint
        )
        return sorted(set(json.loads(Path(path).read_text(encoding="utf-8")).get("weight_map", {}).values()))


def load_all(hub: Hub, wanted: Sequence[Wanted], free_bytes: Callable[[Path], int]) -> int:
    """Load every one of `wanted`, whatever becomes of the others. Returns the exit status."""
    wanted = list(dict.fromkeys(wanted))
    try:
        hub.cache.mkdir(parents=True, exist_ok=True)
        for each in wanted:
            _sweep(hub.folder(each), time.time())
    except OSError as error:
        print(f"{hub.cache}: {error.strerror or error}", file=sys.stderr)
        return 2
    troubles: list[HubError] = []
    plans: list[Plan] = []
    for each in wanted:
        with _collected(troubles, each):
            plans.append(hub.plan(each))
    missing = sum(plan.missing_bytes for plan in plans)
    free = free_bytes(hub.cache)
    if missing > free:
        with _collected(troubles, None):
            raise no_room(hub.cache, missing, free)
        plans = []
    for plan in plans:
        with _collected(troubles, plan.wanted):
            _load(hub, plan)
    if not troubles:
        return 0
    return 2 if all(each.permanent for each in troubles) else 1


def report(
    total: int, measure: Callable[[], int], wait: Callable[[float], bool], say: Callable[[str], None]
) -> None:
    """Say every half minute how much of `total` bytes has come, until `wait` returns true."""
    begun = measure()
    before = 0
    while not wait(_REPORT_S):
        done = min(max(measure() - begun, 0), total)
        rate = max(done - before, 0) / _REPORT_S
        say(f"{gigabytes(done)} of {gigabytes(total)}, {rate / 1e6:.0f} MB/s")
        before = done


def gigabytes(size: int) -> str:
    """Bytes in words: `0.02 GB`."""
    return f"{size / 1e9:.2f} GB" if size < 1e10 else f"{size / 1e9:.1f} GB"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m serve_app.weights.download", description="Load models.")
    parser.add_argument("models", nargs="*", metavar="MODEL[@REVISION]", help="all that vLLM reads of it")
    parser.add_argument(
        "--tokenizer", action="append", default=[], metavar="MODEL[@REVISION]", help="only its tokenizer"
    )
    options = parser.parse_args(argv)
    wanted = [Wanted.parse(text) for text in options.models]
    wanted += [Wanted.parse(text, tokenizer_only=True) for text in options.tokenizer]
    if not wanted:
        parser.error("name at least one model or tokenizer")
    hub = Hub(constants.ENDPOINT, Path(constants.HF_HUB_CACHE))
    return load_all(hub, wanted, lambda folder: shutil.disk_usage(folder).free)


def _load(hub: Hub, plan: Plan) -> None:
    if not plan.missing_bytes:
        print(f"{plan.wanted}: {gigabytes(plan.total_bytes)}, all here", flush=True)
        hub.load(plan)  # for the name of the revision, which may be new
        return
    print(
        f"{plan.wanted}: loading {gigabytes(plan.missing_bytes)} of {gigabytes(plan.total_bytes)}", flush=True
    )
    stop = threading.Event()
    folder = hub.folder(plan.wanted)
    reporter = threading.Thread(
        target=report,
        args=(
            plan.missing_bytes,
            lambda: _bytes_in(folder),
            stop.wait,
            lambda line: print(f"{plan.wanted}: {line}", flush=True),
        ),
        daemon=True,
    )
    begun = time.monotonic()
    reporter.start()
    try:
        hub.load(plan)
    finally:
        stop.set()
        reporter.join()
    print(f"{plan.wanted}: loaded in {time.monotonic() - begun:.0f} s", flush=True)


@contextmanager
def _collected(troubles: list[HubError], wanted: Wanted | None) -> Iterator[None]:
    """Say what goes wrong in the block, and keep it."""
    try:
        yield
    except Exception as error:  # whatever the hub's client raises: the other models are still to be loaded
        found = error if isinstance(error, HubError) else hub_error(str(wanted), error)
        print(found, file=sys.stderr, flush=True)
        troubles.append(found)


def _bytes_in(folder: Path) -> int:
    """Bytes written to a repository's files, unfinished ones included. What vanishes has been renamed."""
    total = 0
    for path in folder.glob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def _sweep(folder: Path, now: float) -> None:
    """Remove what killed downloads left: each has a name of its own, and would never be gone on with."""
    for path in folder.glob("*.incomplete"):
        try:
            if now - path.stat().st_mtime > _STALE_S:
                path.unlink()
                print(f"{path}: left by a download that was killed; removed", flush=True)
        except FileNotFoundError:
            continue


if __name__ == "__main__":
    sys.exit(main())
