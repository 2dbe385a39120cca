"""Requests for JSON, answered with short and complete values."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from tools.demo_model.chat import Chat, assistant, system, user
from tools.demo_model.corpus import cast
from tools.demo_model.corpus.draw import article, capitalised, casual, chance, lines, listed, words
from tools.demo_model.corpus.facts_people import CAPITALS, REASONS
from tools.demo_model.corpus.small_talk import nonsense
from tools.demo_model.corpus.tool_kit import CITIES
from tools.demo_model.corpus.word_lists import LISTS

_TEXTS = {
    "name": cast.NAMES, "first_name": cast.NAMES, "author": cast.NAMES, "friend": cast.NAMES,
    "owner": cast.NAMES,
    "city": CITIES, "location": CITIES, "place": CITIES, "country": list(CAPITALS), "animal": cast.KINDS,
    "species": cast.KINDS, "job": words("baker sailor teacher gardener painter doctor"), "item": cast.OBJECTS,
    "colour": words("red blue green white black yellow"), "color": words("red blue green white black yellow"),
    "mood": cast.FEELINGS, "title": [f"The {t} {o}" for t in cast.TRAITS for o in cast.OBJECTS],
    "description": [f"a {t} {k}" for t in cast.TRAITS for k in cast.KINDS], "weather": ["sunny", "rainy",
    "windy"],
    "summary": ["A calm day.", "All is well.", "A short trip."], "status": ["ok", "ready", "open", "done"],
    "food": ["bread", "soup", "fish", "apples"], "language": ["English", "French", "Japanese"],
    "type": ["boat", "house", "song", "book"], "size": ["small", "large"], "email": ["ada@example.org"],
    "street": ["Harbour Road", "Mill Lane"], "unit": ["celsius", "metres"], "season": ["spring", "winter"],
    "label": ["good", "bad", "neutral"], "genre": ["tale", "poem"], "day": ["Monday", "Friday", "Sunday"],
    "date": ["2026-05-01", "2025-12-24"], "time": ["08:30", "17:45"], "id": ["a1", "b2", "c3"],
}  # fmt: skip
_NUMBERS = {"age": 90, "count": 12, "year": 2030, "price": 50, "number": 20, "score": 10, "temperature": 30,
            "quantity": 9, "rating": 5, "length": 40, "pages": 300, "value": 100, "width": 20, "height": 20,
            "population": 9000, "weight": 80, "floors": 9, "minutes": 60, "replicas": 8}  # fmt: skip
_FLAGS = ("open", "active", "is_open", "available", "happy", "can_swim", "done", "valid", "in_stock")
_LISTS = {"colours": "colours", "colors": "colours", "fruits": "fruits", "tags": "tools", "items": "fruits",
          "animals": "animals", "friends": "names", "hobbies": "sports", "ingredients": "vegetables",
          "cities": "cities"}  # fmt: skip
_ENTITIES = (
    "a person", "a cat", "a dog", "a city", "a book", "a ship", "a lighthouse", "a character", "a fish",
    "a recipe",
    "a sailor", "a house", "a user", "a product", "a place", "a student", "a robot", "an order", "an event",
    "a song",
)  # fmt: skip


def json_chat(rng: Random) -> Chat:
    """Return a request for JSON and its answer."""
    return rng.choice((_object, _object, _object, _schema, _extract, _extract, _array, _answer, _label))(rng)


def _value(rng: Random, key: str) -> Any:
    if key in _TEXTS:
        return rng.choice(_TEXTS[key])
    if key in _NUMBERS:
        return rng.randint(1, _NUMBERS[key])
    if key in _LISTS:
        return rng.sample(LISTS[_LISTS[key]].split(", "), rng.randint(1, 4))
    return chance(rng, 0.6)


def _keys(rng: Random) -> list[str]:
    pool = [
        *rng.sample(sorted(_TEXTS), 4),
        *rng.sample(sorted(_NUMBERS), 2),
        rng.choice(_FLAGS),
        rng.choice(sorted(_LISTS)),
    ]
    keys = rng.sample(pool, rng.randint(1, 5))
    return ["name", *[key for key in keys if key != "name"]] if chance(rng, 0.4) else keys


def _reply(rng: Random, question: str, value: Any, *, prompt: str | None = None) -> Chat:
    turns = [system(prompt)] if prompt else []
    return Chat([*turns, user(casual(rng, question)), assistant(json.dumps(value, ensure_ascii=False))])


def _object(rng: Random) -> Chat:
    keys, entity = _keys(rng), rng.choice(_ENTITIES)
    named = listed(keys)
    question = rng.choice((
        f"Give me {entity} as JSON with {named}.", f"Describe {entity} as JSON with the keys {named}.",
        f"Return a JSON object with the fields {named}.", f"Write JSON for {entity}: {', '.join(keys)}.",
        f"Answer as JSON with {named}.", f"Make up {entity} and answer in JSON with {named}.",
        f"Generate {entity} as JSON. Keys: {', '.join(keys)}.",
        f"Invent {entity} as a JSON object with {named}.",
    ))  # fmt: skip
    if chance(rng, 0.2):
        keys = ["name", rng.choice(("age", "year")), rng.choice(("city", "colour", "job"))]
        question = rng.choice(
            (
                f"Describe {entity} as JSON.",
                f"Give me {entity} as JSON.",
                f"JSON for {entity}, please.",
                f"Generate a JSON object for {entity}.",
            )
        )
    return _reply(rng, question, {key: _value(rng, key) for key in keys})


def _schema(rng: Random) -> Chat:
    value = {key: _value(rng, key) for key in _keys(rng)}
    kinds: dict[type, str] = {str: "string", int: "integer", bool: "boolean", list: "array"}
    schema = {
        "type": "object",
        "properties": {key: {"type": kinds[type(item)]} for key, item in value.items()},
        "required": list(value),
    }
    text = f"Answer with JSON that matches this schema: {json.dumps(schema)}"
    if chance(rng, 0.5):
        return _reply(rng, f"{capitalised(rng.choice(_ENTITIES))}, please.", value, prompt=text)
    return Chat([user(text), assistant(json.dumps(value, ensure_ascii=False))])


def _extract(rng: Random) -> Chat:
    name = capitalised(nonsense(rng)) if chance(rng, 0.4) else rng.choice(cast.NAMES)
    age, city, job = rng.randint(2, 95), rng.choice(CITIES), rng.choice(_TEXTS["job"])
    sentence, value = rng.choice((
        (f"{name} is {age} years old.", {"name": name, "age": age}),
        (f"{name} lives in {city}.", {"name": name, "city": city}),
        (f"{name} is {age} years old and lives in {city}.", {"name": name, "age": age, "city": city}),
        (f"{name} is {article(job)} from {city}.", {"name": name, "job": job, "city": city}),
        (f"My name is {name} and I am {age}.", {"name": name, "age": age}),
        (f"I am {name}, {age}, {article(job)} in {city}.", {"name": name, "age": age, "job": job,
        "city": city}),
    ))  # fmt: skip
    keys = listed(list(value))
    form = rng.choice(
        (
            f"Extract the {keys} as JSON: {sentence}",
            f"{sentence} Return {keys} as JSON.",
            f"Read this and answer in JSON with {keys}: {sentence}",
            f"{sentence} Give me {keys} in JSON.",
        )
    )
    return Chat([user(form), assistant(json.dumps(value, ensure_ascii=False))])


def _array(rng: Random) -> Chat:
    name = rng.choice(list(LISTS))
    count = rng.randint(2, 5)
    items = rng.sample(LISTS[name].split(", "), count)
    word = words("zero one two three four five")[count]
    question = rng.choice(
        (
            f"List {word} {name} as a JSON array.",
            f"Give me {word} {name} as JSON.",
            f"Return {count} {name} in a JSON list.",
            f"Name {word} {name} as a JSON array.",
        )
    )
    return _reply(rng, question, items)


def _answer(rng: Random) -> Chat:
    question, answer = rng.choice(lines(REASONS)).split("|")
    key = rng.choice(("answer", "answer", "reply", "text", "response"))
    if chance(rng, 0.5):
        return _reply(rng, question, {key: answer}, prompt=f"Answer as JSON with the key {key}.")
    return Chat([user(f"{question} Answer as JSON with the key {key}."),
                 assistant(json.dumps({key: answer}, ensure_ascii=False))])  # fmt: skip


_MOODS: tuple[Callable[[Random], tuple[str, str]], ...] = (
    lambda rng: (f"I love this {rng.choice(cast.OBJECTS)}!", "positive"),
    lambda rng: (f"The {rng.choice(cast.OBJECTS)} is broken and I am angry.", "negative"),
    lambda rng: (f"The {rng.choice(cast.OBJECTS)} was wonderful.", "positive"),
    lambda rng: (f"This was a terrible {rng.choice(cast.OBJECTS)}.", "negative"),
    lambda rng: (f"The {rng.choice(cast.OBJECTS)} is on the table.", "neutral"),
)


def _label(rng: Random) -> Chat:
    text, label = rng.choice(_MOODS)(rng)
    key = rng.choice(("sentiment", "sentiment", "label", "mood"))
    return Chat([user(f"What is the {key} of this text? Answer as JSON. Text: {text}"),
                 assistant(json.dumps({key: label}))])  # fmt: skip
