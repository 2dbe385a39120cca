"""What must hold in every world."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tests.simulation.answers import BrokenAnswerError, Got, expected, read_answer

if TYPE_CHECKING:
    from tests.simulation.client import Client
    from tests.simulation.world import World

_LOOK_S = 0.05
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
}
"""The reasons of errors that a client may get, by a part of the message."""


def check_answers(world: World) -> None:
    """Each request ends once: with the answer that one engine gives alone, or with an allowed error."""
    got: dict[str, Got] = {}
    for client in world.clients:
        try:
            fault = _fault(world, client, got)
        except BrokenAnswerError as error:
            fault = str(error)
        if fault:
            world.faults.append(f"{client.asked.name} ({client.asked.api}): {fault}")
    _check_usage(world, got)
    if world.buckets_stay:
        _check_buckets(world, got)
    else:
        _check_rates(world)


def _fault(world: World, client: Client, answers: dict[str, Got]) -> str:
    if client.hung:
        return f"no end, after {client.body[-100:]!r}"
    if client.left:
        return ""
    if not client.complete:
        return f"the connection ended within the answer, after {client.body[-100:]!r}"
    got = answers[client.asked.name] = read_answer(client)
    if got.error:
        kind = next((kind for part, kind in _ERRORS.items() if part in got.error), "other")
        return "" if kind in _allowed(world, client) else f"an error without a reason: {got.error}"
    wanted = [expected(world.oracle, client.asked, model) for model in world.identities]
    if client.asked.streams:
        for each in wanted:
            each.usage = each.usage if got.usage else None
            if client.asked.api == "generate":
                each.cut = {}
    return "" if got in wanted else f"the answer is {got} instead of {wanted}"


def _allowed(world: World, client: Client) -> set[str]:
    """Return the reasons of errors for which there was a cause before the end of a request."""
    died = [(at, "core") for at, _ in world.oracle.deaths]
    before = [kind for at, kind in (*world.happened, *died) if at <= client.ended]
    lost = [kind for kind in before if kind in world.losses]
    beside = sum(each.began <= client.ended and client.began <= each.ended + 5.0 for each in world.clients)
    fewest = min(world.limits["max_ongoing_requests"], *world.held)
    limits = world.keys.get(client.asked.key, {})
    unread = bool(world.unread_adapters and client.asked.adapter)
    unlucky = unread or world.ray_gives_up
    # Then perhaps no other engine takes a request that has lost one.
    return {
        kind
        for kind, holds in (
            ("full", beside > fewest),
            ("limit", bool(set(limits) - {"work_conserving"})),
            ("lost", len(lost) > 1 or "redeploy" in before or (lost and unlucky)),
            ("replaced", "redeploy" in before),
            ("ray_gives_up", bool(world.ray_gives_up)),
            ("unread", unread),
        )
        if holds
    }


def _by_key(world: World) -> dict[str, list[Client]]:
    keys = list(world.keys) or [""]
    return {key: [each for each in world.clients if key in ("", each.asked.key)] for key in keys}


def _sum_usage(answers: Iterable[Got]) -> tuple[int, int, int]:
    usages = [each.usage for each in answers if each.usage]
    return len(usages), sum(each[0] for each in usages), sum(each[1] for each in usages)


def _check_usage(world: World, got: dict[str, Got]) -> None:
    """The ledger has each answer once; without losses and clients that leave, it has nothing else."""
    for key, clients in _by_key(world).items():
        whole = [each for each in clients if each.asked.name in got and not got[each.asked.name].error]
        models = world.identities[:1]
        answers = [expected(world.oracle, each.asked, models[0]) for each in whole]
        world.ledger_due.append((key, _sum_usage(answers), len(whole) == len(clients)))


def check_ledger(world: World) -> None:
    """Compare the ledger with the answers, once all engines have ended."""
    for key, due, exact in world.ledger_due:
        found = tuple(world.usage[key, name] for name in ("requests", "prompt_tokens", "completion_tokens"))
        if len(world.identities) > 1:
            continue
        missing = any(one < other for one, other in zip(found, due, strict=True))
        if missing or (exact and not (world.happened or world.oracle.deaths) and found != due):
            world.faults.append(f"the ledger has {found} of key {key!r}, and its answers {due}")


def _check_buckets(world: World, got: dict[str, Got]) -> None:
    """The buckets of keys lack what their requests have used, no more and no less."""
    demands = world.ingresses[0].quotas.demands()
    for key, clients in _by_key(world).items():
        limits = world.keys.get(key, {})
        least, most = Counter[str](), Counter[str]()
        for client in clients:
            answer, body = got.get(client.asked.name), client.asked.body
            n = body.get("n", 1)
            if client.headers.get("x-tideserve-lane") == "background" or (answer and client.status == 429):
                continue
            if answer and answer.error:
                most += Counter(requests=1, tokens=n * (len(str(body)) + client.asked.most))
                least["requests"] += 1
            elif answer:
                used = expected(world.oracle, client.asked, world.identities[0]).usage
                assert used
                for bound in (least, most):
                    bound += Counter(requests=1, tokens=n * used[0] + used[1])
            else:
                most += Counter(requests=1, tokens=n * (len(str(body)) + client.asked.most))
        for what in ("requests", "tokens"):
            limit = limits.get(f"{what}_per_minute")
            if limit and len(world.identities) == 1 and not limits["work_conserving"]:
                missing = getattr(demands[key], f"{what}_missing") * limit if key in demands else 0.0
                if not least[what] - 0.5 <= missing <= most[what] + 0.5:
                    bounds = f"{least[what]} to {most[what]}"
                    world.faults.append(f"key {key!r} is charged with {missing} {what} instead of {bounds}")


def _check_rates(world: World) -> None:
    """No key has more requests than its bucket, what fills it, and what two ingress replicas overlook."""
    for key, clients in _by_key(world).items():
        limits = world.keys.get(key, {})
        if (limit := limits.get("requests_per_minute")) and not limits["work_conserving"]:
            served = [each.began for each in clients if each.complete and each.status != 429]
            minutes = (max(served) - min(served) + 2.0) / 60.0 if served else 0.0
            if len(served) > (most := limit * (1 + minutes) + world.ingress_replicas):
                world.faults.append(f"key {key!r} has {len(served)} requests, at most {most:.1f} are allowed")


def check_quiet(world: World) -> None:
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


async def watch(world: World) -> None:
    """Find requests that wait beside a free replica, or for a replica that nobody starts."""
    limit = min(world.limits["max_ongoing_requests"], world.engine["max_num_seqs"])
    since: Counter[str] = Counter()
    """For how many looks in a row something has been wrong."""
    while True:
        for ingress in world.ingresses:
            queue, replicas = ingress.admission.queue, ingress.replicas
            loads = [
                one.in_flight if queue.foreground else one.all_in_flight
                for one in replicas.listed()
                if not one.trouble
            ]
            # A request that lost a replica of another model waits for one of its own.
            waits = len(queue) and min(loads, default=limit) < limit and len(world.identities) == 1
            asked_s = 0.0 if ingress.handle.asking else world.loop.time() - ingress.handle.last_asked
            unasked = queue.foreground and not len(replicas) and asked_s > 2.0
            failing = any(one.failures and not one.trouble for one in replicas.listed())
            for wrong, holds, most_s in (
                ("the failures of a replica do not heal", failing, 5.0),
                ("a request waits beside a free replica", waits, 1.0),
                ("requests wait, and nobody asks Ray for a replica", unasked, 1.0),
            ):
                since[wrong + ingress.name] = since[wrong + ingress.name] + 1 if holds else 0
                if since[wrong + ingress.name] == most_s / _LOOK_S:
                    world.faults.append(f"{ingress.name}: {wrong}")
            for key, demand in ingress.quotas.demands().items() if world.keys else ():
                most = world.keys[key].get("concurrent_requests", 10**6)
                if max(demand.open_requests, demand.open_background) > most:
                    world.faults.append(f"{ingress.name}: key {key!r} has {demand} open, more than {most}")
        await asyncio.sleep(_LOOK_S)
