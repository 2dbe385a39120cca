"""Small JSON documents in Ray's key-value store: how processes of one application tell each other things.

The policy runs in Ray Serve's controller, which no replica may call, and sees of replicas only the
numbers they report. Knobs travel to it, and decisions away from it, through here.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

from ray.experimental import internal_kv

NAMESPACE = "tideserve"

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


def _key(kind: str, app: str) -> str:
    return f"{kind}/{app}"
