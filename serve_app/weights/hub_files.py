"""Which files of a Hugging Face repository vLLM reads, so that no more than these are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

INDEX = "model.safetensors.index.json"
"""Names the files of weights in several parts."""
_BESIDE_WEIGHTS = ("*.json", "*.txt", "*.model", "*.model.v*", "*.tiktoken", "*.jinja", "*.py")
"""Configurations, tokenizers, chat templates and the code of `trust_remote_code`."""
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt")
"""In the order in which vLLM prefers them; the first kind found is the only one it reads."""
_MISTRAL = "consolidated*.safetensors"
_IGNORED = "original/*"
"""A second copy of Llama's weights, in Meta's format."""


def tokenizer_files(names: Sequence[str]) -> list[str]:
    """All of `names` that are not weights: what a repository used as a tokenizer has to give."""
    return [name for name in names if _any(name, _BESIDE_WEIGHTS) and not fnmatchcase(name, _IGNORED)]


def weight_files(names: Sequence[str], indexed: Sequence[str]) -> list[str]:
    """The weights among `names`, as vLLM's `load_format: auto` chooses them.

    Repositories hold the same weights up to four times: safetensors, PyTorch's pickles, Meta's and
    Mistral's own. vLLM takes Mistral's where there are any, else safetensors, else pickles; of safetensors
    in several parts those in the index. Like vLLM's, its patterns reach into subfolders, but a kind counts
    only if the top folder has a file of it.

    Args:
        names: Paths of all files, from the repository's top.
        indexed: Files that the index names; empty without one.
    """
    kept = [name for name in names if not fnmatchcase(name, _IGNORED)]
    mistral = [name for name in kept if fnmatchcase(name, _MISTRAL)]
    if mistral:
        return mistral
    if indexed:
        wanted = set(indexed)
        return [name for name in kept if name in wanted]
    for pattern in _WEIGHTS:
        if any(fnmatchcase(name, pattern) for name in kept if PurePosixPath(name).name == name):
            return [name for name in kept if fnmatchcase(name, pattern)]
    return []


def _any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
