"""Ray's key-value store, in memory."""

from typing import Any

from serve_app.wire.documents import read_document


def stored(kind: str, app: str) -> Any:
    """Return the document as it is in the store."""
    return read_document(kind, app, lambda document: document)


class StubKv:
    """Keys and values as bytes, lists by prefix. Names and arguments are those of `internal_kv`.

    Set `fails` to have every call raise, as when Ray's GCS is gone. Beside it, the replicas that Ray knows.
    """

    def __init__(self) -> None:
        self.kept: dict[tuple[str, bytes], bytes] = {}
        self.written: list[str] = []
        """The keys put, in order."""
        self.calls: list[str] = []
        """The lists asked for, in order."""
        self.bytes = 0
        """The bytes of all values put and got."""
        self.fails: Exception | None = None
        self.replicas: set[tuple[str, str, str]] = set()
        """Application, deployment and id of the replicas that exist."""

    def _internal_kv_put(self, key: str, value: bytes, *, overwrite: bool, namespace: str) -> bool:
        """Return whether the key was there already; it is written if it was not, or with `overwrite`."""
        self._available()
        assert isinstance(value, bytes)
        self.bytes += len(value)
        there = (namespace, key.encode()) in self.kept
        if overwrite or not there:
            self.kept[namespace, key.encode()] = value
            self.written.append(key)
        return there

    def _internal_kv_get(self, key: str | bytes, *, namespace: str) -> bytes | None:
        self._available()
        value = self.kept.get((namespace, _encoded(key)))
        self.bytes += len(value or b"")
        return value

    def internal_kv_get_gcs_client(self) -> "StubKv":
        return self

    def internal_kv_multi_get(self, keys: list[bytes], namespace: bytes) -> dict[bytes, bytes]:
        found = {key: self._internal_kv_get(key, namespace=namespace.decode()) for key in keys}
        return {key: value for key, value in found.items() if value is not None}

    def _internal_kv_del(self, key: str, *, namespace: str) -> None:
        self._available()
        self.kept.pop((namespace, key.encode()), None)

    def _internal_kv_list(self, prefix: str, *, namespace: str) -> list[bytes]:
        self._available()
        self.calls.append("list")
        return [key for space, key in self.kept if space == namespace and key.startswith(prefix.encode())]

    def list_named_actors(self, all_namespaces: bool = False) -> list[dict[str, str]]:
        """What `ray.util.list_named_actors` says: a replica is a named actor."""
        self._available()
        assert all_namespaces
        self.calls.append("list_named_actors")
        names = ["SERVE_REPLICA::" + "#".join(replica) for replica in sorted(self.replicas)]
        return [{"namespace": "serve", "name": name} for name in ("SERVE_CONTROLLER_ACTOR", *names)]

    def _available(self) -> None:
        if self.fails is not None:
            raise self.fails


def _encoded(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key
