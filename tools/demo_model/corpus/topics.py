"""Topics with simple facts, and conversations in which somebody asks about one."""

from dataclasses import dataclass
from functools import cache
from importlib import resources
from random import Random

from tools.demo_model.chat import Chat, Message, assistant, system, user
from tools.demo_model.corpus.draw import capitalised, casual, chance, some, texts

_TEXTS = texts("topic_chats")


@dataclass(frozen=True, slots=True)
class Topic:
    """One thing that the model can talk about: its names, a defining sentence and simple facts."""

    name: str
    aliases: tuple[str, ...]
    verb: str
    definition: str
    facts: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Every way to name the topic in a question."""
        return (self.name, *self.aliases)


@cache
def all_topics() -> tuple[Topic, ...]:
    """Return every topic of `texts/topics.txt`: a `##` header, a definition, then one fact a line."""
    text = (resources.files(__package__) / "texts" / "topics.txt").read_text(encoding="utf-8")
    topics = []
    for section in text.split("##")[1:]:
        header, definition, *facts = section.strip().splitlines()
        name, aliases, verb = (part.strip() for part in header.split(";"))
        others = tuple(alias.strip() for alias in aliases.split(","))
        topics.append(Topic(name, others, verb, definition, tuple(facts)))
    return tuple(topics)


def maybe_system(rng: Random) -> list[Message]:
    """Return a system turn, or usually none."""
    return [system(rng.choice(_TEXTS["systems"]))] if chance(rng, 0.25) else []


def thanks(rng: Random) -> list[Message]:
    """Return a turn of thanks and its answer."""
    return [user(rng.choice(_TEXTS["thanks"])), assistant(rng.choice(_TEXTS["welcome"]))]


def topic_chat(rng: Random) -> Chat:
    """Return a conversation of one to three turns about a topic."""
    topic = rng.choice(all_topics())
    kind = rng.random()
    if kind < 0.08:
        return _single(rng, topic, "one_fact", f"{topic.definition} {rng.choice(topic.facts)}")
    if kind < 0.16:
        return _single(rng, topic, "one_sentence", topic.definition)
    facts = list(topic.facts)
    rng.shuffle(facts)
    count = rng.randint(2, 5)
    turns = [*maybe_system(rng), user(_question(rng, topic)), assistant(_answer(rng, topic, facts[:count]))]
    rest = facts[count:]
    if len(rest) >= 2 and chance(rng, 0.25):
        more = " ".join(some(rng, rest, 1, 3))
        turns.append(user(casual(rng, rng.choice(_TEXTS["more"]))))
        turns.append(assistant(rng.choice(_TEXTS["more_openings"]) + more))
    if chance(rng, 0.1):
        other = rng.choice(all_topics())
        turns.append(user(_question(rng, other)))
        turns.append(assistant(_answer(rng, other, some(rng, other.facts, 1, 4))))
    if chance(rng, 0.08):
        turns += thanks(rng)
    return Chat(turns)


def _question(rng: Random, topic: Topic) -> str:
    name = rng.choice(topic.names) if chance(rng, 0.5) else topic.name
    forms = "questions"
    if name == topic.name and chance(rng, 0.35):
        forms = "what_many" if topic.verb == "are" else "what"
    return casual(rng, capitalised(rng.choice(_TEXTS[forms]).format(name)))


def _single(rng: Random, topic: Topic, forms: str, answer: str) -> Chat:
    name = rng.choice(topic.names) if chance(rng, 0.3) else topic.name
    turns = maybe_system(rng)
    question = casual(rng, rng.choice(_TEXTS[forms]).format(name))
    return Chat([*turns, user(question), assistant(answer)])


def _answer(rng: Random, topic: Topic, facts: list[str]) -> str:
    sentences = [topic.definition, *facts]
    if chance(rng, 0.25):
        pronoun = "them" if topic.verb == "are" else "it"
        sentences.append(rng.choice(_TEXTS["closings"]).format(name=topic.name, pronoun=pronoun))
    if len(sentences) > 4 and chance(rng, 0.15):
        middle = len(sentences) // 2
        return f"{' '.join(sentences[:middle])}\n\n{' '.join(sentences[middle:])}"
    return str(rng.choice(_TEXTS["openings"])) + " ".join(sentences)
