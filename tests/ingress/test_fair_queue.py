"""The order of waiting requests, as properties of a server that is always full."""

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import count, cycle, repeat

from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.ingress.fair_queue import FairQueue
from serve_app.settings.caller import LANES, Caller, Lane

SHARE = 0.2


class Server:
    """Runs `places` requests at a time. Their true tokens are known only at their end."""

    def __init__(self, places: int = 8) -> None:
        self.queue: FairQueue[int] = FairQueue()
        self.asked: dict[int, tuple[Caller, int, int]] = {}
        """By request: its caller, its estimate and its true tokens."""
        self.running: list[int] = []
        self.released: list[int] = []
        self.served: Counter[str] = Counter()
        self._numbers = count()
        self._places = places

    def ask(self, caller: Caller, tokens: int = 100, estimate: int | None = None) -> int:
        number = next(self._numbers)
        self.asked[number] = caller, tokens if estimate is None else estimate, tokens
        self.queue.add(number, caller)
        return number

    def fill(self) -> None:
        while len(self.running) < self._places and (number := self.queue.first()) is not None:
            caller, estimate, _ = self.asked[number]
            self.queue.remove(number, caller)
            self.queue.charge(caller, estimate, SHARE)
            self.running.append(number)
            self.released.append(number)

    def end_one(self) -> None:
        number = self.running.pop(0)
        caller, estimate, tokens = self.asked[number]
        self.queue.settle(caller, tokens - estimate)
        self.served[caller.key] += tokens

    def work(self, requests: int, demand: Callable[[], None] = lambda: None) -> None:
        """End so many requests. `demand` keeps the queue full."""
        for _ in range(requests):
            demand()
            self.fill()
            self.end_one()


def overload(server: Server, keys: Mapping[Caller, Iterator[int]], estimate: int) -> Callable[[], None]:
    """Keep 12 requests of each key waiting, of these lengths."""
    asked: Counter[Caller] = Counter()

    def demand() -> None:
        begun = Counter(server.asked[number][0] for number in server.released[-1:])
        asked.subtract(begun)
        for caller, lengths in keys.items():
            while asked[caller] < 12:
                server.ask(caller, next(lengths), estimate)
                asked[caller] += 1

    return demand


lengths = st.lists(st.integers(20, 400), min_size=1, max_size=5).map(cycle)


@settings(max_examples=8, deadline=None)
@given(lengths, lengths)
def test_weights_one_to_three_get_tokens_one_to_three(of_one: Iterator[int], of_three: Iterator[int]) -> None:
    server = Server()
    one, three = Caller("one", weight=1.0), Caller("three", weight=3.0)

    server.work(4000, overload(server, {one: of_one, three: of_three}, estimate=100))

    assert abs(server.served["three"] / server.served["one"] / 3.0 - 1.0) <= 0.1


@settings(max_examples=5, deadline=None)
@given(st.lists(lengths, min_size=10, max_size=10))
def test_ten_equal_keys_get_equal_tokens(of_each: list[Iterator[int]]) -> None:
    server = Server()
    keys = {Caller(f"key {number}"): of_one for number, of_one in enumerate(of_each)}

    server.work(4000, overload(server, keys, estimate=100))

    served = [server.served[caller.key] for caller in keys]
    assert sum(served) ** 2 / (len(served) * sum(tokens**2 for tokens in served)) >= 0.98  # Jain's index


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.integers(1, 100))
def test_key_with_many_requests_delays_another_by_one_turn(places: int, flood: int) -> None:
    server = Server(places)
    for _ in range(16 * flood + 5 * places):
        server.ask(Caller("flood"))
    server.work(3 * places)

    mine = server.ask(Caller("mine"))
    before = len(server.released)
    server.work(2)

    assert server.released.index(mine) - before <= 1


def test_returning_key_saves_no_tokens_for_its_pause() -> None:
    server = Server(places=1)
    busy, back = Caller("busy"), Caller("back")
    for _ in range(1000):
        server.ask(busy)
    server.work(500)
    for _ in range(100):
        server.ask(back)
    server.served.clear()

    server.work(100)

    assert abs(server.served["busy"] - server.served["back"]) <= 200


def test_key_alone_pays_nothing_later() -> None:
    """Tokens that nobody else wanted cost nothing, also if the queue was empty in between."""
    server = Server(places=1)
    for _ in range(50):
        server.ask(Caller("first"))
    server.work(50)
    for _ in range(50):
        server.ask(Caller("second"))
        server.ask(Caller("first"))
    server.served.clear()

    server.work(60)

    assert abs(server.served["first"] - server.served["second"]) <= 200


def test_cached_prompts_are_charged_by_computed_tokens() -> None:
    """Charged in full, a key with nine tenths of its prompts cached would get a tenth of the computation."""
    server = Server()
    cached, uncached = Caller("cached"), Caller("uncached")
    keys = {cached: repeat(100), uncached: repeat(1000)}

    server.work(2000, overload(server, keys, estimate=1000))

    assert abs(server.served["cached"] / server.served["uncached"] - 1.0) <= 0.1


def test_requests_that_left_take_no_memory() -> None:
    queue: FairQueue[int] = FairQueue()
    queue.add(-1, Caller("waits"))
    gc.collect()
    before = len(gc.get_objects())

    for number in range(10_000):
        queue.add(number, Caller("leaves"))
        queue.remove(number, Caller("leaves"))

    gc.collect()
    assert len(gc.get_objects()) - before < 500
    assert queue.first() == -1


# Lanes.


callers = st.builds(Caller, st.sampled_from("abc"), st.sampled_from(LANES), st.sampled_from([0.5, 1.0, 3.0]))
asks = st.tuples(st.just("ask"), callers, st.integers(1, 3000), st.integers(1, 3000))
others = st.tuples(st.sampled_from(["end", "leave"]), st.integers(0, 100))


@settings(deadline=None)
@given(st.lists(st.one_of(asks, asks, others), max_size=60), st.integers(1, 4))
def test_any_history_fills_places_in_lane_order_and_forgets_nobody(
    history: list[tuple[object, ...]], places: int
) -> None:
    server = Server(places)
    left: set[int] = set()
    for event in history:
        match event:
            case ("ask", Caller() as caller, int(tokens), int(estimate)):
                server.ask(caller, tokens, estimate)
            case ("end", _) if server.running:
                server.end_one()
            case ("leave", int(pick)) if len(server.queue):
                number = list(server.queue)[pick % len(server.queue)]
                server.queue.remove(number, server.asked[number][0])
                left.add(number)
        before = len(server.released)
        server.fill()

        waiting = list(server.queue)
        assert len(waiting) == len(server.queue)
        assert sorted([*waiting, *server.released, *left]) == list(range(len(server.asked)))
        assert not waiting or len(server.running) == places  # work conservation
        for number in server.released[before:]:
            if server.asked[number][0].lane == "background":
                assert all(server.asked[other][0].lane == "background" for other in waiting)
        by_key: dict[Caller, list[int]] = {}
        for number in server.released:
            by_key.setdefault(server.asked[number][0], []).append(number)
        assert all(numbers == sorted(numbers) for numbers in by_key.values())


@settings(max_examples=30, deadline=None)
@given(
    st.floats(0, 1), st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), min_size=50, max_size=50)
)
def test_standard_gets_its_share_while_interactive_waits(share: float, sizes: list[tuple[int, int]]) -> None:
    queue: FairQueue[tuple[Lane, int, int]] = FairQueue()
    callers_: dict[Lane, Caller] = {lane: Caller("a", lane) for lane in LANES}
    for number, (interactive, standard) in enumerate(sizes):
        queue.add(("interactive", number, interactive), callers_["interactive"])
        queue.add(("standard", number, standard), callers_["standard"])
    released: Counter[Lane] = Counter()

    while queue.waiting("interactive") and queue.waiting("standard"):
        item = queue.first()
        assert item is not None
        lane, _, tokens = item
        queue.remove(item, callers_[lane])
        queue.charge(callers_[lane], tokens, share)
        released[lane] += tokens
        assert released["standard"] >= share * sum(released.values()) - 3000
        # The rest belongs to interactive.
        assert released["interactive"] >= (1 - share) * sum(released.values()) - 3000


def test_interactive_goes_first_without_a_share_of_standard() -> None:
    queue: FairQueue[str] = FairQueue()
    for lane in reversed(LANES):
        for number in range(3):
            queue.add(f"{lane} {number}", Caller("a", lane))

    order = []
    while (item := queue.first()) is not None:
        caller = Caller("a", item.split()[0])  # type: ignore[arg-type]
        queue.remove(item, caller)
        queue.charge(caller, 100, 0.0)
        order.append(item)

    assert order == [f"{lane} {number}" for lane in LANES for number in range(3)]
