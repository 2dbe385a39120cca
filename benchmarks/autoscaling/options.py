"""The command line."""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

from benchmarks import REPOSITORY
from benchmarks.autoscaling.plan import GRID, PARTS
from benchmarks.peers.laws import PUBLISHED
from replay.defaults import ORACLE, OURS, PROFILE, STATIC
from replay.policies import Engines, SpecError, make
from replay.profile import load_profile

WINDOWS = Path("../shared/traces/windows")
RESULTS = REPOSITORY / "benchmarks" / "results"
PAGE = REPOSITORY / "docs" / "benchmarks" / "autoscaling.md"
PICTURE = REPOSITORY / "docs" / "images" / "autoscaling-cost-versus-attainment.png"
_ALL = "all"


@dataclass(frozen=True, slots=True)
class Options:
    """The options, checked."""

    windows: tuple[Path, ...]
    only: tuple[str, ...] | None
    policies: tuple[str, ...] | None
    parts: tuple[str, ...]
    seeds: tuple[int, ...]
    jobs: int
    cut_s: float | None
    fresh: tuple[str, ...]
    """Policies whose finished runs do not count; `all`."""
    thorough: bool
    dry_run: bool
    results: Path
    page: Path
    picture: Path

    @property
    def whole(self) -> bool:
        """Whether the whole benchmark is run, so that its page may replace the documentation's."""
        return self.only is None and self.policies is None and self.parts == PARTS and self.cut_s is None

    def is_fresh(self, policy: str) -> bool:
        """Whether `policy` is to be run again."""
        return _ALL in self.fresh or policy in self.fresh


def parse(argv: list[str]) -> Options:
    """Read the command line; a wrong one ends the process with status 2."""
    parser = _parser()
    given = parser.parse_args(argv)
    try:
        policies = _names(given.policies)
        for policy in policies or ():
            _check_policy(policy)
        options = Options(
            windows=tuple(Path(part) for part in given.windows.split(",")),
            only=_names(given.only),
            policies=policies,
            parts=_parts(given.parts),
            seeds=_seeds(given.seeds),
            jobs=given.jobs,
            cut_s=given.cut,
            fresh=_names(given.fresh) or (),
            thorough=given.thorough,
            dry_run=given.dry_run,
            results=given.out,
            page=given.page or PAGE,
            picture=given.picture or PICTURE,
        )
    except ValueError as error:
        parser.error(str(error))
    if not 1 <= options.jobs <= 256:
        parser.error(f"--jobs = {options.jobs}: must be from 1 to 256")
    if options.cut_s is not None and not 60.0 <= options.cut_s < math.inf:
        parser.error(f"--cut = {options.cut_s:g}: must be at least 60 seconds")
    return options if options.whole else _aside(options, given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.autoscaling",
        description="Every autoscaling policy on every recorded window: cost and attainment, by targets.",
    )
    add = parser.add_argument
    add(
        "--windows",
        default=str(WINDOWS),
        metavar="PLACES",
        help=f"folders or files, separated by commas; by default {WINDOWS}",
    )
    add("--only", metavar="NAMES", help="use only these of the windows")
    add("--policies", metavar="SPECS", help="run only these; write + for a comma within one")
    add("--parts", default=",".join(PARTS), help=f"parts to run, of {','.join(PARTS)}; by default all")
    add("--seeds", default="0,1,2", help="seeds; by default 0,1,2")
    add("--jobs", type=int, default=2, metavar="N", help="replays at a time; by default 2")
    add("--cut", type=float, metavar="SECONDS", help="replay only this much of each window")
    add(
        "--fresh", nargs="?", const=_ALL, metavar="SPECS",
        help="repeat finished runs: all, or those of these policies",
    )  # fmt: skip
    add(
        "--thorough",
        action="store_true",
        help="run oracle, grid and robustness with all seeds, not only the first",
    )
    add("--dry-run", action="store_true", help="list the runs and how long they would take")
    add("--out", type=Path, default=RESULTS, help="folder for autoscaling.json and the finished runs")
    add("--page", type=Path, help="by default docs/benchmarks/autoscaling.md; for a part, beside the results")
    add("--picture", type=Path, help="picture; by default in docs/images/, and beside the results for a part")
    return parser


def _aside(options: Options, given: argparse.Namespace) -> Options:
    """The options of a part of the benchmark, whose page does not replace that of the whole."""
    return Options(
        **{name: getattr(options, name) for name in Options.__slots__ if name not in ("page", "picture")},
        page=given.page or options.results / "autoscaling-part.md",
        picture=given.picture or options.results / "autoscaling-part.png",
    )


def _names(text: str | None) -> tuple[str, ...] | None:
    """A list by commas; commas within a specification are written +."""
    if text is None:
        return None
    return tuple(part.strip().replace("+", ",") for part in text.split(",") if part.strip())


def _check_policy(policy: str) -> None:
    if policy in (OURS, ORACLE, STATIC, *PUBLISHED, *GRID):
        return
    try:
        make(policy, Engines(load_profile(PROFILE).step))
    except SpecError as error:
        raise ValueError(f"--policies: {error}, {OURS}, {ORACLE} and {STATIC}") from None


def _parts(text: str) -> tuple[str, ...]:
    given = _names(text) or ()
    for part in given:
        if part not in PARTS:
            raise ValueError(f"--parts = {part!r}: must be of {', '.join(PARTS)}")
    if not given:
        raise ValueError(f"--parts = {text!r}: must be of {', '.join(PARTS)}")
    return tuple(part for part in PARTS if part in given)


def _seeds(text: str) -> tuple[int, ...]:
    try:
        seeds = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        seeds = (-1,)
    if min(seeds) < 0:
        raise ValueError(f"--seeds = {text!r}: must be whole numbers from 0, such as 0,1,2")
    return seeds
