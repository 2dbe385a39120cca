"""What must hold in every world."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from serve_app.api.quotas import KeyDemand
from tests.simulation.answers import BrokenAnswerError, Got, expected, read_answer
from tests.simulation.client import PATIENCE_S, Client

if TYPE_CHECKING:
    from tests.simulation.request_world import RequestWorld

SHORT_WAIT_S = 3.0
"""The queue's timeouts in worlds where they end."""
AMOUNTS = ("requests", "prompt_tokens", "completion_tokens")
"""The amounts of the ledger that are known."""
LOSSES = ("cut", "kill", "core", "hang", "partition")
"""The kinds of events after which requests lose an engine."""
_TIMEOUTS = ("cold_wait_timeout_s", "background_wait_timeout_s")
_LEFT = Got(error="no answer")
_LOOK_S = 0.05
_CONNECT_S = 4.0
"""The longest time from a reservation to its call, to the end of a moved call, and to a due event."""
_DELAY_S = 1.0
"""The longest way of a request or an answer between a client and an ingress replica."""
_MOST_DEATHS = 2
"""Of engines that die of the same request, as the retry budget says."""
_ERRORS = {
    "(max_ongoing_requests = ": "full",
    "(max_held_requests = ": "full",
    "API key '": "limit",
    "were lost one after another": "lost",
    "was lost while": "lost",
    "have been replaced": "replaced",
    "engines cannot start": "ray_gives_up",
    "its source cannot be read": "unread",
    "no replica could take the request within": "late",
}
"""The reasons of errors that a client may get, by a part of the message."""


def check_answers(world: RequestWorld) -> None:
    """Each request ends once: with the answer that one engine gives alone, or with an allowed error."""
    answers: dict[str, Got] = {}
    for client in world.clients:
        try:
            fault = _fault(world, client, answers)
        except BrokenAnswerError as error:
            fault = str(error)
        if fault:
            world.faults.append(f"{client.asked.name} ({client.asked.api}): {fault}")
    whole = [each for each in world.clients if not answers.get(each.asked.name, _LEFT).error]
    used = {each: expected(world.oracle, each.asked, world.identities[-1]).usage or (0, 0) for each in whole}
    for key in world.keys or ("",):
        clients = [each for each in world.clients if key in ("", each.asked.key)]
        _check_rate(world, key, clients)
        if len(world.identities) == 1:
            _check_ledger(world, key, clients, used)
            if world.buckets_stay and key:
                _check_buckets(world, key, clients, answers, used)
            elif key:
                _check_tokens(world, key, [each for each in clients if each in used], used)


def _fault(world: RequestWorld, client: Client, answers: dict[str, Got]) -> str:
    if client.ended - client.began >= PATIENCE_S or not (client.complete or client.left):
        return f"no end, or no whole one, after {client.body[-100:]!r}"
    if client.left:
        return ""
    most_s = max(world.values_of("keep_alive_interval_s")) + _CONNECT_S
    streams = client.asked.body.get("stream")
    if streams and not client.asked.pauses_s and client.first_byte_s > most_s:
        return f"it got nothing within {client.first_byte_s} s"
    got = answers[client.asked.name] = read_answer(client)
    if got.error:
        kind = next((kind for part, kind in _ERRORS.items() if part in got.error), "other")
        return "" if _is_allowed(world, client, kind) else f"an error without a reason: {got.error}"
    wanted = [expected(world.oracle, client.asked, model) for model in world.identities]
    if not streams:
        for each in (got, *wanted):
            each.told.clear()
    else:
        for each in wanted:
            each.usage = each.usage if got.usage else None
            each.cut = each.cut if client.asked.api != "generate" else {}
    return "" if got in wanted else f"the answer is {got} instead of {wanted}"


def _is_allowed(world: RequestWorld, client: Client, kind: str) -> bool:
    """Return whether there was a cause for an error of a kind before the end of a request."""
    events = *world.happened, *((at, "core") for at, _ in world.oracle.deaths)
    before = [event for at, event in events if at <= client.ended]
    lost = [event for event in before if event in LOSSES]
    beside = sum(each.began <= client.ended and client.began <= each.ended + 5.0 for each in world.clients)
    unread = bool(world.unread_adapters and client.asked.adapter)
    short = any(SHORT_WAIT_S in world.values_of(knob) for knob in _TIMEOUTS)
    late = short and client.ended - client.began >= SHORT_WAIT_S
    causes = {
        "full": beside > min(world.limits["max_ongoing_requests"], *world.values_of("max_held_requests")),
        "limit": len(world.keys.get(client.asked.key, ())) > 1,
        # The retry budget is enough for one loss, if another engine may take the request.
        "lost": len(lost) > 1 or "redeploy" in before or (lost and (unread or world.ray_gives_up or late)),
        "replaced": "redeploy" in before,
        "ray_gives_up": world.ray_gives_up,
        "unread": unread,
        "late": late,
    }
    return bool(causes.get(kind))


_Used = dict[Client, tuple[int, int]]
"""The tokens of the prompt and of the answer, of each client that got a whole one."""


def _check_ledger(world: RequestWorld, key: str, clients: list[Client], used: _Used) -> None:
    """The ledger has each whole answer once. Without losses and clients that leave, it has nothing else."""
    usages = [used[each] for each in clients if each in used]
    due = len(usages), sum(each[0] for each in usages), sum(each[1] for each in usages)
    found = tuple(world.usage[key, name] for name in AMOUNTS)
    exact = len(usages) == len(clients) and not (world.happened or world.oracle.deaths)
    others = sum(each.asked.most * int(each.asked.body.get("n", 1)) for each in clients if each not in used)
    # An engine may be lost with a first event that it has counted.
    moved = not (world.oracle.deaths or {kind for _, kind in world.happened} & {*LOSSES})
    more = moved and (found[0] > len(clients) or found[2] > due[2] + others)
    less = any(one < other for one, other in zip(found, due, strict=True))
    if (found != due) if exact else (less or more):
        world.faults.append(f"the ledger has {found} of key {key!r}, and its answers {due}")


def _tokens(client: Client, used: _Used) -> int:
    """Return the tokens for which a key pays."""
    prompt, tokens = used[client]
    return int(client.asked.body.get("n", 1)) * prompt + tokens


def _check_buckets(
    world: RequestWorld, key: str, clients: list[Client], answers: dict[str, Got], used: _Used
) -> None:
    """The buckets of a key lack what its requests have used, no more and no less."""
    least, most, limits = Counter[str](), Counter[str](), world.keys[key]
    for client in clients:
        answer, asked = answers.get(client.asked.name), client.asked
        if client in used:
            for bound in (least, most):
                bound += Counter(requests=1, tokens=_tokens(client, used))
        elif not answer or "API key" not in answer.error:
            most += Counter(requests=1, tokens=asked.body.get("n", 1) * (len(str(asked.body)) + asked.most))
            least["requests"] += bool(answer)
    demand = world.ingresses[0].quotas.demands().get(key, KeyDemand())
    for what in ("requests", "tokens"):
        if (limit := limits.get(f"{what}_per_minute")) and not limits["work_conserving"]:
            missing = getattr(demand, f"{what}_missing") * limit
            if not least[what] - 0.5 <= missing <= most[what] + 0.5:
                bounds = f"{least[what]} to {most[what]}"
                world.faults.append(f"key {key!r} is charged with {missing} {what} instead of {bounds}")


def _check_tokens(world: RequestWorld, key: str, served: list[Client], used: _Used) -> None:
    """When a request of a key is admitted, those that have ended had no more than the key's tokens.

    These are a full bucket, what filled it, 5 % and 2 s more, and the debts of other ingress replicas. The
    bucket of the replica that admits is above 0, and lacks all tokens of the requests that ended there. Other
    buckets were above 0 at their last admission too, and lacked only estimates of the requests open then.
    """
    limits = world.keys[key]
    if not (limit := limits.get("tokens_per_minute")) or limits["work_conserving"]:
        return
    first = min((each.began for each in served), default=0.0)
    for one in served:
        ended = sum(_tokens(each, used) for each in served if each.ended + _DELAY_S < one.began)
        debts: Counter[int] = Counter()
        for last in served:
            if last.ingress != one.ingress and last.began < one.began:
                beside = [
                    each
                    for each in served
                    if each.ingress == last.ingress
                    and each.began - _DELAY_S < last.began < each.ended + _DELAY_S
                ]
                debts[last.ingress] = max(debts[last.ingress], sum(_tokens(each, used) for each in beside))
        most = 1.05 * limit * (1.0 + (one.began - first + 2.0) / 60.0) + debts.total()
        if ended > most:
            why = f"{ended} tokens of key {key!r}, of which {most:.0f} are allowed"
            world.faults.append(f"{one.asked.name} was admitted after {why}")


def _check_rate(world: RequestWorld, key: str, clients: list[Client]) -> None:
    """A key has at most the requests of its bucket, what fills it, and one more at each ingress replica."""
    limits = world.keys.get(key, {})
    served = [each.began for each in clients if each.complete and each.status != 429]
    if served and (limit := limits.get("requests_per_minute")) and not limits["work_conserving"]:
        most = limit * (1 + (max(served) - min(served) + 2.0) / 60.0) + world.ingress_replicas
        if len(served) > most:
            world.faults.append(f"key {key!r} has {len(served)} requests, at most {most:.1f} are allowed")


def check_quiet(world: RequestWorld) -> None:
    """Nothing is left of any request."""
    for name, count in Counter(name for _, name in world.oracle.deaths).items():
        if count > _MOST_DEATHS:
            world.faults.append(f"{count} engines died of {name}")
    left: dict[str, Any] = {}
    for ingress in world.ingresses:
        name = ingress.name
        left |= {
            f"queued requests of {name}": len(ingress.admission.queue),
            f"places of {name}": dict(ingress.replicas.places),
            f"bytes of bodies of {name}": ingress.app.state.endpoints.memory.used_bytes,
            f"bytes of answers of {name}": ingress.app.state.answers.used_bytes,
            f"client connections of {name}": len(ingress.state.connections),
            f"requests for a replica of {name}": ingress.handle.asking,
            f"open requests of keys at {name}": sum(
                each.open_requests + each.open_background for each in ingress.quotas.demands().values()
            ),
        }
        if len(ingress.replicas.listed()) != len(world.running):
            left[f"replicas of {name} beside those that run"] = len(ingress.replicas.listed())
        for replica in ingress.replicas.listed():
            about = f"{replica.replica_id} at {name}"
            left[f"reservations on {about}"] = replica.all_in_flight or replica.load
            left[f"loads on {about}"] = replica.load_tokens or sum(replica.adapter_calls.values())
            left[f"trouble of {about}"] = replica.trouble
    for engine in world.running:
        left[f"calls on {engine.name}"] = engine.plane.open_requests
        left[f"uses of adapters on {engine.name}"] = engine.adapters.used
        left[f"sequences of {engine.name}"] = engine.core.unfinished
        processor = engine.llm.output_processor
        left[f"requests of {engine.name}'s front end"] = processor.get_num_unfinished_requests()
    world.faults += [f"left: {count} {name}" for name, count in left.items() if count]


async def watch(world: RequestWorld) -> None:
    """Find what must not last: a wait beside a free replica or over its deadline, and work for nobody."""
    since: Counter[str] = Counter()
    """For how many looks in a row something has been wrong."""
    while True:
        limit, now = min(world.limits["max_ongoing_requests"], *world.places), world.loop.time()
        looks, places = list[tuple[str, Any, float]](), 0
        """What may be wrong, whether it is, and the seconds for which it may be."""
        for ingress in world.ingresses:
            queue, replicas = ingress.admission.queue, ingress.replicas
            usable = [one for one in replicas.listed() if not one.trouble]
            loads = [one.in_flight if queue.foreground else one.all_in_flight for one in usable]
            places += sum(one.all_in_flight for one in usable)
            # A request that lost a replica of another model waits for one of its own.
            waits = len(queue) and min(loads, default=limit) < limit and len(world.identities) == 1
            asked_s = 0.0 if ingress.handle.asking else now - ingress.handle.last_asked
            unasked = queue.foreground and not len(replicas) and asked_s > 2.0
            failing = any(one.failures for one in usable)
            late = any(
                now - each.since > max(world.values_of(_TIMEOUTS[each.background]))
                for each in [*queue.requests(), *queue.requests(background=True)]
            )
            looks += [
                (f"{ingress.name}: the failures of a replica do not heal", failing, 5.0),
                (f"{ingress.name}: a request waits beside a free replica", waits, 1.0),
                (f"{ingress.name}: requests wait, and nobody asks Ray for a replica", unasked, 1.0),
                (f"{ingress.name}: a request waits behind its deadline", late, 1.0),
            ]
            for key, demand in ingress.quotas.demands().items() if world.keys else ():
                most = world.keys[key].get("concurrent_requests", 10**6)
                if max(demand.open_requests, demand.open_background) > most:
                    world.faults.append(f"{ingress.name}: key {key!r} has {demand} open, more than {most}")
        calls = sum(engine.plane.open_requests for engine in world.running)
        readers = sum(bool(each.began and not each.ended and each.asked.pauses_s) for each in world.clients)
        names = Counter(name for each in world.alive if not each.core.stopped for name in each.core.names)
        passes = {"stall", "partition", "hang"}.isdisjoint(kind for _, kind in world.happened)
        twice = max(names.values(), default=0) > 1
        looks += [
            ("engines have fewer calls than places", passes and places > calls + readers, _CONNECT_S),
            ("two engines run one request", passes and twice, _CONNECT_S),
        ]
        for wrong, holds, most_s in looks:
            since[wrong] = since[wrong] + 1 if holds else 0
            if since[wrong] == most_s / _LOOK_S:
                world.faults.append(wrong)
        await asyncio.sleep(_LOOK_S)
