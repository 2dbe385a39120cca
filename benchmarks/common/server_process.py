"""A server that a benchmark starts, measures and stops, with every process below it."""

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from benchmarks import REPOSITORY
from benchmarks.common import process_tree, supervise

HOST = "127.0.0.1"
_STOP_S = supervise.POLITE_S + supervise.TERM_S + 20.0


class ServerError(Exception):
    """A server did not start, died, or could not be stopped."""


class ServerProcess:
    """One server under its supervisor."""

    def __init__(
        self, name: str, command: Sequence[str], env: Mapping[str, str], port: int, log: Path
    ) -> None:
        self.name = name
        self.port = port
        self.log = log
        self._shared_memory: set[Path] = set()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as out:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-m", supervise.__name__, str(os.getpid()), *command],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=REPOSITORY,
                start_new_session=True,  # Ctrl-C is for the benchmark, which then stops its servers.
            )

    def wait_ready(self, path: str, timeout_s: float) -> float:
        """Return the seconds until GET `path` answers 200. Raises ServerError with the end of the log."""
        started = time.monotonic()
        answer = "no answer"
        while (waited := time.monotonic() - started) < timeout_s:
            if self._supervisor.poll() is not None:
                raise ServerError(f"{self.name} ended while starting; {self.log_tail()}")
            answer = self._get(path)
            if answer == "200":
                return waited
            time.sleep(0.25)
        raise ServerError(
            f"{self.name}: GET {path} gave {answer!r}, not 200, for {timeout_s:.0f} s; {self.log_tail()}"
        )

    def _get(self, path: str) -> str:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", path)
            return str(connection.getresponse().status)
        except (OSError, http.client.HTTPException) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            connection.close()

    def cpu_seconds(self) -> float:
        """CPU of the whole tree so far, user and system, ended processes included."""
        return process_tree.cpu_s(self.processes())

    def memory_bytes(self) -> int:
        """Proportional set size of the tree: shared memory counts once."""
        tree = self.processes()
        self._shared_memory |= process_tree.shared_memory(tree)
        return process_tree.pss_bytes(tree)

    def processes(self) -> list[psutil.Process]:
        """The supervisor and every process below it. Raises ServerError if the server has ended."""
        self.check_alive()
        return process_tree.tree(self._supervisor.pid)

    def check_alive(self) -> None:
        """Raise ServerError with the end of the log if the server has ended."""
        if self._supervisor.poll() is not None:
            raise ServerError(f"{self.name} died; {self.log_tail()}")

    def stop(self) -> None:
        """End the server and every process below it. Raises ServerError if one stays alive."""
        try:
            self._stop()
        finally:
            # A replica that Ray kills cannot unlink vLLM's message queues (160 to 240 MB each).
            for path in self._shared_memory:
                path.unlink(missing_ok=True)

    def _stop(self) -> None:
        if self._supervisor.poll() is not None:
            return  # It ended by itself, and its supervisor has cleaned up.
        self._shared_memory |= process_tree.shared_memory(process_tree.tree(self._supervisor.pid))
        self._supervisor.send_signal(signal.SIGTERM)
        try:
            code = self._supervisor.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            left = process_tree.tree(self._supervisor.pid)
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            raise ServerError(
                f"{self.name} did not stop within {_STOP_S:.0f} s; killed {len(left)} processes"
            ) from None
        if code != 0:
            raise ServerError(f"{self.name}: its supervisor ended with exit code {code}; {self.log_tail()}")

    def log_tail(self, lines: int = 25) -> str:
        """The end of the server's log, for error messages."""
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            return f"its log cannot be read: {error}"
        tail = "\n".join(text.splitlines()[-lines:])
        return f"the end of {self.log}:\n{tail}"
