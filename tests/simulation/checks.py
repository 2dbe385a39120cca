"""What must hold in every world."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.simulation.core import whole_answer

if TYPE_CHECKING:
    from tests.simulation.client import Client
    from tests.simulation.world import World

_DONE = "data: [DONE]"
_REFUSALS = ("queue_full",)
_LOSSES = ("replica_lost", "replicas_lost")


def check_answers(world: World) -> None:
    """Each request ends once, with the tokens that a core generates alone, or with one error."""
    for client in world.clients:
        if fault := _fault(world, client):
            world.faults.append(f"{client.asked.name}: {fault}")


def _fault(world: World, client: Client) -> str:
    if client.hung:
        return "no end"
    if client.left:
        return ""
    if not client.complete:
        return f"the connection ended within the answer, after {client.body[-100:]!r}"
    stream = client.asked.body.get("stream", False)
    if client.status != 200 or not stream:
        return _fault_of_whole(world, client)
    return _fault_of_stream(world, client)


def _fault_of_whole(world: World, client: Client) -> str:
    document = json.loads(client.body)
    if "error" in document:
        allowed = document["error"]["code"] in _REFUSALS + (_LOSSES if world.events else ())
        return "" if allowed else f"an error without a reason: {document}"
    texts = {each["index"]: _text(each, "message") for each in document["choices"]}
    return _differences(world, client, texts, document["usage"])


def _text(choice: dict[str, Any], part: str) -> str:
    """Return the text of a choice of a chat or of a text completion."""
    return choice["text"] if "text" in choice else choice[part].get("content") or ""


def _fault_of_stream(world: World, client: Client) -> str:
    frames = client.body.decode().split("\n\n")
    if frames[-2:] != [_DONE, ""] or frames.count(_DONE) != 1:
        return f"not one end: {frames[-3:]}"
    texts: dict[int, str] = {}
    usages: list[dict[str, Any]] = []
    finished: list[int] = []
    for frame in frames[:-2]:
        if frame.startswith("event: error\n"):
            return "" if frame is frames[-3] and not usages else f"an error within: {frame}"
        if frame.startswith(":"):
            continue
        document = json.loads(frame.removeprefix("data: "))
        if document.get("usage"):
            usages.append(document["usage"])
        for choice in document["choices"]:
            index = choice["index"]
            if index in finished:
                return f"a choice goes on after its end: {frame}"
            if index in texts and "role" in choice.get("delta", ()):
                return f"a choice begins twice: {frame}"
            texts[index] = texts.get(index, "") + _text(choice, "delta")
            if choice["finish_reason"]:
                finished.append(index)
    if len(usages) != 1 or sorted(finished) != sorted(texts):
        return f"usages {usages}, ends {finished} of {sorted(texts)}"
    return _differences(world, client, texts, usages[0])


def _differences(world: World, client: Client, texts: dict[int, str], usage: dict[str, Any]) -> str:
    body = client.asked.body
    prompt, count, sequences = world.prompts[client.asked.name], body["max_tokens"], range(body["n"])
    counts = (usage["prompt_tokens"], usage["completion_tokens"])
    if counts != (len(prompt), count * len(sequences)):
        return f"usage {counts} instead of {(len(prompt), count * len(sequences))}"
    whole = {each: world.text_of(prompt, whole_answer(prompt, count, each)) for each in sequences}
    return "" if texts == whole else f"the text is {texts!r} instead of {whole!r}"


def check_quiet(world: World) -> None:
    """Nothing is left of any request."""
    ingress = world.ingress
    left: dict[str, Any] = {
        "queued requests": len(ingress.admission.queue),
        "places": dict(ingress.replicas.places),
        "bytes of bodies": ingress.app.state.endpoints.memory.used_bytes,
        "bytes of answers": ingress.app.state.answers.used_bytes,
        "client connections": len(ingress.state.connections),
    }
    for replica in ingress.replicas.listed():
        left[f"reservations on {replica.replica_id}"] = replica.all_in_flight or replica.load
    for engine in world.running:
        left[f"calls on {engine.name}"] = engine.plane.open_requests
        left[f"sequences of {engine.name}"] = engine.core.unfinished
        left[f"requests of {engine.name}'s front end"] = (
            engine.llm.output_processor.get_num_unfinished_requests()
        )
    world.faults += [f"left: {count} {name}" for name, count in left.items() if count]
