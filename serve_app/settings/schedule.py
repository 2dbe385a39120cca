"""Schedules: replicas that are ready in recurring windows of the week. They are started early for that."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, time, timedelta
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, field_validator, model_validator

from serve_app.settings.closed_model import ClosedModel

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class Schedule(ClosedModel):
    """At least `min_replicas` ready from `start` to `end` on `days`, in local time of `timezone`.

    A window whose `end` is at or before its `start` runs past midnight; `days` are the days on which it
    starts.
    """

    days: Annotated[tuple[Day, ...], Field(min_length=1)] = DAYS
    start: Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]
    end: Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]
    timezone: str = "UTC"
    min_replicas: Annotated[int, Field(ge=1, le=10_000)]

    @field_validator("start", "end", mode="before")
    @classmethod
    def _quoted(cls, clock: object) -> object:
        if isinstance(clock, int):  # YAML 1.1 reads 18:00 as 18 * 60
            raise ValueError('must be a time in quotes, such as "18:00"; without quotes, YAML reads a number')
        return clock

    @field_validator("timezone")
    @classmethod
    def _known(cls, timezone: str) -> str:
        try:
            ZoneInfo(timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError("must be a name of the IANA time zone database, such as Europe/Berlin") from None
        return timezone

    @model_validator(mode="after")
    def _not_empty(self) -> Schedule:
        if self.start == self.end and len(set(self.days)) < len(DAYS):
            raise ValueError(
                f"start = end = {self.start!r} means the whole day: list all seven days, or set a window"
            )
        return self

    def covers(self, moment: float) -> bool:
        """Whether `moment` (Unix time, seconds) lies within a window."""
        local = datetime.fromtimestamp(moment, ZoneInfo(self.timezone))
        start, end = time.fromisoformat(self.start), time.fromisoformat(self.end)
        clock = local.time()
        if start < end:
            return DAYS[local.weekday()] in self.days and start <= clock < end
        if clock >= start and DAYS[local.weekday()] in self.days:
            return True
        yesterday = DAYS[(local - timedelta(days=1)).weekday()]
        return clock < end and yesterday in self.days


def scheduled_minimum(schedules: Sequence[Schedule], now: float, lead_s: float) -> int:
    """The largest `min_replicas` of the windows open now or within the next `lead_s` seconds.

    `lead_s` is the time that a replica takes to start, so that the replicas are ready when a window opens.
    The time until then is checked minute by minute, because windows open and close at whole minutes.
    """
    if not schedules:
        return 0
    minutes = int(min(max(lead_s, 0.0), 3600.0) // 60) + 1
    moments = [
        now,
        *(now + 60.0 * minute for minute in range(1, minutes)),
        now + min(max(lead_s, 0.0), 3600.0),
    ]
    return max((s.min_replicas for s in schedules if any(s.covers(m) for m in moments)), default=0)
