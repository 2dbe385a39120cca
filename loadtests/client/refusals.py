"""When a refused request is sent again."""

from __future__ import annotations

import hashlib
import math
from email.utils import parsedate_to_datetime

REFUSED = frozenset((429, 503))
LONGEST_WAIT_S = 300.0
"""Cap on `Retry-After`: a cold start of a large model takes minutes; beyond, a client asks in between."""
_FIRST_S = 0.5
_MOST_S = 8.0


def wait_s(retry_after: str | None, attempt: int, source: str, unix_s: float) -> float:
    """Seconds until attempt `attempt` + 1, with attempts counted from 1.

    As the server says, seconds or a date, up to `LONGEST_WAIT_S`. Without a word of it 0.5 s, doubled each
    time up to 8 s, less up to a quarter drawn from `source`, so that requests refused together do not
    come back together: as the `openai` client does.
    """
    told = _told_s(retry_after, unix_s)
    if told is not None:
        return min(max(told, 0.0), LONGEST_WAIT_S)
    drawn = hashlib.blake2b(f"{source}/{attempt}".encode(), digest_size=4).digest()
    less = int.from_bytes(drawn, "big") / 2**32 / 4
    return min(_FIRST_S * 2.0 ** min(attempt - 1, 10), _MOST_S) * (1 - less)


def _told_s(retry_after: str | None, unix_s: float) -> float | None:
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        pass
    else:
        return seconds if math.isfinite(seconds) else None
    try:
        return parsedate_to_datetime(retry_after).timestamp() - unix_s
    except (ValueError, OverflowError):  # No date, or one that no calendar reaches.
        return None
