"""LoRA adapters of one engine: loaded on first use, and unloaded by use.

vLLM has resolvers for the same purpose. They drop the reason of a failed load, try a broken adapter again
with every request, and never forget an adapter. So this module calls vLLM's `add_lora` and `remove_lora`
itself, and enters loaded adapters where vLLM's handlers look for them.
"""

import asyncio
import itertools
import json
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from safetensors import safe_open
from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM

from serve_app.api.errors import ApiError
from serve_app.settings.model_names import Adapter, LoraSettings
from serve_app.weights.adapter_store import CONFIG, WEIGHTS, AdapterError, AdapterStore, StoredAdapter, url

logger = logging.getLogger("ray.serve")

RETRY_S = 30.0
"""After a failed load, requests for the adapter get the same error for so long."""
_NEWEST = 0.1
"""The weight of the newest load in the mean time of a load."""
_USES_PER_PLACE = 100
"""The uses that count: a mean adapter then has 100, and its share of all uses is known within 10 %."""
_DOWNLOADS = 32
"""While so many sources hang, each for `STALL_S`, loads from others wait. A download has 6 MiB in memory."""
_MOST_CHARACTERS = 500


@dataclass(slots=True, eq=False)
class _Loaded:
    """An adapter that vLLM has loaded."""

    adapter: Adapter
    request: LoRARequest
    stored: StoredAdapter
    calls: int = 0
    """The calls that use it now."""


@dataclass(slots=True)
class Adapters:
    """Loads the adapters of one engine, and keeps those loaded that calls use.

    `max_cached` adapters stay loaded, and one more while calls use all of them. A further one replaces the
    adapter with the fewest uses that no call uses. If calls use all, the adapter with the fewest uses gets no
    new calls until one is free. With eviction of the least recently used adapter, each adapter that is asked
    for once would take the place of a frequent one: `tests/ingress/test_adapter_placement.py` compares both
    rules.

    Args:
        registry: The adapters by name, in which vLLM's handlers look for the `model` of a request.
        on_load: Called with the name of a loaded adapter and the seconds that its load took.
        clock: Seconds.
    """

    engine: AsyncLLM
    registry: dict[str, LoRARequest]
    settings: LoraSettings
    store: AdapterStore
    on_load: Callable[[str, float], None] = lambda _, __: None
    clock: Callable[[], float] = time.monotonic
    adding: bool = False
    """Whether vLLM loads an adapter now. Meanwhile its engine core takes no step."""
    load_s: float = 0.0
    """The seconds for which a load occupies the engine, as a mean; 0 before the first load."""
    _loaded: dict[str, _Loaded] = field(default_factory=dict)
    _loading: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _awaited: Counter[str] = field(default_factory=Counter)
    """The calls that wait for a load. The next load begins before they go on, and must leave them the
    adapter. Otherwise two adapters unload each other hundreds of times."""
    _failures: dict[Adapter, tuple[AdapterError, float]] = field(default_factory=dict)
    """The errors of failed loads, and until when they count."""
    _uses: deque[str] = field(init=False)
    """The names of the latest uses."""
    _leaving: _Loaded | None = None
    """The adapter that gets no new calls, because another one needs its place."""
    _one_load: asyncio.Lock = field(default_factory=asyncio.Lock)
    _freed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a call stops using an adapter."""
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_DOWNLOADS, "adapter download")
    )

    def __post_init__(self) -> None:
        self._uses = deque(maxlen=_USES_PER_PLACE * self.settings.max_cached)

    def names(self) -> list[str]:
        """Return the adapters that are loaded or being loaded."""
        return list({**self._loaded, **self._loading})

    async def take(self, adapter: Adapter) -> None:
        """Load `adapter` unless it is loaded, and keep it loaded until `release`.

        Calls of the same adapter share one load.

        Raises:
            ApiError: 404 for an adapter without files, 400 for a broken one, 503 if it cannot be read now.
        """
        self._uses.append(adapter.name)
        while True:
            loaded = self._loaded.get(adapter.name)
            if loaded is not None and loaded.adapter == adapter and loaded is not self._leaving:
                loaded.calls += 1
                return
            failure, until = self._failures.get(adapter, (None, 0.0))
            if failure is not None and self.clock() < until:
                raise _api_error(adapter.name, failure)
            if loaded is None:
                self._awaited[adapter.name] += 1
                try:
                    await self._load_once(adapter)
                finally:
                    self._awaited[adapter.name] -= 1
                    self._freed.set()
            elif loaded.calls:  # of another source, as vLLM tells adapters apart by name, or leaving
                await self._until_freed()
            else:
                await self._unload(loaded)

    def release(self, adapter: Adapter) -> None:
        """Note that a call stops using `adapter`."""
        self._loaded[adapter.name].calls -= 1
        self._freed.set()

    async def _load_once(self, adapter: Adapter) -> None:
        task = self._loading.get(adapter.name)
        if task is None:
            task = self._loading[adapter.name] = asyncio.create_task(self._load(adapter))
            task.add_done_callback(partial(self._end_load, adapter.name))
        await asyncio.shield(task)  # other calls wait for it too

    def _end_load(self, name: str, task: asyncio.Task[None]) -> None:
        self._loading.pop(name, None)
        if not task.cancelled():
            task.exception()  # the engine has died, and all calls that waited may have left

    async def _load(self, adapter: Adapter) -> None:
        """Load an adapter, or note why it cannot be loaded."""
        began = self.clock()
        try:
            loop = asyncio.get_running_loop()
            threads = self._threads if "://" in url(adapter.source) else None  # a folder waits for no network
            stored = await loop.run_in_executor(threads, self._fetch, adapter.source)
        except AdapterError as error:
            self._note_failure(adapter, error)
            return
        async with self._one_load:
            await self._make_room()
            request = LoRARequest(adapter.name, next(self._ids), str(stored.path))
            asked = self.clock()
            self.adding = True
            try:
                await self.engine.add_lora(request)
            except Exception as error:
                stored.close()
                if self.engine.errored:
                    raise
                await self.engine.remove_lora(request.lora_int_id)  # it may be loaded in part
                self._note_failure(adapter, _reason(error, stored))
                return
            finally:
                self.adding = False
            self.load_s += (self.clock() - asked - self.load_s) * (_NEWEST if self.load_s else 1.0)
            self._loaded[adapter.name] = _Loaded(adapter, request, stored)
            self.registry[adapter.name] = request
            if len(self._loaded) > self.settings.max_cached:
                await self._unload_least_used(adapter)
        seconds = self.clock() - began
        self.on_load(adapter.name, seconds)
        logger.info("adapter %s loaded from %s in %.2f s", adapter.name, adapter.source, seconds)

    def _fetch(self, source: str) -> StoredAdapter:
        stored = self.store.fetch(source)
        try:
            check_files(stored.path, self.engine.model_config.get_vocab_size())
        except Exception as error:
            stored.close()
            raise _reason(error, stored) from error
        return stored

    async def _make_room(self) -> None:
        while len(self._loaded) > self.settings.max_cached and not await self._unload_least_used():
            # Otherwise there is never room while each adapter gets new calls.
            in_use = [one for one in self._loaded.values() if one.calls]
            self._leaving = self._leaving or (self._least_used(in_use) if in_use else None)
            await self._until_freed()
        self._leaving = None
        self._freed.set()

    async def _unload_least_used(self, kept: Adapter | None = None) -> bool:
        """Unload the adapter with the fewest uses, but no used one and not `kept`. Returns whether it did."""
        among = [one for one in self._loaded.values() if one.adapter != kept]
        idle = [one for one in among if not one.calls and not self._awaited[one.adapter.name]]
        if idle:
            await self._unload(self._least_used(idle))
        return bool(idle)

    def _least_used(self, among: Iterable[_Loaded]) -> _Loaded:
        uses = Counter(self._uses)
        return min(among, key=lambda one: uses[one.adapter.name])

    async def _unload(self, loaded: _Loaded) -> None:
        # At once, so that no call takes it while vLLM removes it.
        del self._loaded[loaded.adapter.name], self.registry[loaded.adapter.name]
        try:
            await self.engine.remove_lora(loaded.request.lora_int_id)
        finally:  # the client may leave meanwhile
            loaded.stored.close()

    def _note_failure(self, adapter: Adapter, error: AdapterError) -> None:
        logger.warning("adapter %s from %s: %s (%r)", adapter.name, adapter.source, error, error.__cause__)
        now = self.clock()
        self._failures = {one: known for one, known in self._failures.items() if known[1] > now}
        self._failures[adapter] = (error, now + RETRY_S)

    async def _until_freed(self) -> None:
        self._freed.clear()
        await self._freed.wait()


def _api_error(name: str, error: AdapterError) -> ApiError:
    code = {400: "adapter_invalid", 404: "model_not_found"}.get(error.status, "adapter_unavailable")
    headers = {"Retry-After": f"{RETRY_S:.0f}"} if error.status == 503 else {}
    return ApiError(error.status, f"model = {name!r}: {error}", param="model", code=code, headers=headers)


def check_files(folder: Path, vocabulary: int) -> None:
    """Check what vLLM ignores in the files of an adapter. `checking_worker` checks the rest.

    Raises:
        ValueError: the adapter is no LoRA, or was trained with other tokens than the model's `vocabulary`.
        Exception: from json and safetensors, for a broken file.
    """
    kind = json.loads((folder / CONFIG).read_bytes()).get("peft_type", "LORA")
    if kind != "LORA":
        raise ValueError(f"{CONFIG}: peft_type = {kind!r}; only 'LORA' can be served")
    with safe_open(folder / WEIGHTS, framework="np") as tensors:
        for name in tensors.keys():  # noqa: SIM118  it is no mapping
            if name.endswith(".base_layer.weight"):  # the model's own embeddings, which PEFT adds
                rows = tensors.get_slice(name).get_shape()[0]
                if rows != vocabulary:
                    raise ValueError(f"{name} has {rows} rows; the vocabulary of the model has {vocabulary}")


def _reason(error: Exception, stored: StoredAdapter) -> AdapterError:
    """Return the reason why an adapter cannot be loaded, without the path on this node."""
    text = str(error).removeprefix("Call to add_lora method failed: ").replace(str(stored.path), "its files")
    return AdapterError(400, f"the adapter cannot be loaded: {text[:_MOST_CHARACTERS]}")
