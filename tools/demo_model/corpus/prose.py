"""Plain texts without chat markup, for raw completions."""

from __future__ import annotations

from random import Random

from tools.demo_model.corpus.draw import capitalised, chance, words
from tools.demo_model.corpus.stories import setting, story
from tools.demo_model.corpus.topics import Topic, all_topics

_LINKS = ("", "", "", "It is also true that ", "Many people know that ", "We should remember that ")
_CLOSINGS = (
    "That is a small part of what can be said about {0}.", "There is always more to learn about {0}.",
    "So the next time you think of {0}, remember this.", "It is worth a second look.",
)  # fmt: skip


def plain_story(rng: Random) -> str:
    """Return a story, sometimes with a title."""
    where = setting(rng)
    length = rng.choices(("short", "normal", "long"), (3, 4, 3))[0]
    text = story(rng, where, length=length)
    if chance(rng, 0.15):
        return f"{where.hero_name} and the {where.thing}\n\n{text}"
    return text


def essay(rng: Random) -> str:
    """Return an essay about one to four topics, a paragraph for each."""
    topics = rng.sample(all_topics(), rng.choices((1, 2, 3, 4), (5, 3, 2, 1))[0])
    paragraphs = [_paragraph(rng, topic) for topic in topics]
    if chance(rng, 0.5):
        paragraphs[-1] += " " + rng.choice(_CLOSINGS).format(topics[-1].name)
    if len(topics) == 1 and chance(rng, 0.3):
        paragraphs.insert(0, f"# {capitalised(topics[0].name)}")
    return "\n\n".join(paragraphs)


def _paragraph(rng: Random, topic: Topic) -> str:
    facts = rng.sample(topic.facts, rng.randint(3, len(topic.facts)))
    sentences = [topic.definition]
    for fact in facts:
        link = rng.choice(_LINKS) if chance(rng, 0.3) else ""
        proper = fact.split()[0] in _SAFE_TO_LOWER
        sentences.append(link + fact[:1].lower() + fact[1:] if link and proper else fact)
    return " ".join(sentences)


_SAFE_TO_LOWER = frozenset(words("It They The Some Most Many A Each All In"))
