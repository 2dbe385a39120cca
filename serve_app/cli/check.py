"""`tideserve check`: validate a configuration without starting anything."""

import argparse
from pathlib import Path
from typing import Any

import yaml

from serve_app.batch.store_check import check_database, check_files
from serve_app.cli.application_checks import Cpus, local_cpus
from serve_app.cli.config_file import missing_folders, read_config
from serve_app.cli.formats import count, seconds
from serve_app.cli.gpu_machine import missing_here
from serve_app.cli.keys_command import describe_keys
from serve_app.cli.listening import check_host, describe_listening
from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.settings.storage import BatchSettings, batch_database_url, batch_files_url, ledger_url
from serve_app.settings.tree import AppSettings, ModelSettings


def add_command(commands: Any) -> None:
    """Register `check`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "check",
        help="validate a configuration without starting anything",
        description="Validate a configuration without starting anything. Print each model's placement, "
        "replica bounds and targets.",
        epilog="Exit status: 0 if the file is valid, 2 if not.",
    )
    parser.add_argument("config", type=Path, help="Serve configuration file")
    show_help = "print all settings and knobs in force, including defaults"
    parser.add_argument("--show", action="store_true", help=show_help)
    cpus_help = (
        "CPUs of the cluster that will serve the file; by default a file without GPUs is checked against the "
        "CPUs of this machine, and for one with GPUs the pieces are listed that this machine lacks"
    )
    parser.add_argument("--cpus", type=_cpus, metavar="N", help=cpus_help)
    parser.set_defaults(command=check)


def check(options: argparse.Namespace) -> int:
    """Print one line per model, or every setting. Raises SettingsError for an invalid file."""
    certain = options.cpus is not None
    config = read_config(options.config, Cpus(options.cpus if certain else local_cpus(), certain))
    config.check_fit()
    host = check_host("http_options.host", config.host, haproxy=False)  # the proxy is an option of `run`
    if options.show:
        for name, app in config.applications.items():
            autoscaling = {model: knobs.model_dump(mode="json") for model, knobs in app.knobs.items()}
            user_config = {"autoscaling": autoscaling, "ingress": app.ingress_knobs.model_dump(mode="json")}
            in_force = {"args": app.settings.model_dump(mode="json"), "user_config": user_config}
            print(yaml.safe_dump({name: in_force}, sort_keys=False), end="")
        return 0
    for name, app in config.applications.items():
        print(f"{config.path}: application {name!r} is valid")
        for model in app.settings.models:
            where = "" if model.variants else f"{_placement_text(model)}; "
            print(f"  {model.name}: {where}{_scaling_text(app.knobs[model.name])}")
            for engine in model.engines() if model.variants else ():
                print(f"    {_variant_text(engine)}")
        for line in () if certain else missing_folders(app.settings.models):
            print(f"  WARNING: {line}: `tideserve run` refuses it here; each node that serves needs it")
        streams = f"{app.ingress_knobs.target_ongoing_requests:g} streams per replica"
        print(f"  ingress: {_range_text(app.ingress_knobs)}; {streams}")
        if app.ingress_knobs.min_replicas == 1:
            print("  ingress: one replica: new requests get 503 after a crash, and if a redeploy has no room")
        if (file := app.settings.http.api_keys_file) is not None:
            # The file need not be on this machine, which may not serve.
            absent = f"{file} is not on this machine, and was not checked"
            print(f"  API keys: {describe_keys(Path(file)) if Path(file).exists() else absent}")
        print(f"  ledger: {_ledger_text(app.settings)}")
        print(*(f"  {line}" for line in _batch_lines(app.settings.batch)), sep="\n")
    print(*describe_listening(config.keyless, host, config.port), sep="\n")
    for line in () if certain else missing_here(config):
        print(f"this machine cannot serve it yet: {line}")
    return 0


def _cpus(text: str) -> float:
    cpus = float(text)
    if not 0 < cpus <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r}: must be above 0 and at most 1,000,000")
    return cpus


def _placement_text(model: ModelSettings) -> str:
    gpus = f"{model.ranks} x {model.accelerator_type or 'any GPU'} per replica"
    return f"{model.model} on {'CPU' if model.device == 'cpu' else gpus}"


def _variant_text(engine: ModelSettings) -> str:
    """Return the placement, the bounds and the price of one variant's replicas."""
    variant = engine.variants[0]
    most = variant.max_replicas if "max_replicas" in variant.model_fields_set else "any number of"
    bounds = f"{variant.min_replicas} to {most} replicas"
    spot = ", preemptible" if variant.preemptible else ""
    return f"{variant.name}: {_placement_text(engine)}; {bounds}; {variant.usd_per_hour:g} USD/h each{spot}"


def _scaling_text(knobs: Knobs) -> str:
    """Return the policy's bounds and targets in one line."""
    parts = [
        _range_text(knobs),
        f"targets: p{knobs.ttft_percentile} TTFT {seconds(knobs.ttft_target_s)}, "
        f"ITL {seconds(knobs.itl_target_s)}, {knobs.queue_target_per_replica:g} queued requests per replica",
    ]
    if knobs.min_replicas == 0:
        parts.append(f"to zero after {knobs.downscale_to_zero_delay_s:g} s idle")
    if knobs.schedules:
        parts.append(count(len(knobs.schedules), "schedule"))
    if knobs.mode == "advise":
        parts.append("advice only")
    return "; ".join(parts)


def _ledger_text(settings: AppSettings) -> str:
    """Return where usage is written, and which models have no price.

    Raises:
        SettingsError: the environment has an invalid URL of the database.
    """
    ledger = settings.ledger
    if not ledger.enabled:
        return "off"
    if ledger_url(ledger).startswith("postgres"):
        where = "Postgres"
    else:
        where = "an SQLite file on each node; several nodes need a Postgres in ledger.url"
    free = [
        model.name
        for model in settings.models
        if not model.token_prices(ledger) and not model.hour_price(ledger)
    ]
    if ledger.gpu_hour_prices and free:
        where += f"; no price in gpu_hour_prices for {', '.join(free)}"
    return where


def _batch_lines(batch: BatchSettings) -> list[str]:
    """Return where files and batches are kept, and whether this machine can write there.

    Raises:
        SettingsError: the environment has an invalid URL of the database.
    """
    if not batch.enabled:
        return ["batches: off"]
    database, files = batch_database_url(batch), batch_files_url(batch)
    shared, local = database.startswith("postgres"), files.startswith("file:")
    lines = [
        f"batches: {'Postgres' if shared else 'an SQLite file'} ({check_database(database)}), files in "
        f"{'a folder' if local else files.partition('://')[0]} ({check_files(files)})"
    ]
    alone = [
        *([] if shared else ["a Postgres in batch.database"]),
        *(["an object store in batch.files"] if local else []),
    ]
    if alone:
        lines.append(f"batches: for one node; several nodes need {' and '.join(alone)}")
    return lines


def _range_text(knobs: Knobs | IngressKnobs) -> str:
    return f"{knobs.min_replicas} to {knobs.max_replicas} replicas"
