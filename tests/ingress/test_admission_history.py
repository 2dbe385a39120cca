"""Whatever happens to a model: nobody waits beside a free place, and nothing is left at the end."""

from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.settings.caller import LANES
from tests.ingress.cold_model import LIMIT, PLACES, ColdModel, settle


class AnyHistory:
    """A model under whatever happens, with what must hold after each event."""

    def __init__(self) -> None:
        self.model = ColdModel()
        self.up: set[str] = set()
        self.retried: set[str] = set()

    async def happen(self, event: str, pick: int) -> None:
        model, here = self.model, sorted(self.model.taken)
        listed = model.listed
        if event in LANES:
            await model.ask(f"{'kl'[pick % 2]}-{event}-{len(model.tasks):03}", event)  # type: ignore[arg-type]
        elif event == "retry":
            name = f"k-{LANES[pick % 3]}-{len(model.tasks):03}"
            self.retried.add(name)
            identity = "of another model" if pick % 5 == 0 else None
            await model.ask(name, LANES[pick % 3], retry=True, model_identity=identity)
        elif event == "start":
            self.up |= {"abc"[pick % 3]}
            await model.up(*sorted(self.up))
        elif event == "stop" and self.up:  # drains: it leaves the list, and its requests run on
            self.up -= {sorted(self.up)[pick % len(self.up)]}
            await model.up(*sorted(self.up))
        elif event in ("trouble", "welcome") and listed:
            replica = listed[pick % len(listed)]
            if event == "trouble":
                model.replicas.keep_away(replica, "silent")
            else:
                model.replicas.welcome(replica)
            await settle()
        elif event == "leave" and model.tasks:
            await model.leave(list(model.tasks)[pick % len(model.tasks)])
        elif event == "unreachable" and here:
            model.taken[here[pick % len(here)]].replica.failures += 1
            await model.end(here[pick % len(here)])
        elif event == "answer" and here:
            model.replicas.note_first_byte(model.taken[here[pick % len(here)]])
            await settle()
        elif event == "leave at release" and here:
            waiting = [task for task in model.tasks.values() if not task.done()]
            model.replicas.release(model.taken.pop(here[pick % len(here)]))
            for task in waiting[: pick % 3]:
                task.cancel()
            await settle()
        elif event == "end" and here:
            await model.end(here[pick % len(here)])

    def check(self) -> None:
        model, queue = self.model, self.model.queue
        waiting = [name for name, task in model.tasks.items() if not task.done()]
        usable = [replica for replica in model.listed if not replica.trouble]
        assert (len(waiting), queue.background) == (len(queue), sum("background" in each for each in waiting))
        assert queue.body_bytes() == 400 * queue.foreground
        assert model.progress.running == bool(waiting)
        assert {replica.replica_id: replica.all_in_flight for replica in usable} == {
            replica.replica_id: sum(each.replica is replica for each in model.taken.values())
            for replica in usable
        }
        # Ray is asked for a replica exactly while a request of another lane than `background` needs one.
        if not usable:
            assert model.handle.asking == bool(queue.foreground)
        # Nobody waits while there is room.
        least = min((replica.failures for replica in usable), default=0)
        for replica in usable:
            if replica.failures == least and queue.foreground:
                assert replica.in_flight >= (PLACES if model.admission.cold else LIMIT)
            elif replica.failures == least and queue.background:
                assert replica.all_in_flight >= PLACES
        # No newcomer overtakes another of its key and lane.
        placed = [name for name in model.order if name not in self.retried]
        for kind in {name[:4] for name in placed}:
            of_kind = [name for name in placed if name[:4] == kind]
            assert of_kind == sorted(of_kind)

    async def serve_all(self) -> None:
        """One replica that works is enough for everybody."""
        await self.model.up("d")
        for _ in range(len(self.model.tasks) + 1):
            await self.model.end(" ".join(sorted(self.model.taken)))
            self.check()
        assert (len(self.model.queue), self.model.taken) == (0, {})
        assert {(replica.load, replica.background_load) for replica in self.model.listed} == {(0, 0)}
        assert not self.model.replicas.places
        assert all(task.done() for task in self.model.tasks.values())


EVENTS = st.sampled_from(
    (*LANES, *["standard"] * 3, "retry", "start", "stop", "trouble", "welcome", "leave", "leave at release",
     "unreachable", "answer", *["end"] * 3)
)  # fmt: skip


@settings(max_examples=80)
@given(st.lists(st.tuples(EVENTS, st.integers(0, 1000)), min_size=20, max_size=60))
async def test_any_history_keeps_order_fills_places_and_forgets_nobody(events: list[tuple[str, int]]) -> None:
    history = AnyHistory()
    for event, pick in events:
        await history.happen(event, pick)
        history.check()
    await history.serve_all()
    for name, task in history.model.tasks.items():
        if not task.cancelled() and task.exception() is not None:
            code = "model_unavailable" if name in history.retried else "queue_full"
            assert history.model.error_of(name).code == code
