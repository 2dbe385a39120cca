from serve_app.engine.adapter_uses import Uses


def test_frequent_adapters_count_more() -> None:
    uses = Uses(2)
    for name in ("a", "b", "a", "c", "a", "b"):
        uses.note(name)

    assert uses.of("a") > uses.of("b") > uses.of("c") > uses.of("never") == 0


def test_old_uses_are_forgotten() -> None:
    uses = Uses(1)
    for _ in range(100):
        uses.note("old")
    for _ in range(60):
        uses.note("new")
    assert uses.of("new") > uses.of("old") == 40

    for _ in range(40):
        uses.note("new")
    assert (uses.of("new"), uses.of("old")) == (100, 0)


def test_more_places_need_more_uses() -> None:
    uses = Uses(16)
    for number in range(1600):
        uses.note(f"{number % 16}")
    assert {uses.of(f"{number}") for number in range(16)} == {100}
