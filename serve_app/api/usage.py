"""`GET /usage`: the tokens, GPU-seconds and money of each API key, lane, model or variant."""

import asyncio
import csv
import io
import logging
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from serve_app.api.budgets import Budgets, iso
from serve_app.api.dialect import JSON
from serve_app.api.errors import ApiError, invalid_value
from serve_app.ledger.store import UsageStore
from serve_app.ledger.usage import AMOUNTS, QUERIES, UNWRITTEN_SINCE, Amounts, By

logger = logging.getLogger("ray.serve")

_UNITS_S = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LAST_S = 253_402_300_799.0
"""The end of the year 9999."""
_TIME_WORDS = "an ISO 8601 date or time, Unix seconds, or a duration before now such as 90m, 24h, 7d or 2w"
_TIMEOUT_S = 5.0


@dataclass(slots=True, eq=False)
class UsageView:
    """The HTTP API's access to the ledger."""

    ledger: UsageStore
    currency: str
    """The code of the currency of its money."""
    budgets: Budgets | None = None
    unwritten_s: Callable[[], float] = lambda: 0.0
    """How many seconds the oldest usage has been waiting for the database; 0 if none waits."""
    clock: Callable[[], float] = time.time
    """Unix time in seconds."""
    timeout_s: float = _TIMEOUT_S
    """How long a request waits for the ledger."""
    # Own threads: a slow database must not take the event loop's.
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(QUERIES, "usage"), init=False
    )
    _turns: defaultdict[str, asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock), init=False
    )

    async def read(
        self,
        by: By,
        since: float,
        until: float,
        key: str | None,
        sender: str = "",
        budgets: Sequence[str] | None = (),
    ) -> tuple[dict[str, Amounts], dict[str, Amounts], list[dict[str, Any]]]:
        """Return the used and the unused amounts, and the named budgets. With a `key`, only its own usage.

        A `sender` has one query at a time, also after the end of its wait. So slow queries of one API key
        leave threads for other keys.

        Raises:
            ApiError: 503 if the ledger fails, or does not answer in time.
        """

        def read() -> tuple[dict[str, Amounts], dict[str, Amounts], list[dict[str, Any]]]:
            rows = self.budgets.rows(budgets) if self.budgets is not None else []
            used = self.ledger.used(by, since, until, key)
            return used, self.ledger.unused(since, until) if key is None else {}, rows

        turn, loop = self._turns[sender], asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.timeout_s):
                await turn.acquire()
                query = self._threads.submit(read)
                query.add_done_callback(lambda _: loop.call_soon_threadsafe(turn.release))
                return await asyncio.wrap_future(query)
        except TimeoutError:
            reason = f"did not answer within {self.timeout_s:g} s"
        except Exception as error:  # its text may name hosts and files
            logger.warning("the ledger could not be read: %s: %s", type(error).__name__, error)
            reason = "cannot be read"
        headers = {"Retry-After": "10"}
        raise ApiError(503, f"The ledger {reason}.", code="ledger_unavailable", headers=headers)


def usage_router(view: UsageView, has_keys: bool) -> APIRouter:
    """Return the route `/usage`. Without API keys (`has_keys`), everybody sees all usage."""
    router = APIRouter(tags=["operations"])

    @router.get(
        "/usage",
        summary="Tokens, GPU-seconds and money by API key, lane, model or variant",
        responses={200: {"content": {"text/csv": {}}}, 400: {}},
    )
    async def usage(
        request: Request,
        by: Annotated[By, Query(description="Sum by this.")] = "key",
        since: Annotated[str, Query(max_length=40, description=f"The start: {_TIME_WORDS}.")] = "24h",
        until: Annotated[str, Query(max_length=40, description="The end, as `since`.")] = "0m",
        format: Annotated[Literal["json", "csv"], Query(description="`json` or `csv`.")] = "json",  # noqa: A002
    ) -> Response:
        now = view.clock()
        begin, end = parse_time("since", since, now), parse_time("until", until, now)
        if begin > end:
            raise invalid_value("since", since, f"must not be after until = {until!r}.")
        sender = request.state.key.name if has_keys else ""
        own = sender if has_keys and not request.state.key.admin else None
        names = None if own is None else request.state.key.budgets
        used, unused, budgets = await view.read(by, begin, end, own, sender, names)
        unwritten_s = view.unwritten_s()
        unwritten_since = iso(now - unwritten_s) if unwritten_s else None
        headers = {UNWRITTEN_SINCE: unwritten_since} if unwritten_since else None
        if format == "csv":
            text = csv_text(by, used, unused, view.currency)
            return Response(text, media_type="text/csv", headers=headers)
        document = usage_document(by, used, unused) | {
            "since": iso(begin),
            "until": iso(end),
            "currency": view.currency,
            "unwritten_since": unwritten_since,
            "budgets": budgets,
        }
        return Response(msgspec.json.encode(document), media_type=JSON, headers=headers)

    return router


def parse_time(name: str, text: str, now: float) -> float:
    """Return the Unix time of a parameter's text. A time without a zone is in UTC.

    Raises:
        ApiError: 400, with the parameter's name and value.
    """
    if ago := re.fullmatch(r"(\d{1,9})([mhdw])", text):
        return max(0.0, now - int(ago[1]) * _UNITS_S[ago[2]])
    try:
        if re.fullmatch(r"\d+(\.\d+)?", text):
            seconds = float(text)
        else:
            moment = datetime.fromisoformat(text)
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        if 0 <= seconds <= _LAST_S:
            return seconds
    except (ValueError, OverflowError):
        pass
    raise invalid_value(name, text, f"must be {_TIME_WORDS}.")


def usage_document(by: By, used: Mapping[str, Amounts], unused: Mapping[str, Amounts]) -> dict[str, Any]:
    """Return the JSON document of used and unused amounts, with their total."""
    total = Amounts()
    for amounts in (*used.values(), *unused.values()):
        total.add(amounts)
    return {
        "object": "usage",
        "by": by,
        "data": [{by: name} | asdict(amounts) for name, amounts in used.items()],
        "unused": [
            {"state": state, "gpu_seconds": amounts.gpu_seconds, "cost": amounts.cost}
            for state, amounts in unused.items()
        ],
        "total": asdict(total),
    }


def csv_text(by: By, used: Mapping[str, Amounts], unused: Mapping[str, Amounts], currency: str) -> str:
    """Return the amounts as CSV (RFC 4180): a line for each name, then a line for each unused state."""
    text = io.StringIO()
    lines = csv.writer(text)
    lines.writerow([by, "state", *AMOUNTS, "currency"])
    for name, amounts in used.items():
        lines.writerow([name, "used", *asdict(amounts).values(), currency])
    for state, amounts in unused.items():
        lines.writerow(["", state, *asdict(amounts).values(), currency])
    return text.getvalue()
