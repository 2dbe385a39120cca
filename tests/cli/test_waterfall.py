"""The waterfall of a trace that the ingress has sent."""

import pytest

from serve_app.cli.ask_answer import waterfall
from serve_app.wire import spans as names

TRACE = {
    "trace_id": "0af7",
    "seconds": 10.0,
    "spans": [
        {"name": "receive", "start": 0.0, "end": 0.1, "attributes": {}, "events": []},
        {
            "name": "queue",
            "start": 0.0,
            "end": 5.0,
            "attributes": {names.OUTCOME: "released"},
            "events": [
                ["phase", 0.0, {names.PHASE_NAME: "imports"}],
                ["phase", 2.5, {names.PHASE_NAME: "warm_up"}],
            ],
        },
        {
            "name": "attempt",
            "start": 5.0,
            "end": 10.0,
            "attributes": {names.REPLICA: "r1"},
            "events": [["first_token", 6.0, {}]],
        },
    ],
}


def test_each_stage_is_a_bar_of_its_share() -> None:
    lines = waterfall(TRACE, {"queue_ms": 250.0, "prefill_ms": 500.0, "decode_ms": 4000.0})

    assert lines[0] == "trace 0af7, 10 s"
    bars = {line[:14].strip(): line for line in lines[1:]}
    assert list(bars) == [
        "receive", "queue", "imports", "warm_up", "attempt", "engine queue", "prefill", "decode",
    ]  # fmt: skip
    drawn = {name: line.split("|")[1] for name, line in bars.items()}
    assert drawn["queue"] == "=" * 20 + " " * 20
    assert drawn["warm_up"] == " " * 10 + "=" * 10 + " " * 20
    assert drawn["decode"] == " " * 24 + "=" * 16
    assert drawn["receive"].count("=") == 1
    assert bars["attempt"].endswith("| r1")
    assert bars["queue"].endswith("| released")


def test_without_engine_times_the_engine_has_no_bars() -> None:
    assert len(waterfall(TRACE, {})) == 6


def test_another_document_is_refused() -> None:
    with pytest.raises((LookupError, TypeError, ValueError)):
        waterfall({"seconds": 1.0}, {})
