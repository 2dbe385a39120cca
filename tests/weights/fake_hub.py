"""A Hugging Face hub in this process: the few routes that its client asks, over real HTTP."""

import hashlib
from contextlib import AbstractContextManager
from urllib.parse import unquote, urlsplit

from tests.http_server import Answer, serving

COMMIT = "c0ffee" + "0" * 34


class FakeHub:
    """Repositories by name: their files. `gated` ones show what they have and give nothing."""

    def __init__(
        self, repositories: dict[str, dict[str, bytes]], gated: frozenset[str] = frozenset()
    ) -> None:
        self.repositories = repositories
        self.gated = gated
        self.broken = False
        self.tells: int | None = None
        """How often it tells what a repository has before it fails to; None for ever."""
        self.sent: list[str] = []
        """Files that were given out."""

    def serving(self) -> AbstractContextManager[str]:
        """Answers at the address it yields."""
        return serving(self._answer)

    def _answer(self, method: str, url: str, body: bytes) -> Answer:
        parts = unquote(urlsplit(url).path).strip("/").split("/")
        if self.broken:
            return 500, b""
        if parts[:2] == ["api", "models"]:
            return self._tell("/".join(parts[2:4]), parts[4:])
        return self._give(method, "/".join(parts[:2]), parts[3], "/".join(parts[4:]))

    def _tell(self, name: str, rest: list[str]) -> Answer:
        if self.tells is not None:
            self.tells -= 1
            if self.tells < 0:
                return 500, b""
        files = self.repositories.get(name)
        if files is None:
            return 404, b"", {"X-Error-Code": "RepoNotFound"}
        if rest[1] not in ("main", COMMIT):
            return 404, b"", {"X-Error-Code": "RevisionNotFound"}
        if rest[0] == "revision":
            siblings = [{"rfilename": path, "size": len(content)} for path, content in files.items()]
            return 200, {"id": name, "sha": COMMIT, "siblings": siblings}
        return 200, [
            {"type": "file", "path": path, "size": len(content), "oid": _oid(content)}
            for path, content in files.items()
        ]

    def _give(self, method: str, name: str, revision: str, path: str) -> Answer:
        if name in self.gated:
            words = f"Access is restricted. Visit https://huggingface.co/{name} to ask for access."
            return 403, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": words}
        if revision not in ("main", COMMIT) or path not in self.repositories[name]:
            return 404, b"", {"X-Error-Code": "EntryNotFound"}
        content = self.repositories[name][path]
        if method == "GET":
            self.sent.append(path)
        return 200, content, {"ETag": f'"{_oid(content)}"', "X-Repo-Commit": COMMIT}


def _oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
