"""HAProxy's own answers, in the shape of the API's other errors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Answer:
    """An error that HAProxy answers itself."""

    status: int
    reason: str
    code: str
    message: str
    retry_after_s: int | None = None

    @property
    def body(self) -> str:
        """The JSON document, as `serve_app.api.errors` writes it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": self.message, "type": kind, "param": None, "code": self.code}
        return json.dumps({"error": error}, separators=(",", ":"))

    @property
    def page(self) -> str:
        """The whole HTTP response, for HAProxy's `errorfile`."""
        retry = [] if self.retry_after_s is None else [f"Retry-After: {self.retry_after_s}"]
        head = [
            f"HTTP/1.1 {self.status} {self.reason}",
            "Content-Type: application/json",
            f"Content-Length: {len(self.body)}",
            "Connection: close",
            *retry,
        ]
        return "\r\n".join([*head, "", self.body])


UNAVAILABLE = Answer(503, "Service Unavailable", "ingress_unavailable", "No ingress replica is up.", 5)
NOT_DEPLOYED = Answer(503, "Service Unavailable", "not_deployed", "No application is deployed yet.", 5)
NOT_FOUND = Answer(404, "Not Found", "not_found", "No application has this path.")
ERROR_PAGES = (
    Answer(400, "Bad Request", "invalid_request", "This is not a valid HTTP request."),
    Answer(408, "Request Timeout", "request_timeout", "The request did not arrive in time."),
    Answer(500, "Internal Server Error", "internal_error", "The proxy failed to answer this request."),
    Answer(502, "Bad Gateway", "ingress_lost", "The ingress replica ended before it answered.", 1),
    UNAVAILABLE,
    Answer(504, "Gateway Timeout", "ingress_timeout", "The ingress replica did not answer in time.", 5),
)
NOT_READY = json.dumps({"ready": False, "models": {}, "reason": UNAVAILABLE.message}, separators=(",", ":"))
HEALTHY = '{"status":"ok"}'


def write_pages(folder: Path) -> None:
    """Write the error pages that the amended configuration names."""
    for answer in ERROR_PAGES:
        (folder / f"{answer.status}.http").write_bytes(answer.page.encode())
