"""`tideserve init`: a commented configuration for a model on given GPUs, or why none fits."""

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from serve_app.cli import CommandError
from serve_app.cli.application_checks import Cpus, local_cpus
from serve_app.cli.chart_values import left_out, values_of
from serve_app.cli.config_file import read_config
from serve_app.cli.init_document import Given, commented_yaml, serve_document
from serve_app.gpus import Driver, read_driver
from serve_app.settings.fit.architecture import UnknownArchitectureError, read_architecture
from serve_app.settings.fit.memory import GIB, GPUS, GpuKind
from serve_app.settings.fit.plan import DoesNotFitError, choose, choose_cpu
from serve_app.weights.model_files import ModelFiles, ModelFilesError, read_model

_RAY_ADDRESS = "RAY_ADDRESS"


def add_command(commands: Any) -> None:
    """Register `init`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "init",
        help="write a configuration for a model",
        description="Write a commented configuration for a model, computed from the model's files and the "
        "GPUs. If none fits, print why, and what would fit.",
        epilog="Exit status: 0, 1 if nothing fits or a file is missing, 2 for an invalid command line.",
    )
    model_help = "a folder, a Hugging Face name such as Qwen/Qwen3-32B, a LoRA adapter, or `embedded`"
    parser.add_argument("model", metavar="MODEL", help=model_help)
    gpu_help = (
        f"{', '.join(GPUS)}, cpu, or auto: the GPUs of the Ray cluster in {_RAY_ADDRESS}, else of this "
        "machine, else the CPU (default: auto)"
    )
    kinds = [*GPUS, "cpu", "auto"]
    parser.add_argument("--gpu", choices=kinds, default="auto", metavar="KIND", help=gpu_help)
    gpus_help = "GPUs in all; by default as many as the users need"
    parser.add_argument("--gpus", type=_whole, metavar="N", help=gpus_help)
    context_help = "tokens of context, such as 32k; by default up to 32k, on the fewest GPUs that hold 8k"
    parser.add_argument("--context", type=_tokens, metavar="TOKENS", help=context_help)
    users_help = "requests at once (default: %(default)s)"
    parser.add_argument("--users", type=_whole, default=50, metavar="N", help=users_help)
    output_help = "the file to write (default: %(default)s)"
    parser.add_argument("--output", type=Path, default=Path("serve.yaml"), metavar="FILE", help=output_help)
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    values_help = "write the Helm chart's values as well, into a file that ends in .values.yaml"
    parser.add_argument("--kubernetes", action="store_true", help=values_help)
    parser.set_defaults(command=init)


def init(options: argparse.Namespace) -> int:
    """Write the files. Raises CommandError, with numbers, if nothing fits or a file cannot be read."""
    values_file = options.output.parent / f"{options.output.stem}.values.yaml"
    for file in (options.output, *([values_file] if options.kubernetes else [])):
        if file.exists() and not options.force:
            raise CommandError(f"{file}: exists; name another with --output, or overwrite it with --force")
    try:
        files = read_model(options.model)
        given = _plan(options, files)
    except ModelFilesError as error:
        raise CommandError(str(error)) from None
    except UnknownArchitectureError as error:
        raise CommandError(f"{files.model}: config.json: {error}") from None
    document, comments = serve_document(given)
    shown = {name: getattr(options, name) for name in ("gpu", "gpus", "context", "users")}
    words = [f"--{name} {value}" for name, value in shown.items() if value is not None]
    head = f"# Written by `tideserve init {options.model} {' '.join(words)}`.\n"
    text = head + commented_yaml(document, comments)
    with TemporaryDirectory() as folder:  # an invalid file must not replace one that is there
        (file := Path(folder, "serve.yaml")).write_text(text, encoding="utf-8")
        checked = read_config(file, Cpus(local_cpus(), certain=False))
    checked.check_fit()
    _write(options.output, text)
    if options.kubernetes:
        [application] = document["applications"]
        values = values_of(application, checked.applications["tideserve"])
        values = {"image": {"repository": "registry.example/tideserve"}, **values}
        _write(values_file, head + commented_yaml(values, comments))
        for note in left_out(application, checked.applications["tideserve"]):
            print(f"{values_file}: {note}", file=sys.stderr)
    if given.plan.context < (options.context or 0):
        print(f"{files.model} has {given.plan.context:,} tokens of context at most", file=sys.stderr)
    if files.is_gated:
        print(f"{files.model} is gated: each node that downloads it needs HF_TOKEN", file=sys.stderr)
    print(f"wrote {options.output}; serve it with `tideserve run {options.output}`")
    return 0


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from None


def _plan(options: argparse.Namespace, files: ModelFiles) -> Given:
    model, (gpu, gpus, source) = read_architecture(files.config), _hardware(options)
    cpus = local_cpus()
    each = 1.0 if gpu is not None else min(max(cpus - 1, 0.5), 16.0)
    wanted = (options.context, options.users)
    try:
        if gpu is None:
            from ray._private.utils import get_system_memory  # noqa: PLC0415  a second

            engines = max(int((cpus - 1) // each), 1)
            plan = choose_cpu(model, files.weights, get_system_memory(), *wanted, engines)
        else:
            plan = choose(model, files.weights, gpu, gpus, *wanted)
    except DoesNotFitError as error:
        would = []
        for name, kind in GPUS.items():
            try:
                least = choose(model, files.weights, kind, None, *wanted).over.gpus
            except DoesNotFitError:
                continue
            would.append((name != options.gpu, least, f"--gpu {name} --gpus {least}"))
        fitting = "; ".join(text for _, _, text in sorted(would)[:4]) or "no GPU of the table"
        raise CommandError(f"{options.model}: no setting fits: {error}. What would: {fitting}") from None
    return Given(files, model, plan, gpu, source, each, options.users)


def _hardware(options: argparse.Namespace) -> tuple[GpuKind | None, int | None, str]:
    """Return the kind of GPU, None for the CPU, their number, None for any, and where this is from."""
    if options.gpu in GPUS:
        return GPUS[options.gpu], options.gpus, f"--gpu {options.gpu}"
    found = None
    if options.gpu == "auto":
        address = os.environ.get(_RAY_ADDRESS)
        found = _of_cluster(address) if address else gpus_of(read_driver())
    if found is None:
        if options.gpus:
            raise CommandError(f"--gpus {options.gpus}: no GPU is found here; name a kind with --gpu")
        return None, None, "--gpu cpu" if options.gpu == "cpu" else "no GPU is found here"
    return found[0], options.gpus or found[1], found[2]


def gpus_of(driver: Driver | None) -> tuple[GpuKind, int, str] | None:
    """Return the kind with the least memory, the number of GPUs and their name; None without GPUs."""
    if driver is None or not driver.gpus:
        return None
    least = min(driver.gpus, key=lambda gpu: gpu.total_bytes)
    size, name = least.total_bytes / GIB, "rtx4090" if "RTX 4090" in least.name else least.kind
    near = [kind for key, kind in GPUS.items() if name in (key, (kind.ray_name or "").partition("-")[0])]
    near = [kind for kind in near if abs(kind.memory_gib - size) < 6]
    return near[0] if near else GpuKind(least.kind, size), len(driver.gpus), f"{least.name} here"


def gpus_of_nodes(nodes: Sequence[Mapping[str, float]]) -> tuple[GpuKind, int, str] | None:
    """Return the same of the most frequent kind in the resources of a cluster's nodes.

    Raises:
        CommandError: the table does not have the kind.
    """
    counts: Counter[str] = Counter()
    for total in nodes:
        kinds = [name.partition(":")[2] for name in total if name.startswith("accelerator_type:")]
        counts[max(kinds, key=len, default="unknown")] += int(total.get("GPU", 0))
    if not (counts := +counts):
        return None
    [(name, count)] = counts.most_common(1)
    known = [kind for kind in GPUS.values() if name.removesuffix("-80G") == kind.ray_name]
    if not known:
        raise CommandError(f"{_RAY_ADDRESS}: GPUs of type {name!r} are not in the table; name one with --gpu")
    return known[0], count, f"{count} x {name} in the cluster"


def _of_cluster(address: str) -> tuple[GpuKind, int, str] | None:
    import ray  # noqa: PLC0415  a second

    from serve_app.cluster.ray_resources import read_nodes  # noqa: PLC0415

    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        return gpus_of_nodes([node.total for node in read_nodes()])
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise CommandError(f"{_RAY_ADDRESS} = {address!r}: no cluster answers: {error}") from None
    finally:
        ray.shutdown()


def _whole(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,6}", text):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number of at least 1")
    return int(text)


def _tokens(text: str) -> int:
    match = re.fullmatch(r"([1-9]\d{0,8})([km]?)", text.lower())
    tokens = int(match[1]) * {"": 1, "k": 1 << 10, "m": 1 << 20}[match[2]] if match else 0
    if not 128 <= tokens <= 1 << 24:
        raise argparse.ArgumentTypeError(f"{text!r}: must be tokens such as 32768 or 32k, at least 128")
    return tokens
