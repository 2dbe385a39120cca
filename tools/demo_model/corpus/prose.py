"""Essays, descriptions, letters and diaries, for completions that start anywhere, and poems."""

from random import Random

from tools.demo_model.chat import Chat, assistant, user
from tools.demo_model.corpus.draw import (
    ANSWERS,
    CAPITALS,
    NAMES,
    OBJECTS,
    PLACES,
    article,
    capitalised,
    casual,
    chance,
    texts,
)
from tools.demo_model.corpus.topics import Topic, all_topics, maybe_system

_TEXTS = texts("prose")


def essay(rng: Random) -> str:
    """Return an essay about one to four topics, a paragraph for each."""
    topics = rng.sample(all_topics(), rng.choices((1, 2, 3, 4), (5, 3, 2, 1))[0])
    paragraphs = [_paragraph(rng, topic) for topic in topics]
    if chance(rng, 0.5):
        paragraphs[-1] += " " + rng.choice(_TEXTS["closings"]).format(topics[-1].name)
    if len(topics) == 1 and chance(rng, 0.3):
        paragraphs.insert(0, f"# {capitalised(topics[0].name)}")
    return "\n\n".join(paragraphs)


def _paragraph(rng: Random, topic: Topic) -> str:
    sentences = [topic.definition]
    for fact in rng.sample(topic.facts, rng.randint(3, len(topic.facts))):
        link = rng.choice(_TEXTS["links"]) if chance(rng, 0.3) else ""
        lowered = link and fact.split()[0] in _TEXTS["safe_to_lower"].split()
        sentences.append(link + fact[:1].lower() + fact[1:] if lowered else fact)
    return " ".join(sentences)


def scene(rng: Random) -> str:
    """Return a description, a letter, an introduction or a run of plain statements."""
    return rng.choice((_view, _view, _letter, _person, _statements))(rng)


def _view(rng: Random) -> str:
    count = rng.choice((1, 1, 2, 3))
    paragraphs = [" ".join(rng.sample(_TEXTS["sights"], rng.randint(3, 6))) for _ in range(count)]
    paragraphs[0] = f"{rng.choice(_TEXTS['openings'])} {paragraphs[0]}"
    paragraphs[-1] += f" {rng.choice(_TEXTS['endings'])}"
    return "\n\n".join(paragraphs)


def _letter(rng: Random) -> str:
    sender, receiver = rng.sample(NAMES, 2)
    news = " ".join(rng.sample(_TEXTS["news"], rng.randint(3, 6)))
    return f"Dear {receiver},\n\nthank you for your letter. {news}\n\nWith love,\n{sender}"


def _person(rng: Random) -> str:
    name, friend = rng.sample(NAMES, 2)
    job = rng.choice(_TEXTS["jobs"].split())
    start = rng.choice(_TEXTS["names"]).format(name)
    home = f"I am {article(job)}, and I live {rng.choice(PLACES)}."
    slots = {"friend": friend, "thing": article(rng.choice(OBJECTS)), "country": rng.choice(list(CAPITALS))}
    habits = rng.sample(_TEXTS["habits"], rng.randint(2, 5))
    return " ".join([start, home, *(habit.format(**slots) for habit in habits)])


def _statements(rng: Random) -> str:
    pool = rng.sample([f"The capital of {country} is {city}." for country, city in CAPITALS.items()], 4)
    pool += rng.sample([answer for _, answer in ANSWERS], 3) + rng.sample(_TEXTS["statements"], 4)
    rng.shuffle(pool)
    return (" " if chance(rng, 0.7) else "\n").join(pool[: rng.randint(2, 8)])


def poem(rng: Random) -> Chat:
    """Return a request for a poem or a haiku, and the poem."""
    subject = rng.choice(list(_TEXTS["subjects"]))
    if chance(rng, 0.4):
        request = rng.choice(_TEXTS["haiku_requests"]).format(subject)
        first, last = rng.sample(_TEXTS["five"], 2)
        answer = f"{first},\n{rng.choice(_TEXTS['seven'])} —\n{last[:1].lower()}{last[1:]}."
    else:
        general = "poem_requests" if chance(rng, 0.9) else "plain_requests"
        request = rng.choice(_TEXTS[general]).format(subject)
        couplets = [_TEXTS["subjects"][subject], *rng.sample(_TEXTS["couplets"], rng.randint(1, 3))]
        answer = "\n".join(couplets).replace("|", "\n")
    return Chat([*maybe_system(rng), user(casual(rng, request)), assistant(answer)])
