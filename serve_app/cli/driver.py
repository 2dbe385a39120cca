"""Ray's `serve run`, which also says what fails and ends when Serve is gone.

It is started as `python -m serve_app.cli.driver run FILE`. Ray's own goes on sleeping after `serve shutdown`
and after the loss of every node, and does not print why an application cannot be deployed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from threading import Event, Thread
from types import FrameType

import ray
from ray import serve
from ray._private.worker import get_dashboard_url
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve.schema import ServeStatus
from ray.serve.scripts import cli

from serve_app.cli.server_log import GONE, PREFIX

_PERIOD_S = 1.0
_MESSAGE_LINES = 12


def lost() -> str | None:
    """What is lost for good, or None. Ray restarts a controller that was only killed."""
    try:
        ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
    except ValueError:
        return "Serve's controller is gone for good, as after `serve shutdown`"
    if not any(node["Alive"] for node in ray.nodes()):
        return "no node of the cluster is alive"
    return None


def failures(status: ServeStatus) -> Iterator[tuple[str, list[str]]]:
    """Each application whose deployment has failed, with the last lines of what Serve says of it."""
    for name, application in status.applications.items():
        if application.status == "DEPLOY_FAILED":
            said = [application.message, *(each.message for each in application.deployments.values())]
            yield name, "\n".join(said).strip().splitlines()[-_MESSAGE_LINES:]


def main() -> None:
    """Run `serve run` with this process's arguments."""
    interrupted = Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupted.set()  # Serve will be shut down now, and its controller will be gone
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    # To a file, Python would write it in blocks; the file is read while the server starts.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    Thread(target=_watch, args=(interrupted,), daemon=True).start()
    cli()


def _watch(interrupted: Event) -> None:
    while not ray.is_initialized():
        time.sleep(_PERIOD_S)
    _say(f"Ray has started, with its dashboard at http://{get_dashboard_url()}")
    while not _serve_has_started():
        time.sleep(_PERIOD_S)
    deploying = True
    while not interrupted.wait(_PERIOD_S) and ray.is_initialized():
        try:
            found = lost()
            deploying = deploying and found is None and _deploying()
        except Exception:  # noqa: S112 the GCS does not answer; if it stays so, Ray ends this process
            continue
        if found is not None and not interrupted.is_set():
            _say(found)
            os._exit(GONE)  # the main thread sleeps, and shutting down what is gone would hang


def _serve_has_started() -> bool:
    try:
        return ray.is_initialized() and lost() is None
    except Exception:
        return False


def _deploying() -> bool:
    """Whether an application is still being deployed. Prints those that have failed."""
    status = serve.status()
    found = dict(failures(status))
    for name, lines in found.items():
        _say(f"application {name!r} could not be deployed:")
        for line in lines:
            _say(f"  {line}")
    states = [application.status for application in status.applications.values()]
    return not found and not (states and all(state == "RUNNING" for state in states))


def _say(line: str) -> None:
    print(f"{PREFIX}{line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
