"""The policy on a model with a new version: replicas for its share, its fall back, and its records."""

from collections import Counter
from dataclasses import replace
from typing import Any, cast

import pytest

from serve_app.cluster.pending_pods import PendingPods
from serve_app.controller.canaries import Canaries
from serve_app.controller.document_exchange import DocumentExchange, Inbox
from serve_app.settings.knobs import CanaryRules, IngressKnobs, Knobs
from serve_app.wire.documents import KNOBS, put_document
from serve_app.wire.served_models import ServedApplication, ServedModel
from serve_app.wire.version_documents import Counts, put_counts, put_share, read_counts, read_shares
from serve_app.wire.versions import Share
from tests.controller.fake_cluster import START, FakeCluster
from tests.stub_kv import StubKv

OLD, NEW = "Engine-tide", "Engine-tide-new"


def served(share: float = 0.25, shadow: float = 0.0, **knobs: Any) -> ServedApplication:
    both = Knobs(min_replicas=2, max_replicas=8, **knobs)
    own = both.model_copy(update={"min_replicas": 0})
    models = {
        OLD: ServedModel("tide", OLD, both, identity="a"),
        NEW: ServedModel("tide@new", NEW, own, identity="b", version_of=OLD, share=share, shadow=shadow),
    }
    return ServedApplication(models, IngressKnobs())


class Watch:
    """The canaries of an application, with counts of two ingress replicas that the test lets grow."""

    def __init__(self, app: ServedApplication) -> None:
        self.app, self.canaries, self.now = app, Canaries(), 1000.0
        self.sums = [Counter[str](), Counter[str]()]
        self.shares: dict[str, Share] = {}

    @property
    def inbox(self) -> Inbox:
        counts = {
            f"ingress-{number}": Counts(self.now, {name: dict(of) for name, of in self._of(number).items()})
            for number in range(2)
        }
        return Inbox(self.app, shares=self.shares, counts=counts)

    def _of(self, number: int) -> dict[str, Counter[str]]:
        return {"tide": self.sums[0], "tide@new": self.sums[1]} if number == 0 else {"tide": Counter()}

    def turn(self, old: dict[str, int], new: dict[str, int]) -> list[str]:
        """Return the events of the next look. A fall back is stored at once."""
        self.now += 2.0
        self.sums[0].update(old)
        self.sums[1].update(new)
        events = []
        for version, share, event in self.canaries.look(self.app, self.inbox, self.now, self.now):
            events.append(event)
            if share is not None:
                self.shares[version.name] = share
        return events

    def least(self, deployment: str) -> int:
        model = self.canaries.with_bounds(self.app.models[deployment], self.app, self.inbox)
        return model.knobs.min_replicas


def fall_back(watch: Watch) -> tuple[int, str]:
    for turn in range(60):
        if events := watch.turn({"requests": 30}, {"requests": 10, "errors": 3}):
            return turn, events[0]
    raise AssertionError("it did not fall back")


def test_failing_version_falls_back_with_the_numbers() -> None:
    watch = Watch(served())

    turns, event = fall_back(watch)  # the first has nothing to compare with

    assert event.startswith("version: share 0.25 -> 0, fell back. errors: ")
    assert f"{3 * turns} of {10 * turns} requests failed, and 0 of {30 * turns} of the old" in event
    assert watch.shares["tide@new"].share == 0.0


def test_a_fall_back_is_recorded_once_and_stays() -> None:
    watch = Watch(served())
    fall_back(watch)

    assert [watch.turn({"requests": 30}, {}) for _ in range(30)] == [[]] * 30
    assert watch.canaries.document(watch.app.models[NEW], watch.inbox)["share"] == 0.0


def test_equal_versions_stay() -> None:
    watch = Watch(served())

    assert all(
        not watch.turn({"requests": 30, "errors": 1}, {"requests": 10, "errors": int(not turn % 3)})
        for turn in range(100)
    )


def test_counts_of_before_the_comparison_do_not_matter() -> None:
    watch = Watch(served())
    watch.sums[1].update(requests=1000, errors=1000)
    watch.turn({}, {})

    assert watch.canaries.document(watch.app.models[NEW], watch.inbox)["new"]["requests"] == 0


def test_an_operators_change_is_an_event() -> None:
    watch = Watch(served())
    watch.turn({}, {})
    start = watch.app.models[NEW].start_share.start
    watch.shares["tide@new"] = Share(1.0, 0.0, start, why="set by API key 'a'", at=watch.now)

    assert watch.turn({}, {}) == ["version: share 0.25 -> 1: set by API key 'a'"]
    assert "new" not in watch.canaries.document(watch.app.models[NEW], watch.inbox)


def test_changed_settings_replace_a_fall_back() -> None:
    watch = Watch(served())
    fall_back(watch)
    watch.app = served(share=0.1)

    assert watch.turn({}, {}) == ["version: share 0 -> 0.1: settings"]
    assert watch.canaries.document(watch.app.models[NEW], watch.inbox)["share"] == 0.1
    assert fall_back(watch)[1].startswith("version: share 0.1 -> 0, fell back. errors: ")


def test_a_slow_clock_of_an_operator_stops_no_comparison() -> None:
    watch = Watch(served())
    fall_back(watch)
    start = watch.app.models[NEW].start_share.start
    watch.shares["tide@new"] = Share(0.5, 0.0, start, why="set by ?", at=1.0)

    assert watch.turn({}, {}) == ["version: share 0 -> 0.5: set by ?"]
    assert fall_back(watch)[1].startswith("version: share 0.5 -> 0, fell back. errors: ")


def test_a_fall_back_that_is_not_stored_yet_is_decided_once() -> None:
    watch = Watch(served())
    fall_back(watch)
    stored = watch.shares.pop("tide@new")

    assert watch.turn({"requests": 30}, {"requests": 10, "errors": 9}) == []
    watch.shares["tide@new"] = stored
    assert watch.turn({}, {}) == []


def test_no_rule_no_fall_back() -> None:
    watch = Watch(served(canary=CanaryRules(errors=None)))

    assert not any(watch.turn({"requests": 30}, {"requests": 10, "errors": 9}) for _ in range(60))


def test_a_removed_version_leaves_nothing_to_one_of_its_name() -> None:
    watch = Watch(served())
    for _ in range(3):
        watch.turn({"requests": 30}, {"requests": 10, "errors": 3})
    watch.canaries.note_load(NEW, {"arrivals_30s_rps": 90.0, "replica_capacity_rps": 1.0}, 4)
    both, watch.app = watch.app, replace(watch.app, models={OLD: watch.app.models[OLD]})
    watch.canaries.forget_except(watch.app.models)
    watch.app = replace(both, models={**both.models, NEW: replace(both.models[NEW], share=0.5)})

    assert watch.least(NEW) == 1
    assert watch.turn({}, {}) == []
    assert watch.canaries.document(watch.app.models[NEW], watch.inbox)["new"]["requests"] == 0


# Replicas.


@pytest.mark.parametrize(
    ("share", "shadow", "least"),
    [(0.0, 0.0, 0), (0.01, 0.0, 1), (0.0, 0.01, 1), (0.25, 0.0, 3), (1.0, 0.0, 8)],
)
def test_replicas_for_the_share_come_before_its_requests(share: float, shadow: float, least: int) -> None:
    watch = Watch(served(share, shadow))
    watch.canaries.note_load(OLD, {"arrivals_30s_rps": 100.0, "replica_capacity_rps": 10.0}, 10)

    assert watch.least(NEW) == least
    assert watch.least(OLD) == 2


def test_a_promoted_version_relieves_the_old_one() -> None:
    watch = Watch(served(1.0))
    assert watch.least(OLD) == 2
    watch.canaries.note_load(NEW, {}, 1)

    assert watch.least(OLD) == 0


def test_models_without_versions_are_unchanged() -> None:
    watch = Watch(served())
    alone = replace(watch.app, models={OLD: watch.app.models[OLD]})

    assert watch.canaries.with_bounds(alone.models[OLD], alone, Inbox(alone)) is alone.models[OLD]
    assert not list(watch.canaries.look(alone, Inbox(alone), 0.0, 0.0))


# Documents.


@pytest.fixture
def exchange(kv: StubKv) -> DocumentExchange:
    put_document(KNOBS, "shop", served().document(START))
    cluster = FakeCluster()
    return DocumentExchange("shop", cluster.read_nodes, cast(PendingPods, cluster))


def test_shares_and_counts_are_exchanged(exchange: DocumentExchange) -> None:
    share = Share(0.5, 0.0, "s", why="set by an operator")
    put_share("shop", "tide@new", share)
    put_counts("shop", "i1", START, {"tide": {"requests": 3}})
    exchange.shares.append(("other@new", Share(0.0, 0.0, "t")))
    exchange.turn(START)

    assert exchange.inbox.shares == {"tide@new": share, "other@new": Share(0.0, 0.0, "t")}
    assert exchange.inbox.counts["i1"].by_model == {"tide": {"requests": 3}}
    assert not exchange.shares


@pytest.mark.parametrize("others", [True, False])
def test_a_later_version_of_the_same_name_begins_anew(exchange: DocumentExchange, others: bool) -> None:
    app = served()
    put_share("shop", "tide@new", Share(1.0, 0.0, app.models[NEW].start_share.start))
    exchange.turn(START)
    kept = {OLD: app.models[OLD]}
    if others:
        kept["other"] = replace(app.models[NEW], name="tide@b", deployment="other")
    put_document(KNOBS, "shop", replace(app, models=kept).document(START))
    exchange.turn(START + 10.0)

    assert read_shares("shop") == {}


def test_counts_of_a_lost_ingress_replica_are_removed(exchange: DocumentExchange) -> None:
    put_counts("shop", "i1", START, {"tide": {"requests": 3}})
    exchange.turn(START)
    exchange.turn(START + 61.0)

    assert read_counts("shop") == {}


def test_versions_survive_the_way_to_the_policy(exchange: DocumentExchange) -> None:
    exchange.turn(START)

    assert exchange.inbox.served == served()
