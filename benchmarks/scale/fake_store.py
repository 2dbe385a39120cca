"""Ray's key-value store in memory, which counts calls and bytes. The names are those of `internal_kv`."""

from typing import Any

from ray.serve._private.common import DeploymentID, ReplicaID


class FakeStore:
    """Keys and values. `install` makes it the store of this process."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.replicas: list[tuple[str, str]] = []
        """Deployment and id of each replica that exists, for the list of named actors."""
        self.app = ""
        self.calls = self.bytes = 0

    def install(self) -> None:
        """Make this the store of all documents of this process."""
        from serve_app.wire import documents, phases  # noqa: PLC0415

        documents.internal_kv = self
        phases.list_named_actors = self.list_named_actors

    def take_counts(self) -> tuple[int, int]:
        """Return the calls and bytes since the last time."""
        counts, self.calls, self.bytes = (self.calls, self.bytes), 0, 0
        return counts

    def _internal_kv_put(self, key: str, value: bytes, *, overwrite: bool, namespace: str) -> bool:
        self._count(value)
        self.kept[key.encode()] = value
        return True

    def _internal_kv_get(self, key: str | bytes, *, namespace: str) -> bytes | None:
        return self._count(self.kept.get(key.encode() if isinstance(key, str) else key))

    def _internal_kv_del(self, key: str, *, namespace: str) -> None:
        self._count(b"")
        self.kept.pop(key.encode(), None)

    def _internal_kv_list(self, prefix: str, *, namespace: str) -> list[bytes]:
        self._count(b"")
        return [key for key in self.kept if key.startswith(prefix.encode())]

    def internal_kv_get_gcs_client(self) -> "FakeStore":
        """Return the client that gets many values at once."""
        return self

    def internal_kv_multi_get(self, keys: list[bytes], namespace: bytes) -> dict[bytes, bytes]:
        """Return the values of the keys that exist, by one call."""
        found = {key: self.kept[key] for key in keys if key in self.kept}
        self._count(b"".join(found.values()))
        return found

    def list_named_actors(self, all_namespaces: bool = False) -> list[dict[str, str]]:
        """Return the replicas as Ray lists them."""
        self._count(b"." * 60 * len(self.replicas))
        ids = (ReplicaID(name, DeploymentID(deployment, self.app)) for deployment, name in self.replicas)
        return [{"namespace": "serve", "name": each.to_full_id_str()} for each in ids]

    def _count(self, value: Any) -> Any:
        self.calls += 1
        self.bytes += len(value or b"")
        return value
