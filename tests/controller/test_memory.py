from serve_app.controller.memory import KEPT_IDENTITIES, Memory
from serve_app.learning.demand import Demand
from serve_app.learning.state import PolicyState

SEVEN = PolicyState(learned_headroom=0.9, kv_cache_tokens=2e5, demand=Demand((8.0,), 5.0, 5.0))


def test_other_replicas_do_not_start_with_the_law_of_the_former_ones() -> None:
    memory, news = Memory(SEVEN, "a 7B").of("a 70B")

    assert (memory.identity, memory.state.learned_headroom, memory.state.kv_cache_tokens) == (
        "a 70B",
        0.0,
        0.0,
    )
    assert memory.state.demand == SEVEN.demand
    assert news == "The model is now 'a 70B'. Nothing learned of 'a 7B' is used."


def test_the_former_model_finds_its_law_again() -> None:
    seventy, _ = Memory(SEVEN, "a 7B").of("a 70B")
    back, news = seventy.of("a 7B")

    assert (back.state.learned_headroom, back.state.kv_cache_tokens) == (0.9, 2e5)
    assert [identity for identity, _ in back.former] == ["a 70B"]
    assert news == "The model is 'a 7B' again. The figures learned of it are used again."


def test_the_same_replicas_and_those_of_unknown_identity_keep_everything() -> None:
    known, unknown = Memory(SEVEN, "a 7B"), Memory(SEVEN)

    assert known.of("a 7B") == known.of("") == (known, "")
    assert unknown.of("a 7B") == (known, "")


def test_no_more_than_the_newest_laws_are_kept() -> None:
    memory = Memory(SEVEN, "0")
    for number in range(1, 10):
        memory, _ = memory.of(str(number))

    assert [identity for identity, _ in memory.former] == ["8", "7", "6"]
    assert KEPT_IDENTITIES == 4
