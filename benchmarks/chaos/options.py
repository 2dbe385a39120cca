"""The command line of `make chaos`."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chaos.attack import Attack, Timing
from benchmarks.chaos.roles import ENGINE_CORE, ENGINE_REPLICA, NODE, RAYLET, ROLES, Signal

_CONFIG = Path(__file__).with_name("serve.yaml")


@dataclass(frozen=True, slots=True)
class Options:
    """What is to be done."""

    roles: tuple[str, ...]
    signals: tuple[Signal, ...]
    minutes: float | None
    """None: one after the other; else at random for so long. Of losses in a row, how long they may take."""
    losses: int | None
    """So many losses in a row under greedy streams, every one of which is held to its text."""
    every: float
    engines: int | None
    """Replicas in place of those that the configuration keeps up."""
    seed: int
    nodes: int
    config: Path
    url: str | None
    pids: tuple[int, ...]
    model: str | None
    streams: int
    tokens: int
    timing: Timing
    out: Path
    show: Sequence[Path]

    def attacks(self, nodes: Sequence[str] = ()) -> list[Attack]:
        """Everything that is asked for, in order; `nodes` are those that can be lost."""
        found = [Attack(role, signal) for signal in self.signals for role in self.roles if role != NODE.name]
        if NODE.name in self.roles:
            found += [Attack(NODE.name, signal, node) for signal in self.signals for node in nodes]
        return found


def parse(argv: Sequence[str]) -> Options:
    """Exits with status 2 and a sentence for a wrong command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos",
        description="Kill and stop each process of an application under load, and count what clients see.",
    )
    names = ", ".join(role.name for role in (*ROLES, NODE))
    parser.add_argument("--only", metavar="ROLE,…", help=f"attack only these: {names}")
    parser.add_argument("--signal", choices=("kill", "stop", "both"), default="both",
                        help="SIGKILL, SIGSTOP, or first the one and then the other (default)")  # fmt: skip
    parser.add_argument("--minutes", type=float, help="attack at random for so long, not one after the other")
    parser.add_argument("--losses", type=int,
                        help="lose engines so many times in a row under greedy streams, and hold each to "
                        "its text; --minutes bounds the time")  # fmt: skip
    parser.add_argument("--every", type=float, default=6.0, metavar="S",
                        help="with --losses: mean seconds between two (default: 6)")  # fmt: skip
    parser.add_argument("--engines", type=int,
                        help="replicas kept up (default: as configured; with --losses 3)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn at random (default: 0)")
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1,
                        help="raylets of the server that is started: 1, or 3 on this host")  # fmt: skip
    parser.add_argument("--config", type=Path, default=_CONFIG,
                        help="what it serves: a Serve configuration with one model")  # fmt: skip
    parser.add_argument("--url", help="attack a server that runs already on this machine")
    parser.add_argument("--pid", action="append", type=int, default=[],
                        help="with --url: its first process; only what descends from it is attacked. "
                        "May be repeated")  # fmt: skip
    parser.add_argument("--model", help="with --url: the model that is asked; by default the only one")
    parser.add_argument("--streams", type=int, help="open at each attack (default: 16; with --losses 12)")
    parser.add_argument("--tokens", type=int, help="of each stream (default: 1000; with --losses 600)")
    for name, what in _TIMES.items():
        default = getattr(Timing(), f"{name}_s")
        parser.add_argument(f"--{name}", type=float, default=default, metavar="S",
                            help=f"{what} (default: {default:g})")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/chaos"),
                        help="folder for chaos.json (default: benchmarks/results/chaos)")  # fmt: skip
    parser.add_argument("--show", type=Path, nargs="+", default=[], metavar="FILE",
                        help="print the tables of these results, and attack nothing")  # fmt: skip
    given = parser.parse_args(argv)
    _check(parser, given)
    signals: dict[str, tuple[Signal, ...]] = {"kill": ("kill",), "stop": ("stop",), "both": ("kill", "stop")}
    values = vars(given)
    only, signal = values.pop("only"), values.pop("signal")
    timing = Timing(**{f"{name}_s": values.pop(name) for name in _TIMES})
    values |= {"url": given.url.rstrip("/") if given.url else None, "pids": tuple(values.pop("pid"))}
    roles = tuple(only.split(",")) if only else _all(given.nodes, in_a_row=given.losses is not None)
    for name, (usual, in_a_row) in {"streams": (16, 12), "tokens": (1000, 600), "engines": (None, 3)}.items():
        if values[name] is None:
            values[name] = usual if given.losses is None else in_a_row
    return Options(roles=roles, signals=signals[signal], timing=timing, **values)


_TIMES = {
    "load": "seconds after an attack for which streams that end are replaced",
    "watch": "seconds for which an attack is watched at least",
    "recovery": "seconds after which a server that has not recovered is replaced",
    "stop": "seconds after which a stopped process is continued",
}


_IN_A_ROW = (ENGINE_REPLICA, ENGINE_CORE, RAYLET)


def _all(nodes: int, *, in_a_row: bool) -> tuple[str, ...]:
    if in_a_row:
        return _IN_A_ROW if nodes > 1 else tuple(name for name in _IN_A_ROW if name != RAYLET)
    names = tuple(role.name for role in ROLES)
    if nodes == 1:
        return names
    # Nobody runs `serve run` there: `ray start` leads each node, and the application is deployed.
    return (*(name for name in names if not name.endswith("-run")), NODE.name)


def _check(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    known = {role.name for role in (*ROLES, NODE)}
    for name in given.only.split(",") if given.only else ():
        if name not in known:
            parser.error(f"--only = {name!r}: no such role; there are {', '.join(sorted(known))}")
        if name == NODE.name and given.nodes == 1:
            parser.error("--only = 'node': needs --nodes 3; the only node is lost with its raylet")
    bounds = {
        "minutes": (1 / 60, 1440), "losses": (1, 100_000), "every": (0.2, 600), "engines": (1, 100),
        "streams": (1, 1000), "tokens": (1, 1_000_000),
        "load": (0, 600), "watch": (1, 600), "recovery": (1, 3600), "stop": (0.1, 600),
    }  # fmt: skip
    for name, (least, most) in bounds.items():
        value = getattr(given, name)
        if value is not None and not least <= value <= most:
            parser.error(f"--{name} = {value:g}: must be from {least:g} to {most:g}")
    if given.losses is not None:
        _check_in_a_row(parser, given)
    if bool(given.url) != bool(given.pid):
        parser.error("--url and --pid go together: one says what is asked, the other what may be attacked")
    if given.url and given.nodes != 1:
        parser.error("--nodes is of a server that is started here; leave it out with --url")


def _check_in_a_row(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    for name in given.only.split(",") if given.only else ():
        if name not in _IN_A_ROW:
            parser.error(f"--only = {name!r}: --losses loses {', '.join(_IN_A_ROW)}")
        if name == RAYLET and given.nodes == 1:
            parser.error(
                f"--only = {RAYLET!r}: --losses needs --nodes 3 for it; a node's loss takes its connections"
            )
    if given.engines is not None and given.engines < 2:
        parser.error(f"--engines = {given.engines}: --losses needs two, so that one is left")
