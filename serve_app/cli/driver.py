"""Ray's `serve run`, which ends when there is no Serve any more: `python -m serve_app.cli.driver run FILE`.

Ray's own goes on sleeping after `serve shutdown`, and after the loss of every node.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from threading import Event, Thread
from types import FrameType

import ray
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve.scripts import cli

GONE = 3
"""Exit status: Serve is gone."""

_PERIOD_S = 1.0


def lost() -> str | None:
    """What is lost that nobody brings back, or None. Ray restarts a controller that was only killed."""
    try:
        ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
    except ValueError:
        return "Serve's controller is gone for good, as after `serve shutdown`"
    if not any(node["Alive"] for node in ray.nodes()):
        return "no node of the cluster is alive"
    return None


def main() -> None:
    """`serve run` with this process's arguments."""
    interrupted = Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupted.set()  # Serve is about to be shut down, and its controller to be gone
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    Thread(target=_watch, args=(interrupted,), daemon=True).start()
    cli()


def _watch(interrupted: Event) -> None:
    while not _serve_has_started():
        time.sleep(_PERIOD_S)
    while not interrupted.wait(_PERIOD_S) and ray.is_initialized():
        try:
            found = lost()
        except Exception:  # noqa: S112 the GCS does not answer; should it stay so, Ray ends this process
            continue
        if found is not None and not interrupted.is_set():
            print(f"tideserve: {found}", file=sys.stderr, flush=True)
            os._exit(GONE)  # the main thread sleeps, and shutting down what is gone would hang


def _serve_has_started() -> bool:
    try:
        return ray.is_initialized() and lost() is None
    except Exception:
        return False


if __name__ == "__main__":
    main()
