"""Ray's key-value store in memory, which counts calls and bytes. The names are those of `internal_kv`."""

from typing import Any
from unittest.mock import patch

from ray.serve._private.common import DeploymentID, ReplicaID


class FakeStore:
    """The store of this process from the start of `install`."""

    def __init__(self, app: str) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.replicas: list[tuple[str, str]] = []
        """Deployment and id of each replica that Ray lists as an actor."""
        self._app, self._calls, self._bytes = app, 0, 0

    def install(self) -> None:
        """Make this the store of all documents of this process."""
        patch("serve_app.wire.documents.internal_kv", self).start()
        patch("serve_app.wire.phases.list_named_actors", self.list_named_actors).start()

    def take_counts(self) -> tuple[int, int]:
        """Return the calls and bytes since the last time."""
        counts, self._calls, self._bytes = (self._calls, self._bytes), 0, 0
        return counts

    def _internal_kv_put(self, key: str, value: bytes, *, overwrite: bool, namespace: str) -> None:
        self.kept[key.encode()] = self._count(value)

    def _internal_kv_get(self, key: str, *, namespace: str) -> Any:
        return self._count(self.kept.get(key.encode()))

    def _internal_kv_list(self, prefix: str, *, namespace: str) -> list[bytes]:
        found = [key for key in self.kept if key.startswith(prefix.encode())]
        self._count(b"".join(found))
        return found

    def internal_kv_get_gcs_client(self) -> "FakeStore":
        """Return the client that gets many values at once."""
        return self

    def internal_kv_multi_get(self, keys: list[bytes], namespace: bytes) -> dict[bytes, bytes]:
        """Return the values of the keys."""
        found = {key: self.kept[key] for key in keys}
        self._count(b"".join(found.values()))
        return found

    def list_named_actors(self, all_namespaces: bool) -> list[dict[str, str]]:
        """Return the replicas as Ray lists them."""
        ids = [ReplicaID(name, DeploymentID(deployment, self._app)) for deployment, name in self.replicas]
        self._count(b"." * 60 * len(ids))
        return [{"namespace": "serve", "name": each.to_full_id_str()} for each in ids]

    def _count(self, value: Any) -> Any:
        self._calls += 1
        self._bytes += len(value or b"")
        return value
