"""`tideserve knobs`: print and change the knobs of a running application without restarting anything."""

import argparse
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml

from serve_app.cli import CommandError, laboratory
from serve_app.cli.dashboard import Dashboard, Deployed, choose, default_address, rollout
from serve_app.cluster.knob_changes import RedeploymentError, deployed, knob_redeployment, value_text
from serve_app.settings.document import parse_yaml
from serve_app.settings.knobs import IngressKnobs, Knobs, LiveKnobs
from serve_app.settings.load import knob_defaults, load_settings
from serve_app.settings.settings_error import SettingsError, shown
from serve_app.settings.tree import INGRESS, INGRESS_SCOPE

_POLL_S = 0.25
_TIMEOUT_S = 120.0
_STARTING_VALUES = "starting_values"
"""The knob whose value may be `@` and the name of a fleet file."""


class _Values(yaml.SafeLoader):
    """YAML without base-60 numbers, which would turn `end: 18:00` into 1080."""


_Values.yaml_implicit_resolvers = {
    first: [
        (tag, re.compile(r"[-+]?(0|[1-9][0-9]*)$") if tag.endswith(":int") else pattern)
        for tag, pattern in resolvers
        if not tag.endswith(":timestamp")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


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
    live = _live_knobs(app)
    defaults, _ = live.in_force
    knobs, ingress = live.read(app.user_config)
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
    live = _live_knobs(app)
    scope = choose_scope(model, list(live.in_force[0]))
    rejected = ""
    try:
        live.apply(app.user_config)
    except SettingsError:  # Ray does not say which knobs are in force instead
        rejected = "; its deployed knobs are rejected, and these replace them"
    try:
        change = knob_redeployment(details, app.name, scope, values, live)
    except RedeploymentError as error:
        raise CommandError(str(error)) from None
    print(f"tideserve: application {app.name!r} at {dashboard.address}{rejected}")
    lines = change.changes or ["no value in force changes"]
    if rejected:
        after = change.knobs[1] if scope == INGRESS_SCOPE else change.knobs[0][scope]
        lines = [f"{scope}.{name} = {value_text(getattr(after, name))}" for name in values]
    for line in lines:
        print(f"  {line}")
    if options.dry_run or change.is_deployed:
        print("tideserve: nothing was sent" + (" (--dry-run)" if options.dry_run else ""))
        return 0
    for name, other in details["applications"].items():
        failed = other.get("status") == "DEPLOY_FAILED" and other.get("deployed_app_config")
        if failed and name != app.name:
            print(f"tideserve: Ray will also retry application {name!r}, whose last deployment failed")
    if deployed(dashboard.details()) != change.replaced:
        raise CommandError("the configuration has just been changed by somebody else; try again")
    dashboard.deploy(change.document)
    print("tideserve: sent", flush=True)
    _wait(dashboard.details, app.name, change.user_config, app.status == "RUNNING")
    print(f"tideserve: the next deploy undoes this change unless its file has, under {app.name!r}:")
    print("".join(f"  {line}\n" for line in snippet(change.user_config).splitlines()), end="")
    print("On KubeRay this file is serveConfigV2 of the RayService.")
    return 0


def _live_knobs(app: Deployed) -> LiveKnobs:
    args = app.config.get("args")
    settings = load_settings(args)  # a deployed application may have failed because it is invalid
    return LiveKnobs(knob_defaults(args or {}), {model.name: model.lora for model in settings.models})


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


def parse_arguments(arguments: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """Split `[MODEL] name=value ...`. Values are YAML; the word `default` stays a string.

    `starting_values=@FILE` reads them from a fleet file, or from a built-in profile by its name.

    Raises:
        SettingsError: with each argument that is not name=value, and with the problems of a fleet file.
    """
    first, *others = arguments
    model, pairs = (None, arguments) if "=" in first else (first, others)
    values: dict[str, Any] = {}
    problems = []
    for pair in pairs:
        name, equals, text = pair.partition("=")
        try:
            if not equals or not name:
                problems.append(f"{pair!r}: must be name=value")
            elif name in values:
                problems.append(f"{name}: given twice")
            elif text.startswith("@") and name == _STARTING_VALUES:
                fleet_files = laboratory.load("replay.profile", f"{name}=@FILE")
                values[name] = fleet_files.load_starting_values(text[1:])
            else:
                where = f"{name} = {shown(text)}"
                values[name] = parse_yaml(text, where, _Values, numbered=False).value
        except SettingsError as error:
            problems += error.problems
    if not pairs:
        problems.append("name=value: required, and not given")
    if problems:
        raise SettingsError(problems)
    return model, values


def choose_scope(model: str | None, models: Sequence[str]) -> str:
    """Return the name of the model to change, or `ingress`.

    Raises:
        SettingsError: if there is no such model, or if none is named and there are several.
    """
    known = ", ".join(repr(name) for name in models)
    if model is None:
        if len(models) > 1:
            raise SettingsError([f"MODEL: required, and not given; this application has {known}"])
        return models[0]
    if model != INGRESS_SCOPE and model not in models:
        raise SettingsError(
            [f"MODEL = {model!r}: no such model; this application has {known}, and {INGRESS_SCOPE!r}"]
        )
    return model


def knob_table(scope: str, knobs: Knobs | IngressKnobs, defaults: Knobs | IngressKnobs) -> list[str]:
    """Return one line for each knob of `scope`. A star marks a knob that differs from its default."""
    lines = [scope]
    for name in type(knobs).model_fields:
        value, default = getattr(knobs, name), getattr(defaults, name)
        if value == default:
            lines.append(f"    {name:<28}{value_text(value)}")
        else:
            lines.append(f"  * {name:<28}{value_text(value):<14}  default {value_text(default)}")
    return lines


def snippet(user_config: Mapping[str, Any]) -> str:
    """Return the YAML that gives an application's ingress this `user_config`."""
    entry = {"deployments": [{"name": INGRESS, "user_config": dict(user_config)}]}
    return yaml.safe_dump(entry, sort_keys=False, default_flow_style=False, width=100)
