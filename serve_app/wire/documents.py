"""Small JSON documents in Ray's key-value store: how processes of one application tell each other things.

The policy runs in Ray Serve's controller, which no replica may call, and sees of replicas only the
numbers they report. Knobs travel to it, and decisions away from it, through here.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ray.experimental import internal_kv

logger = logging.getLogger("ray.serve")

NAMESPACE = "tideserve"

_T = TypeVar("_T")

KNOBS = "knobs"
"""Written by ingress replicas: the knobs in force."""
STATUS = "status"
"""Written by the policy, at most once a second: where every model stands."""
DECISIONS = "decisions"
"""Written by the policy: the ring of decision records."""
LEARNED = "learned"
"""Written by the policy: what it has learned, so that a reset of the policy does not lose it."""


def put_document(kind: str, app: str, document: Any) -> None:
    """Store `document` as the only one of its kind for `app`. A call to Ray's GCS, about 0.5 ms."""
    data = zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 1)
    internal_kv._internal_kv_put(_key(kind, app), data, overwrite=True, namespace=NAMESPACE)


def get_document(kind: str, app: str) -> Any | None:
    """The document, or None while nobody has written one."""
    data = internal_kv._internal_kv_get(_key(kind, app), namespace=NAMESPACE)
    return None if data is None else json.loads(zlib.decompress(data))


def read_document(kind: str, app: str, parse: Callable[[Any], _T]) -> _T | None:
    """What `parse` makes of the document; None while there is none that can be read.

    One that is damaged, or that another version wrote, is logged once and otherwise as good as absent.
    """
    key = _key(kind, app)
    data = internal_kv._internal_kv_get(key, namespace=NAMESPACE)
    return None if data is None else readable(key, lambda: parse(json.loads(zlib.decompress(data))))


def readable(key: str, parse: Callable[[], _T]) -> _T | None:
    """What `parse` makes of the document at `key`; None, and logged once, if it cannot be read."""
    try:
        found = parse()
    except Exception as error:  # whatever a stranger's bytes make it raise
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
"""What has been logged of documents that cannot be read, by key."""


def parse_status(document: Any) -> dict[str, Any]:
    """A `STATUS` document, if it has what readers of it go by.

    Raises:
        KeyError, TypeError, ValueError: if it has not.
    """
    float(document["at"])
    for model in document["models"].values():
        for name in ("ready", "starting", "pending", "pending_s"):
            float(model[name])
        if not isinstance(model["reason"], str) or not isinstance(model["phases_s"], Mapping):
            raise TypeError("reason must be a text, and phases_s a mapping")
        for seconds in (model["cold_start_s"] or 0.0, *model["phases_s"].values()):
            float(seconds)
    return dict(document)


def parse_records(document: Any) -> tuple[dict[str, Any], ...]:
    """A `DECISIONS` document. Raises if its records lack a number or a model."""
    return tuple({**record, "seq": int(record["seq"]), "model": str(record["model"])} for record in document)


def _key(kind: str, app: str) -> str:
    return f"{kind}/{app}"
