"""What demand may come to until a replica that is asked for now is there, from what is remembered of it."""

import math

from serve_app.learning.demand import MINUTE, Demand
from serve_app.policy.inputs import Forecast

def forecast(demand: Demand, level: float, quantile: float, horizon_s: float) -> Forecast:
    """Return what demand may come to within a cold start of `horizon_s` seconds from `level` requests/s.

    As much as it has risen from a demand like this one, and no more than it has been, both at the quantile q
    of the requests remembered. With the probability q^n none of n windows was of those above the quantile.
    As far as that may be so of the windows after a demand like this one, the rise is that from any demand; as
    far as it may be so of all windows, so much of a rise is added.
    """
    q = _shifted(quantile, horizon_s)
    alike, any_rises = demand.peaks.rises_from(level), demand.peaks.all_rises
    new_here, unsure, most = q**alike.windows, q**any_rises.windows, demand.peaks.level(q)
    rise = (1.0 - new_here) * alike.quantile(q) + new_here * any_rises.quantile(q)
    return Forecast(
        rps=max(level, min(level + rise, most) + unsure * rise),
        quantile=q,
        rise=rise,
        alike=new_here <= 0.5,
        most=most,
        unsure_rps=unsure * rise,
        known_minutes=any_rises.windows * demand.window / MINUTE,
    )


def _shifted(quantile: float, horizon_s: float) -> float:
    """Return the share of requests that the forecast covers: the knob's, where a start takes a minute.

    What it leaves out is late for as long as a start takes, so a shorter start may leave out more. How much,
    the root and the bound, was found in replays with starts of 3 and 20 s.
    """
    left_out = 1.0 - quantile
    more = math.sqrt(60.0 / max(horizon_s, 1.0))
    return 1.0 - min(left_out * min(max(more, 1.0), 4.0), 1.0)
