"""The options that all replaying commands share: the trace, the knobs and the hardware."""

from __future__ import annotations

import argparse
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from replay.defaults import KNOBS, LONGEST_COLD_START_S, MOST_REPLICAS, PROFILE
from serve_app.settings.knobs import Knobs
from serve_app.settings.settings_error import SettingsError, shown

if TYPE_CHECKING:
    from replay.profile import Profile
    from serve_app.settings.tree import ModelSettings
    from traces.backlog import Backlog
    from traces.file_trace import FileTrace
    from traces.trace import Trace


@dataclass(frozen=True, slots=True)
class Inputs:
    """The trace, the knobs and the hardware, checked."""

    trace: FileTrace
    knobs: Knobs
    profile: Profile
    cold_start_s: tuple[float, float] | None
    """Least and most seconds of a cold start; None: those of the profile."""
    config: Path | None
    app: str | None
    model: str | None
    """The model of these knobs."""
    notes: tuple[str, ...]
    """Sentences that say where the knobs and the profile come from."""
    traffic: Trace
    """The requests to replay: the trace, with drawn adapters and the backlog if they are given."""
    backlog: Backlog | None = None
    """The backlog to replay with the trace."""


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Register the options."""
    add = parser.add_argument
    add("--trace", required=True, metavar="FILE", help="recorded requests, or a folder of request logs")
    add("--format", default="auto", help="format of the trace; by default detected from its content")
    add("--trace-model", metavar="M", help="the model whose requests to take from a log of several models")
    add("--rate", type=float, default=1.0, metavar="X", help="multiply the requests by X; by default 1")
    add("--time", type=float, default=1.0, metavar="X", help="stretch the trace to X times its length")
    add("--start", type=float, default=0.0, metavar="SECONDS", help="skip this much of the trace")
    add("--duration", type=float, metavar="SECONDS", help="replay this much of it; by default all")
    add("--max-input-tokens", type=int, metavar="N", help="cut longer prompts to N tokens")
    add(
        "--background", metavar="SHARE@TIMES",
        help="add a backlog of the lane background once a day: its share of the day's tokens, when it is "
        "submitted, and when it should be done, as in 20%%@22:00-06:00; the trace begins at 00:00",
    )  # fmt: skip
    add(
        "--adapters", metavar="N@SHARE",
        help="draw one of N LoRA adapters by Zipf's law for this share of the requests, as in 200@50%%",
    )  # fmt: skip
    add("--config", type=Path, metavar="FILE", help="Serve configuration to take the knobs from")
    add("--app", metavar="NAME", help="application of the configuration, if it has several")
    add("--model", metavar="M", help="model of the configuration, if it has several")
    add("--fleet", metavar="NAME|FILE", help="a hardware profile, or a file from `tideserve capacity`")
    add(
        "--cold-start", metavar="S[,S][/S[,S]]",
        help="seconds from asking for a replica to its first request: least and most, or one number for "
        "both; after a slash the same of a start on a warm node, as in 60,90/3,5",
    )  # fmt: skip
    add(
        "--warm-nodes", type=int, metavar="N",
        help="replicas that have room on nodes that are always up; by default none, or as the profile says",
    )  # fmt: skip


def read_inputs(options: argparse.Namespace) -> Inputs:
    """Read and check the options.

    Raises SettingsError naming each key, its value and its bound, with file and line for keys of a file.
    """
    # The replay's readers import numpy, which no other command should wait for.
    from replay.profile import load_profile, profile_for  # noqa: PLC0415
    from traces import TraceError, open_trace  # noqa: PLC0415
    from traces.backlog import Backlog, WithBacklog  # noqa: PLC0415
    from traces.zipf_adapters import WithAdapters  # noqa: PLC0415

    given = options.cold_start
    cold_start_s = None if given is None else _range(given.partition("/")[0], given)
    knobs, app, model, notes = KNOBS, None, None, []
    profile = load_profile(options.fleet) if options.fleet else None
    if options.config is not None:
        app, model, knobs, settings = _read_config(options)
        notes.append(f"knobs of {model} in {options.config}")
        if profile is None:
            chosen = profile_for(settings)
            profile = chosen.profile
            notes.append(chosen.why)
        if settings.lora is not None:
            profile = profile.model_copy(update={"max_cached_adapters": settings.lora.max_cached})
    else:
        if options.app is not None or options.model is not None:
            raise SettingsError(["--app and --model name what is in a --config, and none is given"])
        notes.append(
            f"no --config is given: default knobs with {knobs.min_replicas} to {knobs.max_replicas} replicas"
        )
    if profile is None:
        profile = load_profile(PROFILE)
        notes.append(f"no --fleet is given: profile {profile.name}")
    profile = _with_warm_nodes(profile, options)
    try:
        trace = open_trace(
            options.trace,
            format=options.format,
            rate=options.rate,
            time=options.time,
            start_s=options.start,
            duration_s=options.duration,
            max_input_tokens=options.max_input_tokens,
            model=options.trace_model,
        )
    except TraceError as error:
        raise SettingsError([str(error)]) from None
    traffic: Trace = trace
    backlog = None
    option = "--adapters"
    try:
        if options.adapters is not None:
            traffic = WithAdapters.parse(trace, options.adapters)
        option = "--background"
        if options.background is not None:
            backlog = Backlog.parse(options.background)
            traffic = WithBacklog(traffic, backlog)
    except TraceError as error:
        raise SettingsError([f"{option} = {error}"]) from None
    return Inputs(
        trace, knobs, profile, cold_start_s, options.config, app, model, tuple(notes), traffic, backlog
    )


def _read_config(options: argparse.Namespace) -> tuple[str, str, Knobs, ModelSettings]:
    """The application, the model, its knobs and its settings."""
    from serve_app.cli.config_file import read_config  # noqa: PLC0415  it imports Ray

    config = read_config(options.config)
    app = _choice("app", options.app, list(config.applications))
    settings = {
        model.name: model for model in config.applications[app].settings.models if model.task == "generate"
    }
    if not settings:
        raise SettingsError([f"{options.config}: application {app!r} has no model that generates"])
    model = _choice("model", options.model, list(settings))
    return app, model, config.applications[app].knobs[model], settings[model]


def _choice(option: str, given: str | None, there: list[str]) -> str:
    known = ", ".join(repr(name) for name in there)
    if given is None:
        if len(there) > 1:
            raise SettingsError([f"--{option}: required, and not given; the configuration has {known}"])
        return there[0]
    if given not in there:
        raise SettingsError([f"--{option} = {given!r}: not in the configuration, which has {known}"])
    return given


def _with_warm_nodes(profile: Profile, options: argparse.Namespace) -> Profile:
    """`profile` with the options for warm nodes."""
    _, slash, text = (options.cold_start or "").partition("/")
    changed = {"warm_node_start_s": _range(text, options.cold_start)} if slash else {}
    nodes = profile.warm_nodes if options.warm_nodes is None else options.warm_nodes
    if not 0 <= nodes <= MOST_REPLICAS:
        raise SettingsError([f"--warm-nodes = {nodes}: must be from 0 to {MOST_REPLICAS}"])
    return profile.model_copy(update={**changed, "warm_nodes": nodes})


def _range(part: str, text: str) -> tuple[float, float]:
    """The least and most seconds in `part` of the option's value `text`."""
    try:
        values = [float(number) for number in re.split(r"[,:]", part)]
    except ValueError:
        values = []
    within = all(math.isfinite(v) and 0 <= v <= LONGEST_COLD_START_S for v in values)
    if len(values) not in (1, 2) or not within:
        raise SettingsError(
            [
                f"--cold-start = {shown(text)}: must be seconds from 0 to {LONGEST_COLD_START_S:g}, one "
                "number or the least and the most, such as 60,90"
            ]
        )
    least, most = values[0], values[-1]
    if least > most:
        raise SettingsError([f"--cold-start = {shown(text)}: the first must be at most the second"])
    return least, most
