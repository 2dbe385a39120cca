"""An id of the model that a replica serves. It is equal wherever the same tokens mean the same text.

A stream that loses its replica continues only at a replica of the same identity. One name may stand for two
models during a rolling update, or when the weights of a folder are replaced between two starts.
"""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import xxhash

from serve_app.settings.identity import without_secrets
from serve_app.settings.tree import EMBEDDED, ModelSettings
from serve_app.weights import embedded_model_path
from serve_app.weights.page_cache import local_folder

logger = logging.getLogger("ray.serve")

WHOLE_BYTES = 4 << 20
"""Configurations, tokenizers and small weights are read as a whole."""
SAMPLES = 1024
"""Samples of all larger files together, in equal steps. If a hundredth of the bytes differ, the difference
goes unnoticed once in 30,000 times: 0.99^1024. On a network drive with 1 ms per read they take a second."""
SAMPLE_BYTES = 4 << 10
_FORMAT = ("dtype", "quantization", "task", "tool_call_parser", "reasoning_parser")
"""Settings that decide which tokens or events come from the same files."""
_FORMAT_OF_ANY_WEIGHTS = ("task", "tool_call_parser", "reasoning_parser")


def model_identity(model: ModelSettings) -> str:
    """Return the identity of `model`: 32 hexadecimal digits.

    It covers the contents of weights, configuration, tokenizer and chat template, and every engine argument.
    A model of the Hugging Face hub counts by its commit. A model that is neither a folder nor in the cache
    counts by its name. With `continue_on_other_weights`, only what all variants share counts.

    Raises:
        OSError: a file cannot be read.
    """
    digest = xxhash.xxh3_128()
    sources = [(model.model, model.revision), (model.tokenizer, None), (model.chat_template, None)]
    if model.continue_on_other_weights:
        sources = [(model.tokenizer or model.model, None), (model.chat_template, None)]
    for source, revision in sources:
        for part in () if source is None else _contents(source, revision):
            digest.update(len(part).to_bytes(8, "big") + part)
    arguments = {name: getattr(model, name) for name in _FORMAT}
    arguments["engine_args"] = without_secrets(model.engine_args)
    if model.continue_on_other_weights:
        arguments = {name: getattr(model, name) for name in _FORMAT_OF_ANY_WEIGHTS}
    digest.update(json.dumps(arguments, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def _contents(source: str, revision: str | None) -> Iterator[bytes]:
    path = embedded_model_path() if source == EMBEDDED else Path(source)
    if path.is_file():
        files = [path]
    elif path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and _is_counted(file))
    else:
        snapshot = local_folder(source, revision)
        # The hub's cache names a snapshot's folder by its commit.
        yield f"{source}@{revision if snapshot is None else snapshot.name}".encode()
        return
    large = sum(size for file in files if (size := file.stat().st_size) > WHOLE_BYTES)
    for file in files:
        yield file.name.encode()
        yield from _samples(file, large // SAMPLES)


def _is_counted(file: Path) -> bool:
    return file.suffix != ".md" and not file.name.startswith(".")


def _samples(file: Path, step: int) -> Iterator[bytes]:
    with file.open("rb", buffering=0) as opened:
        size = os.fstat(opened.fileno()).st_size
        yield size.to_bytes(8, "big")
        if size <= WHOLE_BYTES:
            yield opened.read()
            return
        for start in (*range(0, size - SAMPLE_BYTES, max(step, SAMPLE_BYTES)), size - SAMPLE_BYTES):
            yield os.pread(opened.fileno(), SAMPLE_BYTES, start)
