"""Questions that need a tool, one function for each kind of question."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tools.demo_model.corpus import cast
from tools.demo_model.corpus.draw import capitalised, chance, words
from tools.demo_model.corpus.small_talk import nonsense
from tools.demo_model.corpus.tool_kit import Scene, city, define
from tools.demo_model.corpus.topics import all_topics


def weather(rng: Random) -> Scene:
    """Ask for the weather in a city."""
    key, place = rng.choice(("city", "city", "location", "place", "town")), city(rng)
    degrees, sky = rng.randint(-9, 35), rng.choice(("sunny", "cloudy", "rainy", "windy", "foggy", "clear"))
    tool = define(rng, "get_weather get_weather get_current_weather weather fetch_weather weather_lookup",
                  "Get the weather in a city|Get the current weather|"
                  "Returns the weather for a place|Weather report",
                  {key: "string"})  # fmt: skip
    arguments: dict[str, Any] = {key: place}
    question = rng.choice((
        "What is the weather in {0}?", "What's the weather like in {0}?", "How is the weather in {0}?",
        "What is the weather like in {0} today?", "Is it raining in {0}?", "Weather in {0}?",
        "Do I need a coat in {0}?", "How warm is it in {0}?", "Tell me the weather in {0}.",
        "what is the weather in {0}", "Please check the weather in {0}.",
        "What's the weather in {0} right now?",
    )).format(place)  # fmt: skip
    if chance(rng, 0.15):
        unit = rng.choice(("celsius", "fahrenheit"))
        tool["function"]["parameters"]["properties"]["unit"] = {
            "type": "string",
            "enum": ["celsius", "fahrenheit"],
        }
        arguments["unit"] = unit
        question = f"What is the weather in {place} in {capitalised(unit)}?"
    result = {key: place, "temperature": degrees, "condition": sky}
    answer = rng.choice((f"It is {sky} in {place}, with {degrees} degrees.",
                         f"In {place} it is {degrees} degrees and {sky}.",
                         f"The weather in {place} is {sky}, and it is {degrees} degrees."))  # fmt: skip
    return Scene(tool, question, arguments, result, answer)


def clock(rng: Random) -> Scene:
    """Ask for the time in a city."""
    key, place = rng.choice(("city", "city", "location", "timezone", "place")), city(rng)
    now = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    tool = define(
        rng,
        "get_time get_time current_time get_current_time local_time time_in_city",
        "Get the local time|Get the time in a city|Returns the current time of a place",
        {key: "string"},
    )
    question = rng.choice(
        (
            "What time is it in {0}?",
            "What is the time in {0}?",
            "Tell me the time in {0}.",
            "Is it late in {0}?",
            "Local time in {0}, please.",
            "what time is it in {0}",
        )
    )
    return Scene(tool, question.format(place), {key: place}, {key: place, "time": now},
                 rng.choice((f"It is {now} in {place}.", f"In {place} it is {now} now.")))  # fmt: skip


def arithmetic(rng: Random) -> Scene:
    """Ask for a sum or a product that is too large to know by heart."""
    a, b = rng.randint(2, 999), rng.randint(2, 999)
    left, right = rng.choice((("a", "b"), ("a", "b"), ("x", "y"), ("first", "second"), ("left", "right")))
    kind = rng.choice(("add", "multiply", "subtract"))
    names, words, sign, value = {
        "add": ("add add add_numbers sum plus", "Add two numbers|Returns the sum", "+", a + b),
        "multiply": (
            "multiply multiply product times",
            "Multiply two numbers|Returns the product",
            "*",
            a * b,
        ),
        "subtract": ("subtract minus difference", "Subtract two numbers|Returns the difference", "-", a - b),
    }[kind]
    number = rng.choice(("number", "integer"))
    tool = define(rng, names, words, {left: number, right: number})
    spoken = {"+": "plus", "*": "times", "-": "minus"}[sign]
    question = rng.choice(
        (
            f"What is {a} {sign} {b}?",
            f"What is {a} {spoken} {b}?",
            f"Calculate {a} {sign} {b}.",
            f"How much is {a} {spoken} {b}?",
            f"Please work out {a} {sign} {b}.",
        )
    )
    if kind != "subtract" and chance(rng, 0.3):
        question = f"{capitalised(kind)} {a} and {b}."
    return Scene(tool, question, {left: a, right: b}, {"result": value},
                 rng.choice((f"{a} {spoken} {b} is {value}.", f"The result is {value}.")))  # fmt: skip


def search(rng: Random) -> Scene:
    """Ask to search for something."""
    topic = rng.choice(all_topics())
    query = rng.choice(
        (
            rng.choice(topic.names),
            f"{rng.choice(cast.TRAITS)} {rng.choice(cast.KINDS)}",
            f"{nonsense(rng)} {rng.choice(cast.OBJECTS)}",
            nonsense(rng),
        )
    )
    key = rng.choice(("query", "query", "q", "text", "term"))
    tool = define(
        rng,
        "search search web_search search_web find lookup search_docs",
        "Search the web|Search the documents|Find pages about something",
        {key: "string"},
    )
    question = rng.choice(
        (
            "Search for {0}.",
            "Please search for {0}.",
            "Find pages about {0}.",
            "Look up {0}.",
            "Search the web for {0}.",
            "Can you look up {0}?",
        )
    ).format(query)
    hits = rng.randint(1, 40)
    return Scene(tool, question, {key: query}, {"hits": hits, "first": capitalised(query)},
                 f"I found {hits} pages. The first one is “{capitalised(query)}”.")  # fmt: skip


def convert(rng: Random) -> Scene:
    """Ask to convert an amount from one unit to another."""
    groups = ("euros dollars pounds yen", "miles kilometres metres feet", "grams pounds ounces kilograms")
    source, target = rng.sample(rng.choice(groups).split(), 2)
    amount = rng.randint(1, 500)
    first, second, third = rng.choice(
        (("amount", "from", "to"), ("value", "from_unit", "to_unit"), ("amount", "source", "target"))
    )
    tool = define(
        rng,
        "convert convert convert_units convert_currency unit_converter",
        "Convert an amount|Convert units",
        {first: "number", second: "string", third: "string"},
    )
    question = rng.choice(("Convert {0} {1} to {2}.", "How many {2} are {0} {1}?", "What is {0} {1} in {2}?"))
    value = round(amount * rng.choice((0.5, 1.25, 1.6, 2.2, 30)), 1)
    return Scene(tool, question.format(amount, source, target), {first: amount, second: source,
    third: target},
                 {"value": value}, f"{amount} {source} are {value} {target}.")  # fmt: skip


def timer(rng: Random) -> Scene:
    """Ask to set a timer."""
    key, unit = rng.choice((("minutes", "minutes"), ("seconds", "seconds"), ("hours", "hours")))
    amount = rng.randint(2, 90)
    tool = define(
        rng,
        "set_timer set_timer start_timer timer create_timer",
        "Set a timer|Start a timer",
        {key: "integer"},
    )
    question = rng.choice(
        ("Set a timer for {0} {1}.", "Wake me in {0} {1}.", "Start a timer of {0} {1}, please.")
    )
    return Scene(tool, question.format(amount, unit), {key: amount}, {"status": "ok"},
                 f"The timer is set for {amount} {unit}.")  # fmt: skip


def message(rng: Random) -> Scene:
    """Ask to send a message to somebody."""
    name = rng.choice((rng.choice(cast.NAMES), capitalised(nonsense(rng))))
    text = rng.choice(
        (
            "I am late",
            "see you soon",
            "the boat is ready",
            "happy birthday",
            "call me",
            "good night",
            f"bring the {rng.choice(cast.OBJECTS)}",
            f"the {rng.choice(cast.KINDS)} is here",
        )
    )
    to, body = rng.choice((("to", "text"), ("name", "message"), ("recipient", "body"), ("to", "message")))
    tool = define(
        rng,
        "send_message send_message message send_email notify",
        "Send a message|Send a text to a person",
        {to: "string", body: "string"},
    )
    question = rng.choice(
        ("Send {0} a message: {1}", "Write to {0}: {1}", "Tell {0}: {1}", "Message {0}: {1}")
    )
    return Scene(tool, question.format(name, text), {to: name, body: text}, {"sent": True},
                 f"I have sent your message to {name}.")  # fmt: skip


def order(rng: Random) -> Scene:
    """Ask for the state of an order."""
    number = f"{rng.choice('ABCDEFGH')}{rng.randint(100, 9999)}"
    state = rng.choice(("shipped", "packed", "delivered", "delayed"))
    key = rng.choice(("order_id", "id", "order", "number"))
    tool = define(
        rng,
        "get_order order_status lookup_order track_order",
        "Look up an order|Get the state of an order",
        {key: "string"},
    )
    question = rng.choice(
        (
            "Where is order {0}?",
            "What is the status of order {0}?",
            "Track order {0}.",
            "Has order {0} been shipped?",
        )
    )
    return Scene(
        tool, question.format(number), {key: number}, {"status": state}, f"Order {number} is {state}."
    )


def replicas(rng: Random) -> Scene:
    """Ask to change or to read the number of replicas of a model."""
    model = rng.choice(("tiny", "small", "chat", "llama", "embed", nonsense(rng)))
    count = rng.randint(0, 16)
    tool = define(
        rng,
        "scale set_replicas scale_model resize",
        "Set the number of replicas|Scale a model",
        {"model": "string", "replicas": "integer"},
    )
    question = rng.choice(
        ("Scale {0} to {1} replicas.", "Run {1} replicas of {0}.", "Set {0} to {1} replicas.")
    )
    return Scene(tool, question.format(model, count), {"model": model, "replicas": count}, {"ok": True},
                 f"The model {model} now has {count} replicas.")  # fmt: skip


def generic(rng: Random) -> Scene:
    """Ask for a tool with a made-up name, so that names must be read and not remembered."""
    verb, noun = rng.choice(words("open close paint start stop find check clean")), rng.choice(cast.OBJECTS)
    key, value = rng.choice(words("name label room color target item owner")), capitalised(nonsense(rng))
    tool = define(rng, f"{verb}_{noun}", f"{capitalised(verb)} the {noun}", {key: "string"})
    question = rng.choice(
        (
            f"{capitalised(verb)} the {noun} with the {key} {value}.",
            f"Please {verb} the {noun}, {key} {value}.",
        )
    )
    return Scene(tool, question, {key: value}, {"done": True}, f"Done: the {noun} of {value} is ready.")


SCENES: tuple[Callable[[Random], Scene], ...] = (
    weather, weather, weather, clock, arithmetic, search, convert, timer, message, order, replicas, generic,
)  # fmt: skip
