"""A grammar of short stories with one hero, one helper and one thing that matters, and requests for them."""

from random import Random

from tools.demo_model.chat import Chat, assistant, user
from tools.demo_model.corpus.draw import (
    CAST,
    FEELINGS,
    HELPERS,
    HEROES,
    KINDS,
    OBJECTS,
    PLACES,
    TRAITS,
    article,
    capitalised,
    casual,
    chance,
    texts,
)
from tools.demo_model.corpus.topics import maybe_system, thanks

_TEXTS = texts("stories")
_REQUESTS = _TEXTS["requests"]
_LENGTHS = ("short", "normal", "long")


def plain_story(rng: Random) -> str:
    """Return a story, sometimes with a title."""
    where = setting(rng)
    text = story(rng, where, rng.choices(_LENGTHS, (3, 4, 3))[0])
    return f"{where['N']} and the {where['thing']}\n\n{text}" if chance(rng, 0.15) else text


def story_chat(rng: Random) -> Chat:
    """Return a conversation of one or two stories."""
    length = rng.choices(_LENGTHS, (4, 4, 2))[0]
    request, where = _request(rng, length)
    messages = [*maybe_system(rng), user(casual(rng, request))]
    messages.append(assistant(rng.choice(_REQUESTS["openings"]) + story(rng, where, length)))
    if chance(rng, 0.1):
        messages += [user(rng.choice(_REQUESTS["another"])), assistant(story(rng, setting(rng), "short"))]
    if chance(rng, 0.05):
        messages += thanks(rng)
    return Chat(messages)


def setting(rng: Random, hero: str = "", place: str = "", thing: str = "", name: str = "") -> dict[str, str]:
    """Return the words that fill a story's slots: those given, and others drawn."""
    hero = hero or rng.choice(KINDS)
    helper = rng.choice([other for other in KINDS if other != hero])
    name = name or rng.choice(HEROES)
    helper_name, trait = rng.choice(HELPERS), rng.choice(TRAITS)
    place = place or rng.choice(PLACES)
    thing = thing or rng.choice(OBJECTS)
    he, him, his = ("she", "her", "her") if name in CAST["she"].split() else ("he", "him", "his")
    return {
        "N": name, "M": helper_name, "hero": hero, "helper": helper, "trait": trait, "place": place,
        "thing": thing, "a_hero": article(hero), "a_helper": article(helper), "a_thing": article(thing),
        "A_helper": capitalised(article(helper)), "a_trait_hero": article(f"{trait} {hero}"),
        "he": he, "He": capitalised(he), "him": him, "his": his, "His": capitalised(his),
    }  # fmt: skip


def story(rng: Random, where: dict[str, str], length: str) -> str:
    """Tell a story: "short" is one paragraph, "long" has several episodes."""
    plot = rng.choice(_TEXTS["plots"])
    opening = rng.choice(_TEXTS["openings"])
    habits = rng.sample(_TEXTS["habits"], 1 if length == "short" else rng.randint(1, 3))
    paragraphs = [[opening, *habits]]
    if length == "long":
        episodes = rng.sample(_TEXTS["episodes"], rng.randint(2, 5))
        paragraphs.extend([rng.choice(step) for step in episode] for episode in episodes)
    main = [rng.choice(step) for step in plot]
    paragraphs.append([rng.choice(CAST["weather"]), *main])
    paragraphs.append([rng.choice(_TEXTS["endings"])])
    if chance(rng, 0.4):
        paragraphs[-1].append(rng.choice(_TEXTS["morals"]))
    joined = (" " if length == "short" else "\n\n").join(" ".join(paragraph) for paragraph in paragraphs)
    return joined.format(**where, feeling=rng.choice(FEELINGS))


def _request(rng: Random, length: str) -> tuple[str, dict[str, str]]:
    form = rng.choice(_REQUESTS["verbs"])
    asked = form.format(rng.choice(_REQUESTS[length]))
    end = "?" if form.startswith("C") else "."
    kind, thing, name = rng.choice(KINDS), rng.choice(OBJECTS), rng.choice(HEROES)
    spot = rng.choice(list(CAST["places"]))
    place = CAST["places"][spot]
    roll = rng.random()
    if roll < 0.15:
        return asked + end, setting(rng)
    if roll < 0.35:
        return f"{asked} about {article(kind)}{end}", setting(rng, kind)
    if roll < 0.60:
        return f"{asked} about {article(kind)} and {article(spot)}{end}", setting(rng, kind, place)
    if roll < 0.75:
        return f"{asked} about {article(kind)} and {article(thing)}{end}", setting(rng, kind, thing=thing)
    if roll < 0.85:
        return f"{asked} about {article(kind)} who lives {place}{end}", setting(rng, kind, place)
    where = setting(rng, kind, name=name)
    if roll < 0.92:
        return f"{asked} about {article(kind)} named {name}{end}", where
    return f"{asked} about {name} the {kind}{end}", where
