"""The command line."""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

from benchmarks import REPOSITORY
from benchmarks.autoscaling.options import RESULTS, WINDOWS
from benchmarks.law_cells.cells import CELLS, Cell
from benchmarks.law_cells.law import Law
from benchmarks.law_cells.plan import PEERS
from replay.defaults import ORACLE, OURS, STATIC

PAGE = REPOSITORY / "docs" / "benchmarks" / "law-cells.md"
POLICIES = (OURS, *PEERS, STATIC, ORACLE)
_ALL = "all"


@dataclass(frozen=True, slots=True)
class Options:
    """The options, checked."""

    cells: tuple[Cell, ...]
    windows: tuple[str, ...] | None
    traces: tuple[Path, ...]
    laws: tuple[Law, ...]
    """Ours first, unless it is not asked for."""
    policies: tuple[str, ...]
    """Without ours."""
    jobs: int
    cut_s: float | None
    fresh: tuple[str, ...]
    """Columns whose finished runs do not count; `all`."""
    out: Path
    page: Path
    whole: bool
    """Whether the whole matrix is run, so that its page may replace the documentation's."""

    def is_fresh(self, column: str) -> bool:
        """Whether the runs of a column are made again."""
        return _ALL in self.fresh or column in self.fresh


def parse(argv: list[str]) -> Options:
    """Read the command line; a wrong one ends the process with status 2."""
    parser = _parser()
    given = parser.parse_args(argv)
    try:
        whole = given.cells is given.windows is given.policies is given.cut is None
        policies = _among("--policies", given.policies, POLICIES)
        options = Options(
            cells=tuple(cell for cell in CELLS if cell.name in _among("--cells", given.cells, _CELL_NAMES)),
            windows=None if given.windows is None else _names(given.windows),
            traces=tuple(Path(place) for place in _names(given.traces)),
            laws=_laws(given.law, ours=OURS in policies),
            policies=tuple(name for name in policies if name != OURS),
            jobs=given.jobs,
            cut_s=given.cut,
            fresh=_names(given.fresh or ""),
            out=given.out,
            page=PAGE if whole else given.out / "law-cells-part.md",
            whole=whole,
        )
    except ValueError as error:
        parser.error(str(error))
    if not 1 <= options.jobs <= 256:
        parser.error(f"--jobs = {options.jobs}: must be from 1 to 256")
    if options.cut_s is not None and not 60.0 <= options.cut_s < math.inf:
        parser.error(f"--cut = {options.cut_s:g}: must be at least 60 seconds")
    return options


_CELL_NAMES = tuple(cell.name for cell in CELLS)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.law_cells",
        description="Our autoscaling law where it could be wrong, beside peers and a static fleet.",
    )
    add = parser.add_argument
    add("--cells", metavar="NAMES", help=f"only these of {','.join(_CELL_NAMES)}")
    add("--windows", metavar="NAMES", help="only these recorded windows; `none`: only made-up traffic")
    add(
        "--traces",
        default=str(WINDOWS),
        metavar="PLACES",
        help=f"folders or files of recorded windows, by commas; by default {WINDOWS}",
    )
    add(
        "--law",
        action="append",
        default=[],
        metavar="NAME=CHECKOUT",
        help="also the law of another checkout; may be given again",
    )
    add("--policies", metavar="SPECS", help=f"only these of {','.join(POLICIES)}")
    add("--jobs", type=int, default=2, metavar="N", help="replays at a time; by default 2")
    add("--cut", type=float, metavar="SECONDS", help="replay only this much of all traffic")
    add(
        "--fresh", nargs="?", const=_ALL, metavar="COLUMNS",
        help="repeat finished runs: all, or those of these columns",
    )  # fmt: skip
    add("--out", type=Path, default=RESULTS, help="folder for law-cells.json and the finished runs")
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _among(option: str, text: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    """The names in `text`, all of `known` if there is none. Raises ValueError for one that is not known."""
    if text is None:
        return known
    for name in _names(text):
        if name not in known:
            raise ValueError(f"{option} = {name!r}: must be of {', '.join(known)}")
    return _names(text)


def _laws(given: list[str], *, ours: bool) -> tuple[Law, ...]:
    laws = [Law.of(OURS, REPOSITORY)] if ours else []
    for text in given:
        name, equals, checkout = text.partition("=")
        if not (name and equals and checkout):
            raise ValueError(f"--law = {text!r}: must be NAME=CHECKOUT")
        if name in POLICIES or name in {law.name for law in laws}:
            raise ValueError(f"--law = {text!r}: another column has that name")
        laws.append(Law.of(name, Path(checkout)))
    return tuple(laws)
