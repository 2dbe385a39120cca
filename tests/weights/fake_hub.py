"""A Hugging Face hub in this process: the few routes that its client asks, over real HTTP."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

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

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Answers at the address it yields."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                hub._answer(self)

            def do_GET(self) -> None:
                hub._answer(self)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        parts = unquote(urlsplit(request.path).path).strip("/").split("/")
        if self.broken:
            return self._send(request, 500, b"")
        if parts[:2] == ["api", "models"]:
            return self._tell(request, "/".join(parts[2:4]), parts[4:])
        return self._give(request, "/".join(parts[:2]), parts[3], "/".join(parts[4:]))

    def _tell(self, request: BaseHTTPRequestHandler, name: str, rest: list[str]) -> None:
        if self.tells is not None:
            self.tells -= 1
            if self.tells < 0:
                return self._send(request, 500, b"")
        files = self.repositories.get(name)
        if files is None:
            return self._send(request, 404, b"", {"X-Error-Code": "RepoNotFound"})
        if rest[1] not in ("main", COMMIT):
            return self._send(request, 404, b"", {"X-Error-Code": "RevisionNotFound"})
        told: object = [
            {"type": "file", "path": path, "size": len(content), "oid": _oid(content)}
            for path, content in files.items()
        ]
        if rest[0] == "revision":
            siblings = [{"rfilename": path, "size": len(content)} for path, content in files.items()]
            told = {"id": name, "sha": COMMIT, "siblings": siblings}
        return self._send(request, 200, json.dumps(told).encode(), {"Content-Type": "application/json"})

    def _give(self, request: BaseHTTPRequestHandler, name: str, revision: str, path: str) -> None:
        if name in self.gated:
            words = f"Access is restricted. Visit https://huggingface.co/{name} to ask for access."
            return self._send(request, 403, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": words})
        if revision not in ("main", COMMIT) or path not in self.repositories[name]:
            return self._send(request, 404, b"", {"X-Error-Code": "EntryNotFound"})
        content = self.repositories[name][path]
        if request.command == "GET":
            self.sent.append(path)
        return self._send(request, 200, content, {"ETag": f'"{_oid(content)}"', "X-Repo-Commit": COMMIT})

    def _send(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        content: bytes,
        headers: dict[str, str] | None = None,
    ) -> None:
        request.send_response(status)
        for name, value in (headers or {}).items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(content)


def _oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
