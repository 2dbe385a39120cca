"""The memory that requests may take in one ingress replica, shared among its clients and models."""

from collections import Counter

from serve_app.api.errors import body_memory_full

_UNREAD = "other requests that are being read"
KEPT = "streams that another replica can go on with"


class BodyMemory:
    """Counts the bytes of bodies that are being read, of those whose requests have no answer yet, and of what
    is kept of streams to continue them.

    All of them may have `limit_bytes`, and no group of requests more than what is free beside it (dynamic
    thresholds: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches",
    1998). So one alone gets half of the limit, two get a third each, n of them 1/(n + 1), and a newcomer
    always finds that much free. A request belongs to the group of its API key, where keys are needed, and to
    the group of its model. Until its body has told the model, a request without a key belongs to the group
    of those that are being read. What is kept of streams is a group, too. For one event loop.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.by_group: Counter[str] = Counter()


class BodyShare:
    """The bytes of one request's body, or of what is kept of its stream. `release` them in the end.

    Args:
        group: The request's API key if keys are needed, or `KEPT`.
    """

    def __init__(self, memory: BodyMemory, group: str | None) -> None:
        self._memory = memory
        self._groups = [_UNREAD if group is None else group]
        self._bytes = 0

    def expect(self, length: int) -> None:
        """Refuse a body of `length` bytes that does not fit now, before any of it is read.

        Nothing is reserved: a client that declares a large body and sends none must not keep others out.

        Raises:
            ApiError: 429.
        """
        self._check(self._groups, length)

    def grow(self, more: int) -> None:
        """Take `more` bytes. Raises ApiError 429 where they do not fit, and takes none."""
        self._check(self._groups, more)
        self._count(self._groups, more)
        self._memory.used_bytes += more
        self._bytes += more

    def belongs_to(self, model: str) -> None:
        """Count the body, now read, for `model`. Raises ApiError 429 if its share is used up."""
        group = f"model {model!r}"
        self._check([group], self._bytes, counted=self._bytes)
        if _UNREAD in self._groups:
            self._count([_UNREAD], -self._bytes)
            self._groups.remove(_UNREAD)
        self._count([group], self._bytes)
        self._groups.append(group)

    def release(self) -> None:
        """Give everything back. A second call does nothing."""
        self._count(self._groups, -self._bytes)
        self._memory.used_bytes -= self._bytes
        self._bytes = 0

    def __del__(self) -> None:
        # A response that is dropped before it is sent must not take its bytes along for ever.
        self.release()

    def _count(self, groups: list[str], more: int) -> None:
        by_group = self._memory.by_group
        for group in groups:
            by_group[group] += more
            if not by_group[group]:
                del by_group[group]

    def _check(self, groups: list[str], more: int, counted: int = 0) -> None:
        memory = self._memory
        free = memory.limit_bytes - memory.used_bytes - more + counted
        for group in groups:
            if memory.by_group[group] + more > free:
                raise body_memory_full(
                    memory.limit_bytes, memory.used_bytes, group, memory.by_group[group], more
                )
