"""Ray's key-value store, in memory."""

from __future__ import annotations


class StubKv:
    """Keys and values as bytes, lists by prefix. Names and arguments are those of `internal_kv`.

    Set `fails` to have every call raise, as when Ray's GCS is gone.
    """

    def __init__(self) -> None:
        self.kept: dict[tuple[str, bytes], bytes] = {}
        self.written: list[str] = []
        """The keys put, in order."""
        self.fails: Exception | None = None

    def _internal_kv_put(self, key: str, value: bytes, *, overwrite: bool, namespace: str) -> None:
        self._available()
        assert overwrite
        assert isinstance(value, bytes)
        self.kept[namespace, key.encode()] = value
        self.written.append(key)

    def _internal_kv_get(self, key: str | bytes, *, namespace: str) -> bytes | None:
        self._available()
        return self.kept.get((namespace, _encoded(key)))

    def _internal_kv_del(self, key: str, *, namespace: str) -> None:
        self._available()
        self.kept.pop((namespace, key.encode()), None)

    def _internal_kv_list(self, prefix: str, *, namespace: str) -> list[bytes]:
        self._available()
        return [key for space, key in self.kept if space == namespace and key.startswith(prefix.encode())]

    def _available(self) -> None:
        if self.fails is not None:
            raise self.fails


def _encoded(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key
