"""`tideserve check`: validate a configuration without starting anything."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import yaml

from serve_app.cli.config_file import read_config


def add_command(commands: Any) -> None:
    """Register `check`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "check", help="validate a configuration without starting anything"
    )
    parser.add_argument("config", type=Path, help="a Serve configuration file")
    parser.add_argument("--show", action="store_true", help="print the settings in force, defaults included")
    parser.set_defaults(command=check)


def check(options: argparse.Namespace) -> int:
    """Print one line a model, or every setting; raises SettingsError for an invalid file."""
    config = read_config(options.config)
    for name, settings in config.applications.items():
        if options.show:
            print(yaml.safe_dump({name: settings.model_dump(mode="json")}, sort_keys=False), end="")
            continue
        print(f"{config.path}: application {name!r} is valid")
        for model in settings.models:
            gpus = f"{model.tensor_parallel_size} x {model.accelerator_type or 'any GPU'}"
            where = "CPU" if model.device == "cpu" else gpus
            scale = model.scaling
            print(
                f"  {model.name}: {model.model} on {where} a replica, "
                f"{scale.min_replicas} to {scale.max_replicas} replicas"
            )
    return 0
