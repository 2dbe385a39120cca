"""Small JSON documents in Ray's key-value store, through which the processes of an application communicate.

The policy runs in Ray Serve's controller. Replicas may not call the controller, and can only report numbers
to it. So knobs reach the policy, and decisions leave it, through these documents.
"""

import json
import logging
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ray.experimental import internal_kv

logger = logging.getLogger("ray.serve")

NAMESPACE = "tideserve"

_T = TypeVar("_T")

BATCHES = "batches"
"""Written by the batch runner: what is left of the open batches of each model."""
KNOBS = "knobs"
"""Written by ingress replicas: the knobs in force."""
STATUS = "status"
"""Written by the policy: the state of every model."""
DECISIONS = "decisions"
"""Written by the policy: the ring of decision records."""
WARMED = "warmed"
"""Written by ingress replicas: `(node, model)` for each node with a zygote that has imported vLLM for it."""
QUOTAS = "quota_total"
"""Written by one of the ingress replicas: the demand of API keys at all of them."""
LEARNED = "learned"
"""Written by the policy: its learned values, for the policy of the next controller."""


def put_document(kind: str, app: str, document: Any) -> None:
    """Store `document` as the only one of its kind for `app`, by a call to Ray's GCS of about 0.5 ms."""
    write(_key(kind, app), zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 1))


def read_document(kind: str, app: str, parse: Callable[[Any], _T]) -> _T | None:
    """Return the parsed document; None if it is absent or cannot be read.

    An unreadable document, damaged or of another version, is logged once.
    """
    key = _key(kind, app)
    data = internal_kv._internal_kv_get(key, namespace=NAMESPACE)
    return None if data is None else _parsed(key, data, lambda data: parse(json.loads(zlib.decompress(data))))


def write(key: str, data: bytes) -> None:
    """Store `data` at `key`, by a call to Ray's GCS of about 0.5 ms."""
    internal_kv._internal_kv_put(key, data, overwrite=True, namespace=NAMESPACE)


def claim(key: str) -> bool:
    """Create `key`, and return whether it was absent. `erase` removes it."""
    return not internal_kv._internal_kv_put(key, b"1", overwrite=False, namespace=NAMESPACE)


def keys(prefix: str) -> list[str]:
    """Return the keys under `prefix`."""
    return [key.decode() for key in internal_kv._internal_kv_list(prefix, namespace=NAMESPACE)]


def erase(key: str) -> None:
    """Remove `key`, if it exists."""
    internal_kv._internal_kv_del(key, namespace=NAMESPACE)


def read_all(prefix: str, parse: Callable[[bytes], _T]) -> dict[str, _T]:
    """Return all readable documents under `prefix`, by the rest of the key. Calls the GCS twice."""
    found: dict[str, _T] = {}
    listed = internal_kv._internal_kv_list(prefix, namespace=NAMESPACE)
    if not listed:
        return found
    client = internal_kv.internal_kv_get_gcs_client()
    for name, data in client.internal_kv_multi_get(listed, NAMESPACE.encode()).items():
        key = name.decode()
        if (parsed := _parsed(key, data, parse)) is not None:
            found[key.removeprefix(prefix)] = parsed
    return found


def _parsed(key: str, data: bytes, parse: Callable[[bytes], _T]) -> _T | None:
    try:
        found = parse(data)
    except Exception as error:  # anything, because the bytes may be anything
        why = f"{type(error).__name__}: {error}"[:500]
        if _unreadable.get(key) != why:
            if len(_unreadable) >= _REMEMBERED:
                _unreadable.clear()
            _unreadable[key] = why
            logger.warning("the document %s in Ray's key-value store cannot be read: %s", key, why)
        return None
    _unreadable.pop(key, None)
    return found


_REMEMBERED = 1000
_unreadable: dict[str, str] = {}
"""The error last logged for each document that cannot be read, by key."""


def parse_status(document: Any) -> dict[str, Any]:
    """Return a `STATUS` document with all that its readers use.

    Raises:
        KeyError, TypeError, ValueError: a part is missing or invalid.
    """
    float(document["at"])
    for model in document["models"].values():
        for name in ("ready", "starting", "pending", "pending_s"):
            float(model[name])
        if not isinstance(model["reason"], str) or not isinstance(model["phases_s"], Mapping):
            raise TypeError("reason must be a text, and phases_s a mapping")
        for phases in (model[name] for name in ("phases_s", "warm_node_phases_s", "cold_node_phases_s")):
            for seconds in phases.values():
                float(seconds)
        float(model["cold_start_s"] or 0.0)
        if line := model.get("line"):
            float(line["place"]), float(line["eta_s"] or 0.0)
    return dict(document)


def parse_warmed(document: Any) -> frozenset[tuple[str, str]]:
    """Return a `WARMED` document. Raises ValueError or TypeError if it is invalid."""
    return frozenset((str(node), str(model)) for node, model in document)


def parse_records(document: Any) -> tuple[dict[str, Any], ...]:
    """Return a `DECISIONS` document. Raises if a record lacks `seq` or `model`."""
    return tuple({**record, "seq": int(record["seq"]), "model": str(record["model"])} for record in document)


def _key(kind: str, app: str) -> str:
    return f"{kind}/{app}"
