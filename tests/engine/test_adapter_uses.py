from serve_app.engine.adapter_uses import Uses
from serve_app.settings.adapters import MOST_ADAPTERS


def test_frequent_adapters_count_more() -> None:
    uses = Uses(2)
    for name in ("a", "b", "a", "c", "a", "b"):
        uses.note(name)

    assert uses.of("a") > uses.of("b") > uses.of("c") > uses.of("never") == 0.0


def test_old_uses_fade() -> None:
    uses = Uses(1)
    for _ in range(100):
        uses.note("old")
    for _ in range(64):
        uses.note("new")

    # The uses of `old` count half after 64 uses. It had at most 92.
    assert uses.of("new") > 0.9 * uses.of("old")
    uses.note("new")
    for _ in range(20):
        uses.note("new")
    assert uses.of("new") > uses.of("old")


def test_counts_stay_finite_and_few() -> None:
    uses = Uses(1)
    for number in range(50_000):
        uses.note("always")
        uses.note(f"once-{number}")

    assert 0.0 < uses.of("always") < 1e200
    assert uses.of("always") > uses.of("once-49999") > 0.0
    assert sum(uses.of(f"once-{number}") > 0.0 for number in range(50_000)) < 2 * MOST_ADAPTERS
