"""Figures of a load test in words; a latency that never ended is `never`."""

import math

from serve_app.cli import formats

Unit = str
"""`ms`, `s`, `share`, `count`, `replicas`, `per_s`, `gpu_s` or `usd`."""


def figure(value: float | None, unit: Unit, digits: int = 3) -> str:
    """`value` with its unit: `182 ms`, `19.8 s`, `1.2 %`, `never`; `-` for None.

    A latency is shown in the unit that suits its size. `digits` are the significant ones; figures other than
    latencies keep all digits before the point.
    """
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "never" if value > 0 else "-never"
    if unit == "share":
        return f"{_digits(100 * value, digits)} %"
    if unit == "usd":
        places = 2 if abs(value) >= 0.1 or value == 0 else 4
        return f"{'-' if value < 0 else ''}${abs(value):,.{places}f}"
    if unit == "gpu_s":
        return f"{_digits(value, digits)} GPU-s"
    if unit == "per_s":
        return f"{_digits(value, digits)}/s"
    if unit in ("count", "replicas"):
        return f"{value:,.0f}"
    latency_s = value / 1000 if unit == "ms" else value
    return formats.seconds(latency_s, digits) if latency_s else "0 s"


def seconds(value: float | None) -> str:
    """A latency in the unit that suits it: `9.12 ms`, `182 ms`, `1.25 s`, `12 min`, `never`."""
    return figure(value, "s")


def left_waiting(number: int) -> str:
    """A note on the clients in TTFT that left before their first token; empty if there were none."""
    if not number:
        return ""
    clients = formats.count(number, "client")
    return f"TTFT includes {clients} that left before the first token, each with the time it had waited."


def difference(value: float | None, unit: Unit) -> str:
    """A difference with its sign: `+12 ms`, `-0.3 %`, `0 s`."""
    shown = figure(value, unit)
    return f"+{shown}" if value is not None and value > 0 and shown != "never" else shown


def _digits(value: float, digits: int) -> str:
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"
