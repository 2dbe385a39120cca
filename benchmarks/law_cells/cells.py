"""The cells: in each, one thing is other than the law may expect."""

from dataclasses import dataclass, field, replace
from math import inf

from benchmarks.law_cells.traffic import BUSY_THEN_QUIET, CONSTANT, GROWING_PROMPTS, SQUARE_WAVE, STEP, MadeUp
from loadtests.traces.trace import Trace
from replay.defaults import KNOBS, PROFILE
from replay.profile import Profile, load_profile
from replay.reports import Reporting
from replay.scenario import Scenario, scenario

_STEP_SECONDS = ("step_base_s", "step_per_sequence_s", "step_per_kv_token_s", "step_per_prefill_token_s")
_MUTE_FROM_S = 600.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One set of circumstances."""

    name: str
    title: str
    cold_start_s: tuple[float, float] | None = None
    """None: as the profile has it."""
    step_factor: float = 1.0
    """On every coefficient of the fleet's step time, of which the law knows nothing."""
    step_model: str = "linear"
    reporting: Reporting = field(default_factory=Reporting)
    """What happens to the reports to our policy; peers see samples of the fleet."""
    traffic: MadeUp | None = None
    """None: the recorded windows."""

    @property
    def fleet(self) -> dict[str, object]:
        """What the simulated fleet depends on, besides the traffic."""
        return {
            "cold_start_s": self.cold_start_s,
            "step_factor": self.step_factor,
            "step_model": self.step_model,
        }

    def scenario(self, trace: Trace, seed: int) -> Scenario:
        """The scenario of `trace` in these circumstances."""
        made = scenario(
            trace, knobs=KNOBS, profile=self._profile(), cold_start_s=self.cold_start_s, seed=seed
        )
        return replace(made, conditions=replace(made.conditions, step_model=self.step_model))

    def _profile(self) -> Profile:
        profile = load_profile(PROFILE)
        slower = {name: getattr(profile, name) * self.step_factor for name in _STEP_SECONDS}
        return profile if self.step_factor == 1.0 else profile.model_copy(update=slower)


BASE = Cell("base", "as usual: cold starts of 60 to 90 s, linear steps, reports on time")
CELLS = (
    BASE,
    Cell("cold-3", "cold starts of 2.4 to 3.6 s", cold_start_s=(2.4, 3.6)),
    Cell("cold-20", "cold starts of 16 to 24 s", cold_start_s=(16.0, 24.0)),
    Cell("cold-180", "cold starts of 144 to 216 s", cold_start_s=(144.0, 216.0)),
    Cell("fast", "steps take 0.7 times as long", step_factor=0.7),
    Cell("slow", "steps take 1.3 times as long", step_factor=1.3),
    Cell("roofline", "steps of another shape", step_model="roofline"),
    Cell("late", "each report comes 1 to 5 s late", reporting=Reporting(late_s=(1.0, 5.0))),
    Cell(
        "mute-minute",
        "one replica is silent for a minute",
        reporting=Reporting(mute_s=(_MUTE_FROM_S, _MUTE_FROM_S + 60.0)),
    ),
    Cell("mute", "one replica is silent for good", reporting=Reporting(mute_s=(_MUTE_FROM_S, inf))),
    Cell("constant", "12 requests/s", traffic=CONSTANT),
    Cell("square-wave", "15 and 35 requests/s in turns of five minutes", traffic=SQUARE_WAVE),
    Cell("busy-then-quiet", "an hour of that wave, then 1 request/s for two hours", traffic=BUSY_THEN_QUIET),
    Cell("step", "6, then 30 requests/s", traffic=STEP),
    Cell("growing-prompts", "12 requests/s; prompts grow 8x over ten minutes", traffic=GROWING_PROMPTS),
)
