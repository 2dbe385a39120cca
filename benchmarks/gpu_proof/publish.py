"""Publish a proof in the documentation, the shipped profiles and the README.

python -m benchmarks.gpu_proof.publish benchmarks/results/gpu_proof/proof.json
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import REPOSITORY
from benchmarks.common.markdown import table
from benchmarks.gpu_proof.page import to_markdown
from benchmarks.gpu_proof.store import RefusedError, read_document
from replay.capacity.fleet_file import write_profile
from replay.profile import Profile

_BEGIN, _END = "<!-- GPU proofs -->", "<!-- end of GPU proofs -->"
_FOLDER = Path("docs/benchmarks/gpu")
_HEADER = ("GPU, model, date", "capacity, requests/s", "TTFT P95", "ITL P95", "cold start", "second start")


def publish(document: Mapping[str, Any], repository: Path = REPOSITORY) -> list[Path]:
    """Write a proof's page, figures and profile, and the table of all proofs in the README.

    Returns:
        The files written.

    Raises:
        RefusedError: for a rehearsal on a CPU, a proof without its first figures, and a README without the
            two comments between which the table stands.
    """
    done = {one["stage"]: one["figures"] for one in document["stages"] if one["state"] == "done"}
    if document["identity"]["device"] != "gpu":
        raise RefusedError("this is a rehearsal on a CPU: nothing of it is taken for a GPU's")
    if "capacity" not in done:
        raise RefusedError("the proof has no capacity yet: run it again, it goes on where it was")
    profile = Profile.model_validate(done["capacity"]["profile"])
    name = f"{profile.name}-{_slug(document['identity']['model'])}"
    profile = profile.model_copy(update={"name": name})
    folder = repository / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    return [
        _write(repository / "replay" / "profiles" / f"{name}.yaml", write_profile(profile)),
        _write(folder / f"{name}.json", json.dumps(document, indent=1) + "\n"),
        _write(folder / f"{name}.md", to_markdown(document)),
        _readme(repository / "README.md", folder),
    ]


def _readme(readme: Path, folder: Path) -> Path:
    """Put a row for each proof of `folder` between the two comments of the README."""
    text = readme.read_text(encoding="utf-8")
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise RefusedError(f"{readme} has no {_BEGIN} and {_END}, between which the table of proofs stands")
    rows = [_row(file) for file in sorted(folder.glob("*.json"))]
    return _write(readme, f"{before}{begin}\n\n{table(_HEADER, rows)}\n\n{end}{after}")


def _row(file: Path) -> Sequence[str]:
    document = read_document(file)
    done = {one["stage"]: one for one in document["stages"] if one["state"] == "done"}
    capacity = done["capacity"]["figures"]
    knee = capacity["knee"] or {"rps": 0.0, "ttft_s": None, "itl_s": None}
    identity = document["identity"]
    day = done["capacity"]["began"][:10]
    link = f"[{identity['gpu']}, {identity['model']}, {day}]({_FOLDER.as_posix()}/{file.stem}.md)"
    starts = done.get("cold-start", {}).get("figures", {}).get("tideserve", {}).get("graphs", {})
    return [
        link,
        f"{knee['rps']:.3g}",
        *("-" if knee[key] is None else f"{knee[key] * 1e3:.3g} ms" for key in ("ttft_s", "itl_s")),
        *(
            f"{starts[which]['first_token_s']:.1f} s" if which in starts else "-"
            for which in ("first", "second")
        ),
    ]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def main(argv: list[str]) -> int:
    """0 when it is published, 2 when it is refused."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_proof.publish", description=publish.__doc__
    )
    parser.add_argument("document", type=Path, help="proof.json of a proof")
    given = parser.parse_args(argv)
    try:
        written = publish(read_document(given.document))
    except RefusedError as error:
        print(f"gpu-proof: {error}", file=sys.stderr)
        return 2
    for path in written:
        print(f"{path.relative_to(REPOSITORY)}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
