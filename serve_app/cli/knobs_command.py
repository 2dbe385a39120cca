"""`tideserve knobs`: print and change the knobs of a running application without restarting anything."""

import argparse
import time
from collections.abc import Callable, Mapping
from typing import Any

from serve_app.cli.command_error import CommandError
from serve_app.cli.dashboard import Dashboard, Deployed, choose, default_address, redeployment, rollout
from serve_app.cli.knob_changes import (
    INGRESS_SCOPE,
    changed,
    choose_scope,
    differences,
    knob_table,
    parse_arguments,
    snippet,
)
from serve_app.settings import knob_defaults, load_settings
from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.settings.user_config import read_user_config

_POLL_S = 0.25
_TIMEOUT_S = 120.0


def add_command(commands: Any) -> None:
    """Register `knobs` with its `get` and `set`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "knobs",
        help="print or change the autoscaling knobs of a running application",
        description="Print or change the autoscaling knobs of a running application.",
        epilog="`tideserve knobs set --help` explains how to change knobs.",
    )
    parser.set_defaults(command=get_knobs)
    _add_target(parser, default_address())
    actions = parser.add_subparsers(metavar="ACTION")
    get = actions.add_parser("get", help="print the knobs in force; the default action")
    _add_target(get)
    change = actions.add_parser(
        "set",
        help="change knobs without a restart",
        usage="tideserve knobs set [-h] [--app NAME] [--address URL] [--dry-run] [MODEL] name=value ...",
        description="Change the knobs of MODEL. The word `ingress` instead of MODEL selects the knobs of the "
        "ingress. MODEL may be left out if the application has one model. Values are YAML. name=default "
        "resets a knob to its default.",
    )
    _add_target(change)
    change.add_argument("--dry-run", action="store_true", help="print the changes without sending them")
    change.add_argument("arguments", nargs="+", metavar="[MODEL] name=value", help="a knob and its new value")
    change.set_defaults(command=set_knobs)


def _add_target(parser: argparse.ArgumentParser, address: str | None = None) -> None:
    """Add options that are accepted before and after the action. Without `address`, they have no default."""
    app, url = (argparse.SUPPRESS, argparse.SUPPRESS) if address is None else (None, address)
    app_help = "application; required if several Tideserve applications are deployed"
    parser.add_argument("--app", metavar="NAME", default=app, help=app_help)
    address_help = "URL of Ray's dashboard; by default $RAY_DASHBOARD_ADDRESS or http://127.0.0.1:8265"
    parser.add_argument("--address", metavar="URL", default=url, help=address_help)


def get_knobs(options: argparse.Namespace) -> int:
    """Print every knob in force, with a star at each knob that differs from its default."""
    dashboard = Dashboard(options.address)
    app = choose(dashboard.details(), options.app, dashboard.address)
    defaults = _defaults(app)
    knobs, ingress = read_user_config(defaults, app.user_config)
    print(f"application {app.name!r} at {dashboard.address}: {app.status}")
    for model, its in knobs.items():
        print("", *knob_table(model, its, defaults[model]), sep="\n")
    print("", *knob_table(INGRESS_SCOPE, ingress, IngressKnobs()), sep="\n")
    print("\n* = set in the user_config of the Ingress deployment; the other knobs have their defaults")
    return 0


def set_knobs(options: argparse.Namespace) -> int:
    """Change knobs and wait until they are in force. Raises SettingsError before anything is sent."""
    model, values = parse_arguments(options.arguments)
    dashboard = Dashboard(options.address)
    details = dashboard.details()
    app = choose(details, options.app, dashboard.address)
    defaults = _defaults(app)
    user_config = changed(app.user_config, choose_scope(model, list(defaults)), values)
    changes = differences(
        read_user_config(defaults, app.user_config), read_user_config(defaults, user_config)
    )
    document = redeployment(details, app.name, user_config)
    print(f"tideserve: application {app.name!r} at {dashboard.address}")
    for line in changes or ["no value in force changes"]:
        print(f"  {line}")
    if options.dry_run or user_config == app.user_config:
        print("tideserve: nothing was sent" + (" (--dry-run)" if options.dry_run else ""))
        return 0
    for name, other in details["applications"].items():
        failed = other.get("status") == "DEPLOY_FAILED" and other.get("deployed_app_config")
        if failed and name != app.name:
            print(f"tideserve: Ray will also retry application {name!r}, whose last deployment failed")
    dashboard.deploy(document)
    print("tideserve: sent", flush=True)
    _wait(dashboard.details, app.name, user_config, app.status == "RUNNING")
    print(f"tideserve: the next deploy undoes this change unless its file has, under {app.name!r}:")
    print("".join(f"  {line}\n" for line in snippet(user_config).splitlines()), end="")
    print("On KubeRay this file is serveConfigV2 of the RayService.")
    return 0


def _defaults(app: Deployed) -> dict[str, Knobs]:
    args = app.config.get("args")
    load_settings(args)  # a deployed application may have failed because it is invalid
    return knob_defaults(args or {})


def _wait(
    read: Callable[[], Mapping[str, Any]],
    app: str,
    user_config: Mapping[str, Any],
    was_running: bool,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Print Ray's progress until the knobs are in force.

    Raises:
        CommandError: if Ray cannot apply them, or has not applied them within two minutes.
    """
    started = clock()
    said = ""
    while True:
        now = rollout(read(), app, user_config, was_running)
        waited = clock() - started
        if now.failure:
            raise CommandError(f"not in force after {waited:.1f} s: {now.failure}")
        if now.done:
            print(f"tideserve: in force after {waited:.1f} s", flush=True)
            return
        if waited > _TIMEOUT_S:
            raise CommandError(
                f"not in force everywhere after {waited:.0f} s ({now.text}); Ray continues to apply them: "
                "see `serve status`"
            )
        if now.text != said:
            said = now.text
            print(f"tideserve: {waited:5.1f} s  {now.text}", flush=True)
        sleep(_POLL_S)
