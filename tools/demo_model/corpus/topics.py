"""Topics: a name, other names for it, a defining sentence and simple facts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tools.demo_model.corpus import facts_animals, facts_computing, facts_daily, facts_land, facts_water
from tools.demo_model.corpus.draw import lines


@dataclass(frozen=True, slots=True)
class Topic:
    """One thing that the model can talk about."""

    name: str
    aliases: tuple[str, ...]
    verb: str
    definition: str
    facts: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Every way to name the topic in a question."""
        return (self.name, *self.aliases)

    @property
    def pronoun(self) -> str:
        """The pronoun that stands for the topic's main name."""
        return "them" if self.verb == "are" else "it"


def parse_topics(block: str) -> list[Topic]:
    """Read topics from text: a `##` header, a definition, then one fact a line."""
    topics = []
    for section in block.split("##")[1:]:
        header, definition, *facts = lines(section)
        name, aliases, verb = (part.strip() for part in header.split(";"))
        others = tuple(alias.strip() for alias in aliases.split(","))
        topics.append(Topic(name, others, verb, definition, tuple(facts)))
    return topics


@cache
def all_topics() -> tuple[Topic, ...]:
    """Return every topic, in a fixed order."""
    blocks = (facts_water, facts_land, facts_animals, facts_daily, facts_computing)
    return tuple(topic for block in blocks for topic in parse_topics(block.FACTS))
