"""Advice as text and as a JSON document."""

import shlex
from collections.abc import Callable
from statistics import median
from typing import Any

from replay.advice.advise import Advice, Compared, Verdict, harder
from replay.advice.score import Score, Spread, savings, within_noise
from replay.inputs import Inputs
from serve_app.cli import formats
from serve_app.cli.knobs_command import snippet
from serve_app.cluster.knob_changes import value_text

_PLACEHOLDER = "MODEL"
_NAME_WIDTH, _VALUE_WIDTH = 22, 28


def advice_text(advice: Advice, inputs: Inputs) -> str:
    """The verdict, the patch, what it costs and how sure that is."""
    blocks = [_verdict(advice)]
    if advice.verdict in (Verdict.CHANGE, Verdict.NOTHING_MEETS) and advice.changes:
        blocks.append(_patch(advice, inputs))
    elif advice.changes:
        moves = [
            f"  {name}: {value_text(getattr(advice.current, name))} -> {value_text(value)}"
            for name, value in advice.changes.items()
        ]
        blocks.append("\n".join(["The change that was found:", *moves]))
    blocks += [_figures(advice), _certainty(advice)]
    return "\n\n".join(blocks) + "\n"


def advice_document(advice: Advice, inputs: Inputs) -> dict[str, Any]:
    """The advice as JSON: shares from 0 to 1, seconds, US dollars."""
    return {
        "verdict": advice.verdict.value,
        "sentence": _verdict(advice),
        "trace": inputs.trace.name,
        "duration_s": advice.duration_s,
        "profile": advice.profile.name,
        "application": inputs.app,
        "model": inputs.model,
        "goal": advice.goal,
        "seeds": list(advice.seeds),
        "searched": list(advice.names),
        "changes": {
            name: {"from": getattr(advice.current, name), "to": value}
            for name, value in advice.changes.items()
        },
        "user_config": _user_config(advice, inputs) if advice.changes else None,
        "halves": {
            part.label: {
                "tuned_on": part == advice.tuned_on,
                "current": _score_document(compared.current, advice),
                "advised": _score_document(compared.advised, advice),
                "saved_gpu_seconds": list(savings(compared.advised, compared.current)),
                "within_noise": within_noise(compared.advised, compared.current),
            }
            for part, compared in _both(advice)
        },
        "tried": advice.tried,
        "dropped": advice.dropped,
        "exhausted": advice.exhausted,
        "spent_s": round(advice.spent_s, 1),
    }


def _verdict(advice: Advice) -> str:
    goal = formats.percent(advice.goal)
    saved = _share(_saved_share(advice.held_out))
    count = len(advice.changes)
    knobs = f"{count} knob{'s' if count != 1 else ''}"
    reached = _reached(advice.held_out.advised)
    if advice.verdict is Verdict.NOTHING_MEETS:
        nearest = _reached(advice.tuned.advised)
        start = f"No configuration that was tried attains {goal}"
        if advice.tuned.current.late:
            start += " and finishes the background work by its deadline"
        if not advice.changes:
            return f"{start}; the current knobs come closest, with {nearest}.{_infeasible(advice)}"
        closest = f"a change of {knobs} comes closest, with {nearest} on the half it was tuned on"
        return f"{start}; {closest}.{_infeasible(advice)}"
    if advice.verdict is Verdict.KEEP:
        if not advice.tried:
            return f"The current knobs attain {goal}; there was no time to try others."
        return (
            f"Keep the knobs as they are: they attain {goal}, and no configuration that was tried does so at "
            "a cost that is more than half a per cent lower."
        )
    if advice.verdict is Verdict.NOT_HELD:
        return (
            f"Keep the knobs as they are: a change of {knobs} attains {goal} on the half it was tuned on, "
            f"but only {reached} on the other half."
        )
    if advice.verdict is Verdict.NOISE:
        return (
            f"Keep the knobs as they are: a change of {knobs} costs {saved} on the half it was not tuned on, "
            "which is no saving beyond the noise between seeds."
        )
    if not (advice.tuned.current.meets(advice.goal) and advice.held_out.current.meets(advice.goal)):
        now = _reached(min(advice.tuned.current, advice.held_out.current, key=_fitness))
        return f"Change {knobs}: it attains {reached} and the current knobs {now}, for {saved}."
    return f"Change {knobs}: {saved} at {reached} attainment; the goal is {goal}."


def _reached(score: Score) -> str:
    """The attainment, and the background work that was late."""
    late = f" ({score.late:,.0f} background requests unfinished at their deadline)" if score.late else ""
    return formats.percent(score.attainment) + late


def _fitness(score: Score) -> tuple[float, float]:
    return score.attainment, -score.late


def _infeasible(advice: Advice) -> str:
    share = advice.tuned.current.spread("infeasible").median
    if share <= 0.0:
        return ""
    return (
        f" {formats.percent(share)} of the requests miss the TTFT target of "
        f"{formats.seconds(advice.current.ttft_target_s)} by their own prefill, however many replicas run."
    )


def _patch(advice: Advice, inputs: Inputs) -> str:
    *head, tail = snippet(_user_config(advice, inputs)).rstrip("\n").split("\n")
    lines = [*head, tail]
    first = len(lines) - len(advice.changes)
    for index, name in enumerate(advice.changes):
        lines[first + index] += f"  # was {value_text(getattr(advice.current, name))}"
    where = f"In {inputs.config}, in application {inputs.app!r}" if inputs.config else "In the configuration"
    settings = [f"{name}={value_text(value)}" for name, value in advice.changes.items()]
    app = ["--app", inputs.app] if inputs.app else []
    command = shlex.join(["tideserve", "knobs", "set", *app, inputs.model or _PLACEHOLDER, *settings])
    note = "" if inputs.model else f" (replace {_PLACEHOLDER} with the model's name)"
    return (
        f"{where}{note}, add to what is there already:\n\n"
        + "\n".join(f"  {line}" for line in lines)
        + f"\n\nIn a running application, without a restart: {command}"
    )


def _user_config(advice: Advice, inputs: Inputs) -> dict[str, Any]:
    plain = advice.advised.model_dump(mode="json")
    return {"autoscaling": {inputs.model or _PLACEHOLDER: {name: plain[name] for name in advice.changes}}}


def _both(advice: Advice) -> list[tuple[Any, Compared]]:
    pairs = [(advice.tuned_on, advice.tuned), (advice.checked_on, advice.held_out)]
    return sorted(pairs, key=lambda pair: pair[0].start_s)


def _figures(advice: Advice) -> str:
    changed = bool(advice.changes)
    lines = [
        f"{'':{_NAME_WIDTH}}{'current':>{_VALUE_WIDTH}}" + (f"{'advised':>{_VALUE_WIDTH}}" if changed else "")
    ]
    for part, compared in _both(advice):
        role = "tuned on" if part == advice.tuned_on else "not tuned on"
        lines.append(f"{part.label}, {role}")
        for name, read in _rows(advice):
            cells = [read(compared.current), *([read(compared.advised)] if changed else [])]
            lines.append(f"  {name:{_NAME_WIDTH - 2}}" + "".join(f"{cell:>{_VALUE_WIDTH}}" for cell in cells))
    return "\n".join(line.rstrip() for line in lines)


def _rows(advice: Advice) -> list[tuple[str, Callable[[Score], str]]]:
    price = advice.profile.price_per_gpu_hour / 3600.0
    rows: list[tuple[str, Callable[[Score], str]]] = [
        ("GPU-seconds", lambda score: _range(score.spread("gpu_seconds"), formats.whole)),
        ("attainment", lambda score: _range(score.spread("attainment"), formats.percent)),
        ("TTFT in time", lambda score: _range(score.spread("ttft_ok"), formats.percent)),
        ("starts", lambda score: _range(score.spread("starts"), formats.whole)),
    ]
    if any(score.late for both in (advice.tuned, advice.held_out) for score in (both.current, both.advised)):
        rows.append(("late background", lambda score: _range(score.spread("late"), formats.whole)))
    if price:
        rows.insert(
            1,
            (
                "US$",
                lambda score: _range(score.spread("gpu_seconds"), lambda value: f"{value * price:,.2f}"),
            ),
        )
    return rows


def _range(spread: Spread, form: Callable[[float], str]) -> str:
    low, middle, high = (form(value) for value in (spread.low, spread.median, spread.high))
    if low == high:
        return middle
    return f"{middle} ({low.removesuffix(' %')}-{high.removesuffix(' %')})"


def _certainty(advice: Advice) -> str:
    seeds = len(advice.seeds)
    sentences = [
        f"Medians of {seeds} seeds, lowest and highest in brackets." if seeds > 1 else "One seed only.",
        f"Tuned on the {advice.tuned_on.label} of {formats.seconds(advice.duration_s)}"
        f"{harder(advice.tuned.current, advice.held_out.current)}; checked on the other.",
    ]
    if advice.changes:
        sentences.append(_saving_sentence(advice))
    ended = (
        "until no single change helped"
        if advice.exhausted
        else "until the time was up: a longer --budget-s may find more"
    )
    sentences.append(
        f"{advice.tried} configurations were tried in {formats.seconds(advice.spent_s)}, {advice.dropped} of "
        f"them with one seed only, {ended}."
    )
    if not advice.tried and not advice.exhausted:
        sentences[-1] = (
            f"The current knobs alone took {formats.seconds(advice.spent_s)}, which left no time to search: "
            "give a longer --budget-s, fewer --seeds or a shorter --duration."
        )
    sentences.append("A simulated fleet is a model: monitor attainment after a change.")
    return "\n".join(sentences)


def _saving_sentence(advice: Advice) -> str:
    held = advice.held_out
    noise = within_noise(held.advised, held.current)
    shares = [
        saved / before.gpu_seconds
        for saved, before in zip(savings(held.advised, held.current), held.current.outcomes, strict=True)
    ]
    text = f"On the half it was not tuned on it costs {_share(_saved_share(held))}"
    if len(shares) > 1:
        text += f", seed by seed from {100 * min(shares):+.1f} to {100 * max(shares):+.1f} % saved"
    if noise is None:
        return f"{text}; one seed cannot tell how much of that is noise."
    return f"{text}; that is {'within' if noise else 'beyond'} the noise between seeds."


def _saved_share(compared: Compared) -> float:
    """The share of the GPU-seconds that is saved."""
    return median(savings(compared.advised, compared.current)) / compared.current.gpu_seconds


def _share(saved: float) -> str:
    if abs(saved) < 0.0005:
        return "as many GPU-seconds"
    return f"{100 * abs(saved):.1f} % {'fewer' if saved > 0 else 'more'} GPU-seconds"


def _score_document(score: Score, advice: Advice) -> dict[str, Any]:
    price = advice.profile.price_per_gpu_hour / 3600.0
    document: dict[str, Any] = {}
    for name in ("gpu_seconds", "attainment", "ttft_ok", "starts", "changes", "infeasible", "late"):
        spread = score.spread(name)
        document[name] = {"low": spread.low, "median": spread.median, "high": spread.high}
    document["dollars"] = round(score.gpu_seconds * price, 4) if price else None
    return document
