from typing import Any

import pytest
from ray.serve._private.cluster_node_info_cache import ClusterNodeInfoCache, DefaultClusterNodeInfoCache
from ray.serve._private.utils import call_function_from_import_path

from serve_app import env
from serve_app.controller.node_info import spaced


class Gcs:
    """Counts updates; `lost` makes them fail."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.lost = False

    def update(self, cache: ClusterNodeInfoCache) -> None:
        if self.lost:
            raise TimeoutError
        self.updates.append(cache)


def test_a_cache_is_updated_at_once_and_then_once_an_interval() -> None:
    gcs, now = Gcs(), [100.0]
    update = spaced(gcs.update, 1.0, lambda: now[0])
    cache = DefaultClusterNodeInfoCache(None)

    for eighth in range(21):
        now[0] = 100.0 + eighth / 8
        update(cache)

    assert len(gcs.updates) == 3  # at 100, 101 and 102


def test_every_cache_has_its_own_interval() -> None:
    gcs = Gcs()
    update = spaced(gcs.update, 1.0, lambda: 100.0)
    caches = [DefaultClusterNodeInfoCache(None) for _ in range(2)]

    for cache in [*caches, *caches]:
        update(cache)

    assert gcs.updates == caches


def test_what_failed_is_tried_again_at_the_next_turn() -> None:
    gcs = Gcs()
    update = spaced(gcs.update, 1.0, lambda: 100.0)
    cache = DefaultClusterNodeInfoCache(None)

    gcs.lost = True
    with pytest.raises(TimeoutError):
        update(cache)
    gcs.lost = False
    update(cache)

    assert gcs.updates == [cache]


def test_the_caches_of_ray_s_controller_ask_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    gcs = Gcs()
    monkeypatch.setattr(ClusterNodeInfoCache, "update", gcs.update)

    call_function_from_import_path(env.ALWAYS["RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH"])
    cache = DefaultClusterNodeInfoCache(None)
    cache.update()
    cache.update()

    assert gcs.updates == [cache]
