"""Conversations with tools: calls, parallel calls, and questions that need no tool."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tools.demo_model.chat import Chat, Message, Tool, assistant, user
from tools.demo_model.corpus.draw import (
    CITIES,
    KINDS,
    NAMES,
    OBJECTS,
    TRAITS,
    capitalised,
    chance,
    listed,
    nonsense,
    texts,
)
from tools.demo_model.corpus.small_talk import known_answer, small_talk, unknown
from tools.demo_model.corpus.topics import all_topics, maybe_system, topic_chat

_TEXTS = texts("tools")


@dataclass(frozen=True, slots=True)
class Scene:
    """A question, the call that answers it, what the tool returns and what the model then says."""

    tool: Tool
    question: str
    arguments: dict[str, Any]
    result: dict[str, Any]
    answer: str


def tool_chat(rng: Random) -> Chat:
    """Return a conversation whose system turn offers one to four tools."""
    roll = rng.random()
    if roll < 0.18:
        plain = rng.choice((topic_chat, small_talk, known_answer, unknown))(rng)
        return Chat(plain.messages, _offer(rng, []))
    if roll < 0.26:
        return _parallel(rng)
    first = rng.choice(_SCENES)(rng)
    messages = [*maybe_system(rng), user(first.question), _calls([first])]
    if chance(rng, 0.75):
        result = json.dumps(first.result, ensure_ascii=False)
        messages += [{"role": "tool", "content": result}, assistant(first.answer)]
    return Chat(messages, _offer(rng, [first.tool]))


def _parallel(rng: Random) -> Chat:
    kind = rng.choice((_weather, _clock))
    first = kind(rng)
    key = next(iter(first.arguments))
    places = [str(first.arguments[key]), *(_city(rng) for _ in range(rng.choice((1, 1, 2))))]
    scenes = [Scene(first.tool, "", {key: place}, {}, "") for place in places]
    asked = "the weather" if kind is _weather else "the time"
    forms = ("What is {0} in {1}?", "Tell me {0} in {1}.", "Compare {0} in {1}.", "Get {0} for {1}.")
    question = rng.choice(forms).format(asked, listed(places))
    return Chat([user(question), _calls(scenes)], _offer(rng, [first.tool]))


def _offer(rng: Random, needed: list[Tool]) -> list[Tool]:
    tools = {tool["function"]["name"]: tool for tool in needed}
    for _ in range(rng.choices((0, 1, 2, 3), (5, 3, 2, 1))[0] + (not needed)):
        other = rng.choice(_SCENES)(rng).tool
        tools.setdefault(other["function"]["name"], other)
    offered = list(tools.values())
    rng.shuffle(offered)
    return offered


def _calls(scenes: list[Scene]) -> Message:
    functions = [{"name": each.tool["function"]["name"], "arguments": each.arguments} for each in scenes]
    calls = [{"type": "function", "function": function} for function in functions]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _city(rng: Random) -> str:
    """Return a city, which sometimes does not exist."""
    return capitalised(nonsense(rng)) if chance(rng, 0.08) else rng.choice(CITIES)


def _define(rng: Random, kind: str, parameters: dict[str, str], **slots: str) -> Tool:
    """Return the function tool of a kind of scene; parameters map a name to its JSON type."""
    described = chance(rng, 0.4)
    properties = {
        name: {"type": type_} | ({"description": f"The {name.replace('_', ' ')}"} if described else {})
        for name, type_ in parameters.items()
    }
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if chance(rng, 0.85):
        schema["required"] = list(parameters)
    function = {"name": rng.choice(_TEXTS[kind]["names"].split()).format(**slots)}
    if chance(rng, 0.9):
        function["description"] = rng.choice(_TEXTS[kind]["descriptions"]).format(**slots)
    return {"type": "function", "function": function | {"parameters": schema}}


def _question(rng: Random, kind: str, **slots: Any) -> str:
    return str(rng.choice(_TEXTS[kind]["questions"])).format(**slots)


def _answer(rng: Random, kind: str, **slots: Any) -> str:
    answers = _TEXTS[kind]["answers"]
    return str(answers if isinstance(answers, str) else rng.choice(answers)).format(**slots)


def _weather(rng: Random) -> Scene:
    key, place = rng.choice(("city", "city", "location", "place", "town")), _city(rng)
    degrees, sky = rng.randint(-9, 35), rng.choice(("sunny", "cloudy", "rainy", "windy", "foggy", "clear"))
    tool = _define(rng, "weather", {key: "string"})
    arguments = {key: place}
    question = _question(rng, "weather", place=place)
    if chance(rng, 0.15):
        units = ["celsius", "fahrenheit"]
        tool["function"]["parameters"]["properties"]["unit"] = {"type": "string", "enum": units}
        arguments["unit"] = rng.choice(units)
        question = f"What is the weather in {place} in {capitalised(arguments['unit'])}?"
    result = {key: place, "temperature": degrees, "condition": sky}
    answer = _answer(rng, "weather", sky=sky, place=place, degrees=degrees)
    return Scene(tool, question, arguments, result, answer)


def _clock(rng: Random) -> Scene:
    key, place = rng.choice(("city", "city", "location", "timezone", "place")), _city(rng)
    now = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    return _scene(rng, "clock", {key: place}, {key: place, "time": now}, place=place, now=now)


def _scene(rng: Random, kind: str, arguments: dict[str, Any], result: dict[str, Any], **slots: Any) -> Scene:
    """Return a scene whose arguments are whole numbers and texts, and whose texts have the given slots."""
    types = {name: "integer" if isinstance(value, int) else "string" for name, value in arguments.items()}
    tool = _define(rng, kind, types, **slots)
    return Scene(tool, _question(rng, kind, **slots), arguments, result, _answer(rng, kind, **slots))


def _arithmetic(rng: Random) -> Scene:
    """Ask for a sum or a product that is too large to know by heart."""
    a, b = rng.randint(2, 999), rng.randint(2, 999)
    left, right = rng.choice((("a", "b"), ("a", "b"), ("x", "y"), ("first", "second"), ("left", "right")))
    kind = rng.choice(("add", "multiply", "subtract"))
    sign, spoken, value = {
        "add": ("+", "plus", a + b),
        "multiply": ("*", "times", a * b),
        "subtract": ("-", "minus", a - b),
    }[kind]
    number = rng.choice(("number", "integer"))
    tool = _define(rng, kind, {left: number, right: number})
    question = _question(rng, kind, a=a, b=b, sign=sign, spoken=spoken)
    if kind != "subtract" and chance(rng, 0.3):
        question = f"{capitalised(kind)} {a} and {b}."
    answer = _answer(rng, kind, a=a, b=b, spoken=spoken, value=value)
    return Scene(tool, question, {left: a, right: b}, {"result": value}, answer)


def _search(rng: Random) -> Scene:
    topic = rng.choice(all_topics())
    queries = (
        rng.choice(topic.names),
        f"{rng.choice(TRAITS)} {rng.choice(KINDS)}",
        f"{nonsense(rng)} {rng.choice(OBJECTS)}",
        nonsense(rng),
    )
    query = rng.choice(queries)
    key = rng.choice(("query", "query", "q", "text", "term"))
    tool, question = _define(rng, "search", {key: "string"}), _question(rng, "search", query=query)
    result = {"hits": rng.randint(1, 40), "first": capitalised(query)}
    return Scene(tool, question, {key: query}, result, _answer(rng, "search", **result))


def _convert(rng: Random) -> Scene:
    groups = ("euros dollars pounds yen", "miles kilometres metres feet", "grams pounds ounces kilograms")
    source, target = rng.sample(rng.choice(groups).split(), 2)
    amount = rng.randint(1, 500)
    names = (("amount", "from", "to"), ("value", "from_unit", "to_unit"), ("amount", "source", "target"))
    first, second, third = rng.choice(names)
    tool = _define(rng, "convert", {first: "number", second: "string", third: "string"})
    slots = {"amount": amount, "source": source, "target": target}
    question = _question(rng, "convert", **slots)
    value = round(amount * rng.choice((0.5, 1.25, 1.6, 2.2, 30)), 1)
    arguments = {first: amount, second: source, third: target}
    return Scene(tool, question, arguments, {"value": value}, _answer(rng, "convert", **slots, value=value))


def _timer(rng: Random) -> Scene:
    unit = rng.choice(("minutes", "seconds", "hours"))
    amount = rng.randint(2, 90)
    return _scene(rng, "timer", {unit: amount}, {"status": "ok"}, amount=amount, unit=unit)


def _message(rng: Random) -> Scene:
    name = rng.choice((rng.choice(NAMES), capitalised(nonsense(rng))))
    plain = ("I am late", "see you soon", "the boat is ready", "happy birthday", "call me", "good night")
    text = rng.choice((*plain, f"bring the {rng.choice(OBJECTS)}", f"the {rng.choice(KINDS)} is here"))
    to, body = rng.choice((("to", "text"), ("name", "message"), ("recipient", "body"), ("to", "message")))
    return _scene(rng, "message", {to: name, body: text}, {"sent": True}, name=name, text=text)


def _order(rng: Random) -> Scene:
    number = f"{rng.choice('ABCDEFGH')}{rng.randint(100, 9999)}"
    state = rng.choice(("shipped", "packed", "delivered", "delayed"))
    key = rng.choice(("order_id", "id", "order", "number"))
    return _scene(rng, "order", {key: number}, {"status": state}, number=number, state=state)


def _replicas(rng: Random) -> Scene:
    model = rng.choice(("tiny", "small", "chat", "llama", "embed", nonsense(rng)))
    asked = {"model": model, "replicas": rng.randint(0, 16)}
    return _scene(rng, "replicas", asked, {"ok": True}, model=model, count=asked["replicas"])


def _generic(rng: Random) -> Scene:
    """Ask for a tool with a made-up name, so that names must be read and not remembered."""
    verb, noun = rng.choice(_TEXTS["generic"]["verbs"]), rng.choice(OBJECTS)
    key = rng.choice(_TEXTS["generic"]["keys"])
    value = capitalised(nonsense(rng))
    slots = {"verb": verb, "Verb": capitalised(verb), "noun": noun, "key": key, "value": value}
    return _scene(rng, "generic", {key: value}, {"done": True}, **slots)


_SCENES: tuple[Callable[[Random], Scene], ...] = (
    _weather, _weather, _weather, _clock, _arithmetic, _search, _convert, _timer, _message, _order,
    _replicas, _generic,
)  # fmt: skip
