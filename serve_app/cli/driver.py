"""Ray's `serve run`, which also prints failures, and ends when Serve is gone.

Started as `python -m serve_app.cli.driver run FILE`. Ray's own `serve run` sleeps on after `serve shutdown`
or the loss of every node. It does not print why an application cannot be deployed.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread
from types import FrameType

import ray
from ray._private import parameter
from ray._private.worker import get_dashboard_url
from ray.serve._private.application_state import StatusOverview
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve.generated.serve_pb2 import StatusOverview as StatusOverviewProto
from ray.serve.scripts import cli

from serve_app.cli.config_file import read_config
from serve_app.cli.server_log import GONE, PREFIX
from serve_app.zygote.warm_nodes import warm

_PERIOD_S = 1.0
_RUNS_PERIOD_S = 5.0
"""While every application runs, the controller is asked for their statuses only so often."""
_ANSWER_S = 5.0
_MESSAGE_LINES = 12


def lost() -> str | None:
    """Return a sentence if Serve is lost for good, else None. Ray restarts a killed controller."""
    try:
        ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
    except ValueError:
        return "Serve's controller is gone for good, as after `serve shutdown`"
    if not any(node["Alive"] for node in ray.nodes()):
        return "no node of the cluster is alive"
    return None


def statuses() -> list[StatusOverview]:
    """Return every application's status from the controller's memory.

    `serve.status()` would block the controller's event loop while it reads every configuration from the GCS.
    """
    controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
    answer = ray.get(controller.list_serve_statuses.remote(), timeout=_ANSWER_S)
    return [StatusOverview.from_proto(StatusOverviewProto.FromString(each)) for each in answer]


def failures(applications: Iterable[StatusOverview]) -> Iterator[tuple[str, list[str]]]:
    """Yield each application whose deployment has failed, with the last lines of Serve's message."""
    for each in applications:
        if each.app_status.status == "DEPLOY_FAILED":
            said = [each.app_status.message, *(one.message for one in each.deployment_statuses)]
            yield each.name, "\n".join(said).strip().splitlines()[-_MESSAGE_LINES:]


def main() -> None:
    """Run `serve run` with this process's arguments."""
    interrupted = Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupted.set()  # Serve will be shut down now, and its controller will be gone
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    take_any_agent_port()
    # To a file, Python would write it in blocks; the file is read while the server starts.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    Thread(target=_watch, args=(interrupted,), daemon=True).start()
    try:
        cli()
    except BaseException as error:
        if interrupted.is_set():
            raise
        if not isinstance(error, SystemExit):  # Ray has printed the failure before a SystemExit
            traceback.print_exc()
        # Python's own exit would end Ray's processes first, and these would seem to have failed.
        os._exit(1)


def take_any_agent_port() -> None:
    """Have the Ray that this process starts choose any port for its dashboard agent's HTTP server.

    Ray's default is port 52365, and no variable changes it. The agent of a second cluster on the machine
    tries to bind this port for 3 s, collects no metrics meanwhile, and then runs without the server for jobs.
    """
    parameter.RayParams = partial(parameter.RayParams, dashboard_agent_listen_port=0)


def _watch(interrupted: Event) -> None:
    while not ray.is_initialized():
        time.sleep(_PERIOD_S)
    with suppress(Exception):  # a client of a remote Ray does not know the address
        if url := get_dashboard_url():
            say(f"Ray has started, with its dashboard at http://{url}")
            # An ingress replica would warm the nodes 10 s later.
            models = read_config(Path(sys.argv[2])).forked
            Thread(target=warm, args=(models, {}), daemon=True).start()
    started = False
    reported: set[str] = set()
    asks_at = 0.0
    while not interrupted.wait(_PERIOD_S) and ray.is_initialized():
        try:
            found = lost()
            if found is None:
                started = True
                if (now := time.monotonic()) >= asks_at:
                    applications = statuses()
                    report_failures(dict(failures(applications)), reported)
                    runs = all(each.app_status.status == "RUNNING" for each in applications)
                    asks_at = now + (_RUNS_PERIOD_S if runs else 0.0)
        except Exception:  # noqa: S112 the GCS does not answer; Ray ends this process if that lasts
            continue
        # Within this time `tideserve run` finds and names the process of Ray that has ended.
        if started and found is not None and not interrupted.wait(_PERIOD_S):
            say(found)
            os._exit(GONE)  # the main thread sleeps, and a shutdown without a controller would hang


def report_failures(failed: Mapping[str, list[str]], reported: set[str]) -> None:
    """Print why applications cannot be deployed, except those `reported` before. Updates `reported`."""
    for name in failed.keys() - reported:
        say(f"application {name!r} could not be deployed:", *(f"  {line}" for line in failed[name]))
    reported.clear()
    reported.update(failed)


def say(*lines: str) -> None:
    """Print lines for the user of `tideserve run`."""
    # One call, and a line end first: Ray's threads also print here, and write a line's end separately.
    sys.stderr.write("\n" + "".join(f"{PREFIX}{line}\n" for line in lines))
    sys.stderr.flush()


if __name__ == "__main__":
    main()
