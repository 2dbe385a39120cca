"""Stage `replay`: what the policy would cost on recorded traffic with the measured fleet file."""

from typing import Any

from benchmarks.gpu_proof.bench import Bench, plain
from benchmarks.gpu_proof.outcome import CannotError
from replay.profile import Profile
from replay.run import replay
from serve_app.settings.knobs import Knobs
from traces import TraceError, open_trace

_POLICIES = ("ours", "ray:5")
_USUAL_S, _LEAST_S = 1800.0, 300.0


def replayed(bench: Bench) -> dict[str, Any]:
    """Replay the beginning of every window of the folder `--windows`, ours beside Ray's law."""
    folder = bench.options.windows
    files = sorted(folder.glob("*.csv*")) if folder.is_dir() else []
    if not files:
        raise CannotError(f"there is no recorded traffic in {folder}; --windows names another folder")
    profile = Profile.model_validate(bench.figures("capacity")["profile"])
    knobs = Knobs.model_validate({"min_replicas": 0, "max_replicas": 64, **bench.targets})
    for_s = bench.seconds(_USUAL_S, _LEAST_S)
    rows = []
    left_out: dict[str, str] = {}
    for file in files:
        for policy in _POLICIES:
            bench.say(f"{file.name}: {policy}")
            try:
                result = replay(
                    open_trace(file, duration_s=for_s), policy=policy, knobs=knobs, profile=profile
                )
            except TraceError as error:
                left_out[file.name] = str(error)
                break
            rows.append(
                {
                    "window": file.name.partition(".")[0],
                    "policy": policy,
                    "gpu_seconds": plain(result.gpu_seconds.total),
                    "attainment": plain(result.attainment),
                }
            )
    figures = {"replayed_s": for_s, "knobs": {"max_replicas": 64, **bench.targets}, "rows": rows}
    return figures | ({"left out": "; ".join(left_out.values())} if left_out else {})
