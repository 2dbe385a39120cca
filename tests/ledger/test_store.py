"""One contract for all databases."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy

from serve_app.database import TablesVersionError
from serve_app.ledger.store import UsageStore
from serve_app.ledger.usage import Account, Amounts, By, of_variant

ALICE = Account("tide", "alice", "interactive")
BOB = Account("tide", "bob", "background")
IDLE = Account("tide", state="idle")
HOUR = (0.0, 3600.0)


def amounts(tokens: int = 0, gpu_seconds: float = 0.0) -> Amounts:
    return Amounts(1, 2 * tokens, tokens, tokens, gpu_seconds, gpu_seconds / 100)


class TestStore:
    @pytest.fixture
    def store(self, url: str) -> Iterator[UsageStore]:
        store = UsageStore(url)
        yield store
        store.close()

    def test_an_empty_ledger_has_no_usage(self, store: UsageStore) -> None:
        assert store.used("key", *HOUR) == {}
        assert store.unused(*HOUR) == {}

    def test_increments_of_several_writers_add_up(self, store: UsageStore) -> None:
        store.add("a", 1, {(0, ALICE): amounts(5, 1.5), (60, ALICE): amounts(1, 0.25)})
        store.add("b", 1, {(0, ALICE): amounts(10, 2.0), (0, BOB): amounts(3, 9.0)})

        assert store.used("key", *HOUR) == {
            "bob": amounts(3, 9.0),
            "alice": Amounts(3, 32, 16, 16, 3.75, pytest.approx(0.0375)),
        }

    def test_usage_is_summed_by_lane_and_model(self, store: UsageStore) -> None:
        other = Account("other", "bob", "interactive")
        store.add("a", 1, {(0, ALICE): amounts(1), (0, BOB): amounts(2), (0, other): amounts(4)})

        assert {name: each.completion_tokens for name, each in store.used("lane", *HOUR).items()} == {
            "interactive": 5,
            "background": 2,
        }
        assert {name: each.completion_tokens for name, each in store.used("model", *HOUR).items()} == {
            "tide": 3,
            "other": 4,
        }

    def test_a_models_usage_includes_that_of_its_variants(self, store: UsageStore) -> None:
        spot, other = ALICE._replace(model=of_variant("tide", "spot")), ALICE._replace(model="other")
        dear = ALICE._replace(model=of_variant("tide", "on-demand"))
        store.add("a", 1, {(0, spot): amounts(1), (0, dear): amounts(2), (0, other): amounts(4)})

        def tokens(by: By) -> dict[str, int]:
            return {name: each.completion_tokens for name, each in store.used(by, *HOUR).items()}

        assert tokens("variant") == {"tide (spot)": 1, "tide (on-demand)": 2, "other": 4}
        assert tokens("model") == {"tide": 3, "other": 4}

    def test_a_repeated_write_counts_once(self, store: UsageStore) -> None:
        rows = {(0, ALICE): amounts(5, 1.0)}
        store.add("a", 1, rows)
        store.add("a", 1, rows)
        store.add("a", 2, rows)
        store.add("a", 1, rows)

        assert store.used("key", *HOUR)["alice"].completion_tokens == 10

    def test_the_window_includes_its_begin_and_excludes_its_end(self, store: UsageStore) -> None:
        store.add("a", 1, {(minute, ALICE): amounts(1) for minute in (0, 60, 120, 180)})

        assert store.used("key", 60, 180)["alice"].requests == 2

    def test_a_key_sees_only_its_own_usage(self, store: UsageStore) -> None:
        store.add("a", 1, {(0, ALICE): amounts(5), (0, BOB): amounts(7), (0, IDLE): amounts(0, 3.0)})

        assert store.used("model", *HOUR, key="bob") == {"tide": amounts(7)}

    def test_idle_time_is_no_keys_usage(self, store: UsageStore) -> None:
        idle, starting = Amounts(gpu_seconds=3.0), Amounts(gpu_seconds=4.0)
        store.add("a", 1, {(0, IDLE): idle, (0, IDLE._replace(state="starting")): starting})

        assert store.used("key", *HOUR) == {}
        assert store.unused(*HOUR) == {"idle": idle, "starting": starting}

    def test_names_beyond_the_bound_are_summed_as_other(self, store: UsageStore) -> None:
        accounts = [Account("tide", f"key-{number}", "standard") for number in range(5)]
        store.add("a", 1, {(0, each): amounts(1, float(n + 1)) for n, each in enumerate(accounts)})

        used = store.used("key", *HOUR, most=2)

        assert {name: each.gpu_seconds for name, each in used.items()} == {
            "key-4": 5.0,
            "key-3": 4.0,
            "other": 6.0,
        }

    def test_old_minutes_are_merged_into_hours(self, store: UsageStore) -> None:
        minutes = (0, 60, 3540, 3600, 3660, 7200, 7260)
        store.add("a", 1, {(minute, ALICE): amounts(1, 0.5) for minute in minutes})
        for _ in range(2):
            store.shrink(merge_before=7200, delete_before=0)

        def requests(since: float, until: float) -> int:
            return store.used("key", since, until).get("alice", Amounts()).requests

        assert [requests(hour, hour + 60) for hour in (0, 3600, 7200, 7260)] == [3, 2, 1, 1]
        assert store.used("key", 0, 10_000)["alice"].gpu_seconds == 3.5

    def test_processes_that_shrink_at_the_same_time_add_nothing_twice(self, url: str) -> None:
        stores = [UsageStore(url) for _ in range(3)]
        rows = {(60 * minute, ALICE): amounts(1) for minute in range(600)}
        stores[0].add("a", 1, rows)
        threads = [threading.Thread(target=store.shrink, args=(1e6, 0.0)) for store in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        used = stores[0].used("key", 0, 1e6)["alice"]
        for store in stores:
            store.close()
        assert used.requests == 600

    def test_old_usage_is_deleted(self, store: UsageStore) -> None:
        store.add("a", 1, {(0, ALICE): amounts(1), (120, ALICE): amounts(1)})

        store.shrink(merge_before=0, delete_before=60)

        assert store.used("key", *HOUR)["alice"].requests == 1

    def test_usage_has_an_index_for_one_keys_own(self, store: UsageStore, url: str) -> None:
        store.add("a", 1, {(0, ALICE): amounts(1)})

        engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        indexes = sqlalchemy.inspect(engine).get_indexes("ledger_amounts")
        engine.dispose()

        assert [index["column_names"] for index in indexes] == [["application", "key", "minute"]]

    def test_application_sees_only_its_own_usage(self, store: UsageStore, url: str) -> None:
        other = UsageStore(url, "other")
        idle = Amounts(gpu_seconds=3.0)
        store.add("a", 1, {(0, ALICE): amounts(5), (60, IDLE): idle})
        other.add("b", 1, {(0, ALICE): amounts(7)})
        for each in (store, other):
            each.shrink(merge_before=3600, delete_before=0)

        assert store.used("key", *HOUR) == {"alice": amounts(5)}
        assert other.used("key", *HOUR, key="alice") == {"alice": amounts(7)}
        assert (store.unused(*HOUR), other.unused(*HOUR)) == ({"idle": idle}, {})
        other.close()

    def test_retention_of_an_application_spares_usage_of_others(self, store: UsageStore, url: str) -> None:
        store.add("a", 1, {(0, ALICE): amounts(5)})
        other = UsageStore(url, "other")

        other.shrink(merge_before=0, delete_before=60)

        assert store.used("key", *HOUR) == {"alice": amounts(5)}
        other.close()

    def test_tables_of_another_version_are_refused(self, store: UsageStore, url: str) -> None:
        store.add("a", 1, {(0, ALICE): amounts(1)})
        engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("UPDATE tideserve_tables SET version = 3"))
        engine.dispose()

        other = UsageStore(url)

        refusal = "its tables of the ledger have version 3, and this release needs version 1: run a release"
        with pytest.raises(TablesVersionError, match=refusal):
            other.used("key", *HOUR)
        other.close()

    def test_writers_at_the_same_time_lose_nothing(self, url: str) -> None:
        stores = [UsageStore(url) for _ in range(4)]
        errors: list[Exception] = []

        def write(store: UsageStore, name: str) -> None:
            try:
                for number in range(1, 26):
                    store.add(name, number, {(0, ALICE): amounts(1, 0.5), (0, BOB): amounts(1)})
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=write, args=(store, str(n))) for n, store in enumerate(stores)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        used = stores[0].used("key", *HOUR)["alice"]
        for store in stores:
            store.close()
        assert errors == []
        assert used == Amounts(100, 200, 100, 100, 50.0, pytest.approx(0.5))


def test_a_slow_query_of_sqlite_is_aborted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = UsageStore(f"sqlite:///{tmp_path}/usage.db")
    rows = {(60 * minute, ALICE): amounts(1) for minute in range(5000)}
    slow.add("a", 1, rows)
    with monkeypatch.context() as patched:
        patched.setattr("serve_app.ledger.store.WAIT_S", 0.0)
        with pytest.raises(sqlalchemy.exc.OperationalError, match="interrupted"):
            slow.used("key", 0, 1e6)

    assert slow.used("key", 0, 1e6)["alice"].requests == 5000
    slow.close()
