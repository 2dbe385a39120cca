"""Budgets: the most money that requests of a key or a team may cost in each day, week or month."""

from datetime import date, datetime, timedelta
from math import floor
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import ConfigDict, Field

from serve_app.settings.closed_model import ClosedModel, TimeZone

Per = Literal["day", "week", "month"]


def _midnight(day: date, zone: ZoneInfo) -> float:
    """Return the first moment of a day. If the clock skips midnight, the day begins with the skip."""
    return datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()


class Budget(ClosedModel):
    """The most that requests may cost in each period."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    usd: Annotated[float, Field(gt=0, le=1e9)]
    """The most money in each period, in USD."""
    per: Per
    """The period: `day`, `week` from Monday, or `month`."""
    timezone: TimeZone = "UTC"
    """The IANA time zone in which a period begins at midnight."""

    def period(self, now: float) -> tuple[float, float]:
        """Return the begin and the end of the period that contains `now`, all in Unix time.

        Periods begin at midnight of the time zone: days, weeks on Monday, and months on the first.
        """
        zone = ZoneInfo(self.timezone)
        first = datetime.fromtimestamp(floor(now), zone).date()  # else rounded, perhaps to midnight
        if self.per == "day":
            after = first + timedelta(days=1)
        elif self.per == "week":
            first -= timedelta(days=first.weekday())
            after = first + timedelta(days=7)
        else:
            first = first.replace(day=1)
            after = (first + timedelta(days=32)).replace(day=1)
        return _midnight(first, zone), _midnight(after, zone)


class Team(ClosedModel):
    """Several keys with a common budget."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    budget: Budget | None = None
    """The most that the requests of all its keys may cost; by default without a limit."""
