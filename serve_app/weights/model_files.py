"""What the files of a model say, before any weight is loaded: of a folder, or of a repository of the hub."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import filter as matching
from pathlib import Path
from typing import Any

from serve_app.settings.tree import EMBEDDED
from serve_app.weights import embedded_adapter_path, embedded_model_path
from serve_app.weights.page_cache import local_folder

_CONFIG, _INDEX, _ADAPTER = "config.json", "model.safetensors.index.json", "adapter_config.json"
_SENTENCES = "sentence_*_config.json"
_SMALL = (
    _CONFIG, _INDEX, _ADAPTER, "tokenizer_config.json", "chat_template.jinja", "modules.json", "README.md",
    _SENTENCES,
)  # fmt: skip


class ModelFilesError(ValueError):
    """Files that are missing, broken or not given out. The message names the file."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Facts of a model's files."""

    model: str  # for the setting `model`
    config: Mapping[str, Any]
    weights: int  # bytes, in 16 bits if the files have float32
    is_certain: bool  # whether a header tells the dtype of the weights
    chat_template: str | None
    licence: str | None
    own_code: tuple[str, ...]  # Python modules that the configuration names
    is_embedding: bool
    is_gated: bool = False
    adapter: tuple[str, int] | None = None  # the source and rank of a LoRA adapter for this model


def read_model(name: str, *, ask_hub: bool = True, revision: str | None = None) -> ModelFiles:
    """Return the facts of a folder, of `embedded`, or of a repository such as `Qwen/Qwen3-8B`.

    Args:
        ask_hub: Whether a repository that is not in the hub's cache here is asked for over the network.
        revision: Of a repository in the hub's cache.

    Raises:
        ModelFilesError: a file is missing, broken or not given out, or the hub cannot be reached.
    """
    try:
        return _read(name, ask_hub, revision)
    except ModelFilesError:
        raise
    except OSError as error:
        raise ModelFilesError(f"{error.filename or name}: {error.strerror or error}") from None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ModelFilesError(f"{name}: a file has an unknown form: {what}") from None


def _read(name: str, ask_hub: bool, revision: str | None) -> ModelFiles:
    path = embedded_model_path() if name == EMBEDDED else Path(name).expanduser().absolute()
    if path.is_dir():
        source = name if name == EMBEDDED else str(path)
        return _facts(source, path, {file.name: -1 for file in path.iterdir()})
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or name.startswith("."):
        raise ModelFilesError(f"{name}: no such folder, and the name of a repository is owner/name")
    folder = local_folder(name, revision)
    if folder is not None and any(folder.glob("*.safetensors")):
        return _facts(name, folder, {file.name: -1 for file in folder.iterdir()})
    if not ask_hub:
        raise ModelFilesError(f"{name}: not on this machine")
    return _from_hub(name)


def _from_hub(name: str) -> ModelFiles:
    from huggingface_hub import HfApi, constants, errors, snapshot_download  # noqa: PLC0415  0.3 s

    instead = f"give a folder with {_CONFIG} and {_INDEX}"
    try:
        info = HfApi().model_info(name, revision=constants.DEFAULT_REVISION, files_metadata=True)
        folder = Path(snapshot_download(name, revision=info.sha, allow_patterns=list(_SMALL)))
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    except errors.GatedRepoError:
        ask = f"accept the licence at https://huggingface.co/{name}, and set HF_TOKEN to that account's token"
        raise ModelFilesError(f"{name}: gated: {ask}; or {instead}") from None
    except errors.RepositoryNotFoundError:
        raise ModelFilesError(
            f"{name}: the hub has no such repository, or it is private: set HF_TOKEN"
        ) from None
    except Exception as error:  # of the network, the hub or its client
        why = " ".join(str(error).split())[:200]
        raise ModelFilesError(f"{name}: the hub does not answer ({why}); {instead}") from None
    return replace(_facts(name, folder, sizes), is_gated=bool(info.gated))


def _facts(name: str, folder: Path, sizes: Mapping[str, int]) -> ModelFiles:
    """Return the facts of the files in `folder`. Those with a size in `sizes` may be on the hub alone."""
    if _CONFIG not in sizes and _ADAPTER in sizes:
        return _of_adapter(name, folder)
    config = _json(folder / _CONFIG)
    has_tokenizer = "tokenizer_config.json" in sizes
    tokenizer = _json(folder / "tokenizer_config.json") if has_tokenizer else {}
    lengths = [_json(folder / file).get("max_seq_length") for file in matching(sizes, _SENTENCES)]
    if config.get("position_embedding_type") == "absolute":
        lengths.append(tokenizer.get("model_max_length"))
    if lengths := [each for each in lengths if isinstance(each, int)]:  # vLLM's limits of an encoder
        config = {**config, "max_seq_length": min(lengths)}
    template: Any = tokenizer.get("chat_template")
    if isinstance(template, list):  # several by name
        template = next((each.get("template") for each in template if isinstance(each, dict)), None)
    if "chat_template.jinja" in sizes:
        template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    card = (folder / "README.md").read_text("utf-8", "replace")[:20_000] if "README.md" in sizes else ""
    licence = re.search(r"\A---\n(?:.*\n)*?license(?:_name)?: *([^\n]+)", card)
    named = [value for each in (config, tokenizer) for value in (each.get("auto_map") or {}).values()]
    code = {f"{str(value).split('--')[-1].split('.')[0]}.py" for value in named if isinstance(value, str)}
    return ModelFiles(
        name,
        config,
        *_weights(folder, sizes, config),
        template if isinstance(template, str) else None,
        licence[1].strip() if licence else None,
        tuple(sorted(code)),
        "modules.json" in sizes,
    )


def _of_adapter(name: str, folder: Path) -> ModelFiles:
    """Return the facts of the model that a LoRA adapter was made for."""
    given = _json(folder / _ADAPTER)
    base, rank = given.get("base_model_name_or_path"), given.get("r")
    if not isinstance(base, str) or not isinstance(rank, int):
        wrong = f"base_model_name_or_path = {base!r}, r = {rank!r}"
        raise ModelFilesError(f"{folder / _ADAPTER}: {wrong}: must name a model and a rank")
    is_embedded = folder == embedded_adapter_path()
    found = read_model(EMBEDDED if is_embedded else base)
    return replace(found, adapter=(EMBEDDED if is_embedded else name, rank))


def _weights(folder: Path, sizes: Mapping[str, int], config: Mapping[str, Any]) -> tuple[int, bool]:
    """Return the bytes of the weights in 16 bits, and whether a header tells their dtype."""
    from serve_app.weights.download import weight_patterns  # noqa: PLC0415  it imports the hub's client

    index = _json(folder / _INDEX) if _INDEX in sizes else {}
    stated = int((index.get("metadata") or {}).get("total_size") or 0)
    patterns = weight_patterns(list(sizes), sorted(set((index.get("weight_map") or {}).values())))
    names = sorted({name for pattern in patterns for name in matching(sizes, pattern) if "/" not in name})
    if not stated and not names:
        raise ModelFilesError(f"{folder}: has neither {_INDEX} nor weights (*.safetensors, *.bin or *.pt)")
    total, is_float32 = 0, "float32" in str(config.get("dtype") or config.get("torch_dtype"))
    headers = []
    for name in (name for name in names if name.endswith(".safetensors") and sizes[name] < 0):
        try:
            headers.append(_header(folder / name))
        except ModelFilesError:
            if not stated:
                raise  # else it may be a pointer of Git LFS, and the index is enough
        if stated:
            break
    for header in headers:
        parts = [each for key, each in header.items() if key != "__metadata__"]
        total += max((each["data_offsets"][1] for each in parts), default=0)
        is_float32 = bool(parts) and all(each["dtype"] == "F32" for each in parts)
    if not headers:
        total = sum(sizes[name] if sizes[name] >= 0 else (folder / name).stat().st_size for name in names)
    if not 0 < (total := stated or total) < 1 << 50:
        raise ModelFilesError(f"{folder}: {total} bytes of weights: must be more than 0, and less than 2^50")
    halved = 2 if is_float32 and not config.get("quantization_config") else 1
    return total // halved, bool(headers)


def _header(file: Path) -> Mapping[str, Any]:
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        return _parsed(f"{file}: header", opened.read(min(size, 100 << 20)))


def _json(file: Path) -> Mapping[str, Any]:
    if not file.exists():
        raise ModelFilesError(f"{file}: no such file, and the size of the model follows from it")
    return _parsed(str(file), file.read_bytes())


def _parsed(where: str, content: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ModelFilesError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise ModelFilesError(f"{where}: must be a JSON object, and is a {type(found).__name__}")
    return found
