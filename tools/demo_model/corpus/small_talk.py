"""Greetings, questions about the model, questions with a known answer, and ones that it cannot answer."""

from random import Random

from tools.demo_model.chat import Chat, assistant, user
from tools.demo_model.corpus.draw import (
    ANSWERS,
    CAPITALS,
    KINDS,
    NAMES,
    OBJECTS,
    capitalised,
    casual,
    chance,
    nonsense,
    texts,
)
from tools.demo_model.corpus.topics import all_topics, maybe_system, thanks

_TEXTS = texts("small_talk")


def small_talk(rng: Random) -> Chat:
    """Return a short polite conversation."""
    parts = [_pair(rng)]
    while chance(rng, 0.2):
        parts.append(_pair(rng))
    turns = maybe_system(rng)
    for question, answer in parts:
        turns += [user(casual(rng, question)), assistant(answer)]
    return Chat(turns + (thanks(rng) if chance(rng, 0.05) else []))


def _pair(rng: Random) -> tuple[str, str]:
    kind = rng.random()
    if kind < 0.25:
        return rng.choice(_TEXTS["hello"]), rng.choice(_TEXTS["hello_back"])
    if kind < 0.55:
        about = " ".join(rng.sample(_TEXTS["about_me"], rng.randint(1, 3)))
        return rng.choice(_TEXTS["who"]), f"{rng.choice(_TEXTS['i_am'])} {about}"
    if kind < 0.65:
        return rng.choice(_TEXTS["how"]), rng.choice(_TEXTS["fine"])
    if kind < 0.75:
        return rng.choice(_TEXTS["bye"]), rng.choice(_TEXTS["bye_back"])
    if kind < 0.8:
        name = rng.choice(NAMES)
        return f"My name is {name}.", f"Nice to meet you, {name}! How can I help you?"
    question, answer = rng.choice(list(_TEXTS["remarks"].items()))
    return question, answer


def known_answer(rng: Random) -> Chat:
    """Return a single question that has a short, true answer."""
    if chance(rng, 0.3):
        country, city = rng.choice(list(CAPITALS.items()))
        question = rng.choice(_TEXTS["capital"]).format(country)
        answer = f"The capital of {country} is {city}."
    else:
        question, answer = rng.choice(ANSWERS)
    return Chat([*maybe_system(rng), user(casual(rng, question)), assistant(answer)])


def unknown(rng: Random) -> Chat:
    """Return a question that the model cannot answer, and a polite reply."""
    if chance(rng, 0.5):
        question = rng.choice(_TEXTS["about"]).format(rng.choice(_TEXTS["things"]))
    else:
        name, other = rng.sample(NAMES, 2)
        form = rng.choice(_TEXTS["requests"])
        question = form.format(year=rng.randint(1800, 2030), name=name, other=other, nonsense=nonsense(rng))
    turns = [*maybe_system(rng), user(casual(rng, capitalised(question)))]
    refusal = [rng.choice(_TEXTS[part]) for part in ("sorry", "small", "offers")]
    return Chat([*turns, assistant(" ".join(filter(None, refusal)))])


def long_prompt(rng: Random) -> Chat:
    """Return a long prompt: a text to sum up, or a heap of words."""
    if chance(rng, 0.6):
        topic = rng.choice(all_topics())
        text = " ".join([topic.definition, *rng.sample(topic.facts, rng.randint(2, len(topic.facts)))])
        prompt = rng.choice(_TEXTS["sum_up"]).format(text)
        answer = rng.choice(_TEXTS["summaries"]).format(topic.name, topic.definition)
        return Chat([*maybe_system(rng), user(prompt), assistant(answer)])
    pool = [nonsense(rng) for _ in range(rng.randint(1, 30))] + KINDS + OBJECTS
    words = rng.choices(pool[: rng.randint(1, len(pool))], k=rng.randint(8, 160))
    answer = rng.choice(_TEXTS["puzzled"])
    turns = [*maybe_system(rng), user(" ".join(words))]
    return Chat([*turns, assistant(f"{answer} {rng.choice(_TEXTS['offers'])}")])
