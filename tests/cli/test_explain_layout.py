import re
from datetime import UTC
from typing import Any

import pytest

from serve_app.cli.explain_layout import WIDTH, DecisionsDocument, explain, history_line
from serve_app.cli.terminal_output import Style
from serve_app.settings.knobs import Knobs
from tests.policy.build import PolicyLoop, engine, ingress, snapshot

NOON = 1_780_056_000.0  # 2026-05-29 12:00:00 UTC
TERMS = [
    {"name": "demand", "replicas": 2, "why": "4.1 requests/s arrive"},
    {"name": "queue", "replicas": 3, "why": "17 requests are waiting; the target is 8 per replica"},
]


def record(at: float, old: int = 1, new: int = 3, **given: Any) -> dict[str, Any]:
    return {
        "seq": int(at),
        "at": at,
        "deployment": "Engine-tiny",
        "model": "tiny",
        "kind": "change",
        "mode": "act",
        "old_target": old,
        "new_target": new,
        "wanted": new,
        "ready": old,
        "binding": "queue",
        "reason": "queue: 17 requests are waiting; the target is 8 per replica",
        "counterfactual": "the target rises at 25 waiting requests",
        "terms": TERMS,
        "clamps": [],
        "signals": {"waiting_requests": 17.0},
        "ages_s": {"engine x": 0.4, "ingress y": 0.2},
        "notes": [],
        **given,
    }


def status(at: float = NOON, errors: int = 0, **models: Any) -> dict[str, Any]:
    return {"at": at, "age_s": NOON - at, "policy_errors": errors, "models": models}


def state_of(model: str = "tiny", **given: Any) -> dict[str, Any]:
    return {
        "model": model,
        "mode": "act",
        "wanted": 3,
        "target": 3,
        "ready": 1,
        "starting": 0,
        "pending": 0,
        "pending_s": 0,
        "reason": "",
        "cold_start_s": None,
        "phases_s": {},
        **given,
    }


def explained(
    autoscaler: Any, *records: dict[str, Any], now: float = NOON, model: str | None = None, on: bool = False
) -> list[str]:
    document = DecisionsDocument.model_validate({"autoscaler": autoscaler, "decisions": records})
    text = explain(document, now, model, UTC, Style(on))
    assert text.endswith("\n")
    return text.splitlines()


def test_block_goes_from_present_state_to_history() -> None:
    engine = state_of(starting=1, pending=1, pending_s=42, reason="no node has 1 GPU free", cold_start_s=41.2)
    clamps = [{"name": "delay", "effect": "the load needed 5 replicas 3 s ago"}]

    lines = explained(
        {"at": NOON, "age_s": 1.0, "policy_errors": 0, "models": {"Engine-tiny": engine}},
        record(NOON - 60, 0, 1, binding="wake", reason="wake: a request is held", terms=[]),
        record(NOON - 20, clamps=clamps, notes=["infeasible: prefill alone takes 0.3 s"]),
        record(NOON - 10, 3, 3, kind="heartbeat", terms=[]),
    )

    assert lines == [
        "tiny",
        "  Replicas: 1 ready, 1 starting, target 3. Mode: act. Cold start: 41.2 s, measured.",
        "  1 replica has been pending for 42 s. Reason: no node has 1 GPU free",
        "",
        "  Newest decision, 11:59:40: the target goes from 1 to 3 replicas, because of queue.",
        "  17 requests are waiting; the target is 8 per replica",
        "  the target rises at 25 waiting requests",
        "",
        "    term    replicas  why",
        "  > queue          3  17 requests are waiting; the target is 8 per replica",
        "    demand         2  4.1 requests/s arrive",
        "    clamp             effect",
        "    delay             the load needed 5 replicas 3 s ago",
        "",
        "  note: infeasible: prefill alone takes 0.3 s",
        "  reports: ingress y 200 ms, engine x 400 ms old",
        "",
        "  History",
        "  11:59:00  0 -> 1    wake          a request is held",
        "  11:59:40  1 -> 3    queue         17 requests are waiting; the target is 8 per replica",
    ]


@pytest.mark.parametrize(
    ("warm_node", "text"),
    [
        (True, "  A node with vLLM already imported (a warm node) has room for the next replica."),
        (False, "  No node with vLLM already imported (a warm node) has room for the next replica."),
    ],
)
def test_room_on_a_warm_node_is_shown(warm_node: bool, text: str) -> None:
    engine = state_of(warm_node=warm_node)
    assert explained(status(**{"Engine-tiny": engine}))[2] == text

    engine |= {"warm_node_start_s": 3.4, "cold_node_start_s": 41.2}
    first, second = explained(status(**{"Engine-tiny": engine}))[2:4]
    assert f"{first} {second.strip()}" == (
        f"{text} A start takes 3.4 s on a warm node and 41.2 s on a cold node."
    )


def test_variants_have_their_replicas_and_prices() -> None:
    spot = {"ready": 2, "target": 3, "at_once": 1, "capacity_rps": 6.12, "usd_per_hour": 3.6}
    dear = {"ready": 1, "target": 1, "capacity_rps": 6.12, "usd_per_hour": 3.7, "dry_s": 45.0}
    small = {"ready": 0, "meets_targets": 0.0}
    variants = {"spot": spot, "on-demand": dear, "l40s": small}
    engine = state_of(variants=variants, usd_per_hour=7.3, dearest_usd_per_hour=14.8)

    lines = explained(status(**{"Engine-tiny": engine}))

    assert lines[3:8] == [
        "  Price: 7.30 USD/h. The dearest variant alone would cost 14.80 USD/h.",
        "    variant    ready  target  spare  requests/s  USD/h",
        "    spot           2       3      1         6.1   3.60",
        "    on-demand      1       1      0         6.1   3.70  no node; next try in 45 s",
        "    l40s           0       0      0         0.0   0.00  too slow for the targets",
    ]


def test_without_zygotes_every_start_imports_vllm() -> None:
    engine = state_of(warm_node=False, warm_node_start_s=3.4, cold_node_start_s=41.2)

    lines = explained({**status(**{"Engine-tiny": engine}), "zygote": False})

    assert lines[2] == "  The zygote is off, so every replica imports vLLM when it starts."


def test_a_clamp_that_binds_is_marked() -> None:
    lines = explained(
        status(),
        record(
            NOON,
            3,
            3,
            binding="delay",
            clamps=[{"name": "delay", "effect": "replicas can be removed in 9 s"}],
        ),
    )

    assert [line for line in lines if line.startswith("  >")] == [
        "  > delay             replicas can be removed in 9 s"
    ]


def test_terms_say_whose_idle_time_background_work_uses() -> None:
    flooded = engine(background_running_requests=60, background_ongoing_requests=60, ongoing_requests=60)
    waiting = engine(waiting_requests=20, waiting_tokens=2000)
    knobs = Knobs(max_replicas=5, upscale_delay_s=0, forecast=False)
    decision = PolicyLoop(knobs).decide(snapshot(waiting, *[flooded] * 4, at={"i0": ingress()}))

    lines = explained(status(), record(NOON, 5, 5, **{**decision.document(), "ages_s": {}}))

    said = "background         0  3 of 5 replicas are needed. The background lane uses the idle time of 2."
    assert any(line.strip() == said for line in lines)


def test_cached_share_of_prompts_is_shown_if_reported() -> None:
    signals = {"prompt_tokens_mean": 1250.4, "cached_share": 0.776}

    told = "  prompts: 1,250 tokens on average. 78 % of the tokens were cached."
    assert told in explained(status(), record(NOON, signals=signals))
    assert not [line for line in explained(status(), record(NOON)) if "prompts:" in line]


def test_without_a_policy_the_missing_lines_are_told() -> None:
    lines = explained(None)

    assert lines[0].startswith("No policy has reported yet.")
    assert "    policy_function: serve_app.controller.serve_policy:ServePolicy" in lines


def test_decisions_without_a_status_are_told_all_the_same() -> None:
    lines = explained(None, record(NOON))

    assert "tiny" in lines
    assert "  Newest decision, 12:00:00: the target goes from 1 to 3 replicas, because of queue." in lines


def test_rejected_knobs_are_the_first_line() -> None:
    given = {
        "knobs_rejected": "autoscaling['tiny'].schedules[0].timezone = 'Europe/Zurch': must be a name of the "
        "IANA time zone database, such as Europe/Berlin",
        "autoscaler": status(NOON - 300),
        "decisions": [],
    }

    first, second, blank, late = explain(DecisionsDocument.model_validate(given), NOON).splitlines()[:4]

    assert first.startswith(
        "The newest knobs are rejected, so the knobs before them stay in force. Error: autoscaling["
    )
    assert f"{first} {second.strip()}".endswith("IANA time zone database, such as Europe/Berlin")
    assert (blank, late[:24]) == ("", "The policy last reported")


@pytest.mark.parametrize("clock_ahead_s", [-3600.0, 0.0, 3600.0])
def test_how_late_the_policy_is_goes_by_the_servers_clock(clock_ahead_s: float) -> None:
    late = "The policy last reported 300 s ago"
    there = {**status(NOON + clock_ahead_s), "age_s": 300.0}
    assert explained(there)[0].startswith(late)
    assert late not in explained({**there, "age_s": 5.0})[0]


def test_a_policy_that_has_stopped_reporting_is_told() -> None:
    assert explained(status(NOON - 300))[0] == (
        "The policy last reported 300 s ago, so the lines below may be out of date."
    )
    assert explained(status(NOON - 11), record(NOON))[0] == "tiny"


def test_policy_errors_are_counted_and_in_history() -> None:
    error = record(
        NOON,
        2,
        2,
        kind="error",
        mode="",
        binding="error",
        reason="the policy raised ZeroDivisionError",
        terms=[],
        counterfactual="",
    )

    lines = explained(status(errors=2), record(NOON - 5), error)

    assert (
        lines[0] == "The policy raised an error 2 times and kept the targets. The history shows the errors."
    )
    assert lines[-1] == "  12:00:00  2 -> 2    error         the policy raised ZeroDivisionError"
    assert "  Newest decision, 11:59:55: the target goes from 1 to 3 replicas, because of queue." in lines


def test_an_error_before_any_model_is_the_application_s() -> None:
    error = record(NOON, 0, 0, kind="error", deployment="", model="", terms=[], reason="it raised")

    assert explained(status(errors=1), error)[2] == "The whole application"


def test_a_model_that_has_not_changed_says_so() -> None:
    lines = explained(status(**{"Engine-tiny": state_of()}), record(NOON, 1, 1, kind="heartbeat"))

    assert lines[1] == "  Replicas: 1 ready, target 3. Mode: act. Cold start: not measured yet."
    assert lines[-2:] == ["  History", "  The requested records have no change."]


def test_only_the_model_asked_for_is_told() -> None:
    both = status(**{"Engine-tiny": state_of(), "Engine-big": state_of("big")})

    assert [line for line in explained(both) if line in ("tiny", "big")] == ["tiny", "big"]
    assert [line for line in explained(both, model="big") if line in ("tiny", "big")] == ["big"]


def test_a_replica_nobody_explains_is_still_pending() -> None:
    lines = explained(status(**{"Engine-tiny": state_of(pending=2, pending_s=700)}))

    assert (
        lines[2] == "  2 replicas have been pending for 11.7 min. Reason: the cluster gives none; see /ready"
    )


def test_a_history_that_goes_back_to_another_day_has_dates() -> None:
    lines = explained(status(), record(NOON - 86_400), record(NOON))

    assert [line[:24].rstrip() for line in lines[-2:]] == [
        "  2026-05-28 12:00:00  1",
        "  2026-05-29 12:00:00  1",
    ]


def test_in_advise_the_wanted_replicas_are_in_brackets() -> None:
    lines = explained(status(), record(NOON, 1, 1, mode="advise", wanted=4))

    assert lines[-1].startswith("  12:00:00  1 (4)     queue")


def test_many_reports_are_summed_up_and_the_silent_ones_named() -> None:
    ages = {f"engine {index}": index / 10 for index in range(1, 9)}

    assert "  reports: 8 reports, 100 ms to 800 ms old" in explained(status(), record(NOON, ages_s=ages))
    silent = explained(status(), record(NOON, ages_s={**ages, "ingress z": 61.0}))
    assert "  reports: 9 reports, 100 ms to 61 s old; too old to use: ingress z" in silent
    assert "  reports: none" in explained(status(), record(NOON, ages_s={}))


def test_long_reasons_are_wrapped_below_their_start() -> None:
    long = "queue: " + "17 requests are waiting and the target is 8 per replica " * 5
    clamps = [{"name": "delay", "effect": long}]

    lines = explained(
        status(**{"Engine-tiny": state_of(pending=1, pending_s=5, reason=long)}),
        record(NOON, reason=long, counterfactual=long, notes=[long], clamps=clamps),
    )

    assert max(len(line) for line in lines) <= WIDTH
    start = next(index for index, line in enumerate(lines) if line.startswith("  12:00:00"))
    assert lines[start + 1].startswith(" " * lines[start].index("17 requests"))


def test_colours_change_no_text() -> None:
    given = (
        status(errors=1, **{"Engine-tiny": state_of(pending=1, pending_s=5, reason="no GPU")}),
        record(NOON, notes=["infeasible"]),
        record(NOON, kind="error", terms=[]),
    )

    coloured = explained(*given, on=True)

    assert any("\x1b[" in line for line in coloured)
    assert [re.sub(r"\x1b\[\d+m", "", line) for line in coloured] == explained(*given)


def test_fields_of_a_newer_server_are_no_error() -> None:
    newer = record(NOON) | {"weather": "fine"}

    assert "tiny" in explained(status() | {"region": "here"}, newer)


def test_a_line_that_stands_alone_names_its_model() -> None:
    document = DecisionsDocument.model_validate({"autoscaler": None, "decisions": [record(NOON)]})

    assert history_line(document.decisions[0], UTC, with_model=True) == (
        "  12:00:00  tiny  1 -> 3    queue         17 requests are waiting; the target is 8 per replica"
    )


def test_loaded_adapters_are_named_with_their_replicas() -> None:
    holders = {"pirate": 2, **{f"adapter-{number}": 1 for number in range(20)}}
    document = DecisionsDocument.model_validate(
        {"autoscaler": status(engine=state_of()), "decisions": [], "adapters": {"tiny": holders}}
    )

    text = " ".join(explain(document, NOON, zone=UTC).split())

    assert "Adapters loaded: pirate on 2 replicas, adapter-0 on 1 replica," in text
    assert text.endswith("and 5 more.")


def test_history_shows_a_lost_replica() -> None:
    lost = "Replica r1 was lost (engine_hung): its engine hangs."
    loss = record(NOON - 5, 1, 1, kind="loss", binding="loss", reason=lost, terms=[])

    lines = explained(status(**{"Engine-tiny": state_of()}), loss)

    assert lines[-1] == f"  11:59:55  1 -> 1    loss          {lost}"
