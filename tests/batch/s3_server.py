"""An S3 server of the tests: moto, in a process and an environment of its own."""

import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

S3_PYTHON = Path(__file__).parents[2] / ".venv/moto/bin/python"
_PORT = re.compile(r"Running on (http://127\.0\.0\.1:[0-9]+)")
_SCOPE = "tide/20260101/us-east-1/s3/aws4_request"
_SIGNED = f"AWS4-HMAC-SHA256 Credential={_SCOPE}, SignedHeaders=host, Signature=0"


@contextmanager
def s3_server() -> Iterator[str]:
    """Run a server with a bucket `tide`, and give its URL."""
    command = [str(S3_PYTHON), "-m", "moto.server", "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            found = next(filter(None, map(_PORT.search, server.stderr)))
            threading.Thread(target=list, args=(server.stderr,), daemon=True).start()  # a full pipe blocks
            reply = httpx.put(f"{found[1]}/tide", headers={"Authorization": _SIGNED}, timeout=30)
            assert reply.status_code == 200, reply.text
            yield found[1]
        finally:
            server.terminate()
