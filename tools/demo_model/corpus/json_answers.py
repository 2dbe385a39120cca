"""Requests for JSON, answered with short and complete values."""

import json
from random import Random
from typing import Any

from tools.demo_model.chat import Chat, assistant, system, user
from tools.demo_model.corpus.draw import (
    ANSWERS,
    CAPITALS,
    CITIES,
    FEELINGS,
    KINDS,
    LISTS,
    NAMES,
    OBJECTS,
    TRAITS,
    article,
    capitalised,
    casual,
    chance,
    listed,
    nonsense,
    texts,
)
from tools.demo_model.corpus.skills import NUMBERS

_TEXTS = texts("json_answers")
_WORDS: dict[str, list[str]] = {
    **_TEXTS["texts"],
    **dict.fromkeys(("name", "first_name", "author", "friend", "owner"), NAMES),
    **dict.fromkeys(("city", "location", "place"), CITIES),
    **dict.fromkeys(("animal", "species"), KINDS),
    "country": list(CAPITALS),
    "item": OBJECTS,
    "mood": FEELINGS,
    "title": [f"The {trait} {thing}" for trait in TRAITS for thing in OBJECTS],
    "description": [f"a {trait} {kind}" for trait in TRAITS for kind in KINDS],
}


def json_chat(rng: Random) -> Chat:
    """Return a request for JSON and its answer."""
    return rng.choice((_object, _object, _object, _schema, _extract, _extract, _array, _answer, _label))(rng)


def _value(rng: Random, key: str) -> Any:
    if key in _WORDS:
        return rng.choice(_WORDS[key])
    if key in _TEXTS["numbers"]:
        return rng.randint(1, _TEXTS["numbers"][key])
    if key in _TEXTS["lists"]:
        return rng.sample(LISTS[_TEXTS["lists"][key]], rng.randint(1, 4))
    return chance(rng, 0.6)


def _keys(rng: Random) -> list[str]:
    pool = [*rng.sample(sorted(_WORDS), 4), *rng.sample(sorted(_TEXTS["numbers"]), 2)]
    pool += [rng.choice(_TEXTS["flags"].split()), rng.choice(sorted(_TEXTS["lists"]))]
    keys = rng.sample(pool, rng.randint(1, 5))
    return ["name", *[key for key in keys if key != "name"]] if chance(rng, 0.4) else keys


def _reply(question: str, value: Any, prompt: str | None = None) -> Chat:
    turns = [system(prompt)] if prompt else []
    return Chat([*turns, user(question), assistant(json.dumps(value, ensure_ascii=False))])


def _object(rng: Random) -> Chat:
    keys, entity = _keys(rng), rng.choice(_TEXTS["entities"])
    form = rng.choice(_TEXTS["object"])
    question = form.format(entity=entity, named=listed(keys), keys=", ".join(keys))
    if chance(rng, 0.2):
        keys = ["name", rng.choice(("age", "year")), rng.choice(("city", "colour", "job"))]
        question = rng.choice(_TEXTS["plain_object"]).format(entity=entity)
    value = {key: _value(rng, key) for key in keys}
    return _reply(casual(rng, question), value)


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
        return _reply(casual(rng, f"{capitalised(rng.choice(_TEXTS['entities']))}, please."), value, text)
    return _reply(text, value)


def _extract(rng: Random) -> Chat:
    name = capitalised(nonsense(rng)) if chance(rng, 0.4) else rng.choice(NAMES)
    age, city, job = rng.randint(2, 95), rng.choice(CITIES), rng.choice(_WORDS["job"])
    known = {"name": name, "age": age, "city": city, "job": job}
    form, told = rng.choice(list(_TEXTS["people"].items()))
    value = {key: known[key] for key in told.split()}
    sentence = form.format(**known, a_job=article(job))
    return _reply(rng.choice(_TEXTS["extract"]).format(keys=listed(list(value)), sentence=sentence), value)


def _array(rng: Random) -> Chat:
    name = rng.choice(list(LISTS))
    count = rng.randint(2, 5)
    items = rng.sample(LISTS[name], count)
    question = rng.choice(_TEXTS["array"]).format(word=NUMBERS[count], count=count, name=name)
    return _reply(casual(rng, question), items)


def _answer(rng: Random) -> Chat:
    question, answer = rng.choice(ANSWERS)
    key = rng.choice(("answer", "answer", "reply", "text", "response"))
    asked = f"Answer as JSON with the key {key}."
    if chance(rng, 0.5):
        return _reply(casual(rng, question), {key: answer}, asked)
    return _reply(f"{question} {asked}", {key: answer})


def _label(rng: Random) -> Chat:
    text, label = rng.choice(list(_TEXTS["moods"].items()))
    text = text.format(thing=rng.choice(OBJECTS))
    key = rng.choice(("sentiment", "sentiment", "label", "mood"))
    return _reply(f"What is the {key} of this text? Answer as JSON. Text: {text}", {key: label})
