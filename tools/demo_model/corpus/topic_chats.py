"""Conversations in which somebody asks about a topic."""

from __future__ import annotations

from random import Random

from tools.demo_model.chat import Chat, Message, assistant, system, user
from tools.demo_model.corpus.draw import capitalised, casual, chance, some
from tools.demo_model.corpus.topics import Topic, all_topics

_QUESTIONS: tuple[str, ...] = (
    "Tell me about {0}.", "Tell me something about {0}.", "What can you tell me about {0}?",
    "Can you tell me about {0}?", "Please tell me about {0}.", "Describe {0}.", "Please describe {0}.",
    "Explain {0}.", "Can you explain {0}?", "Could you explain {0} to me?", "Explain {0} simply.",
    "I want to learn about {0}.", "I would like to know more about {0}.", "What do you know about {0}?",
    "Give me some facts about {0}.", "Write a few sentences about {0}.", "Write a paragraph about {0}.",
    "Talk to me about {0}.", "Teach me about {0}.", "Say something about {0}.", "{0}?", "{0}",
    "How would you describe {0} to a child?", "Why are people interested in {0}?", "How about {0}?",
    "Write about {0}.", "Introduce me to {0}.", "Give me a short text about {0}.",
)  # fmt: skip
_WHAT: tuple[str, ...] = ("What is {0}?", "What exactly is {0}?", "Explain what {0} is.", "Hi, what is {0}?",
                          "How does {0} work?",
         "So what is {0}?", "Why is {0} important?", "What is so special about {0}?")  # fmt: skip
_WHAT_MANY: tuple[str, ...] = ("What are {0}?", "What exactly are {0}?", "Explain what {0} are.",
                               "Hello, what are {0}?",
              "Why are {0} important?", "What is so special about {0}?")  # fmt: skip
_ONE_FACT = (
    "Tell me one fact about {0}.", "Give me a fact about {0}.", "Tell me a fun fact about {0}.",
    "Say one sentence about {0}.", "What is interesting about {0}?",
)  # fmt: skip
_ONE_SENTENCE = (
    "Explain {0} in one sentence.", "Describe {0} in one sentence.", "In one sentence, what about {0}?",
    "Summarise {0} in one sentence.", "Define {0}.", "Explain {0} briefly.",
)  # fmt: skip
_OPENINGS = ("", "", "", "", "", "", "Of course. ", "Gladly. ", "Sure! ", "Good question. ",
             "With pleasure. ",
             "Happy to help. ")  # fmt: skip
_CLOSINGS = (
    "Would you like to hear more?", "Shall I tell you more?", "I hope this helps. 😊",
    "Ask me if you want more.",
    "That is why many people like {pronoun}.", "There is much more to learn about {name}.",
    "The more you look at {name}, the more you find.", "Is there anything else you would like to know?",
)  # fmt: skip
_MORE = (
    "Tell me more.", "More, please.", "Go on.", "Anything else?", "What else?", "Interesting! Tell me more.",
    "Can you say more?", "Please continue.", "And?", "Nice. What else do you know?", "Continue.",
)  # fmt: skip
_MORE_OPENINGS = ("", "", "Of course. ", "There is more to say. ", "Gladly. ", "Here is something else. ")
_THANKS = ("Thank you!", "Thanks.", "Thanks, that helps.", "Great, thank you.", "Cool, thanks!", "ok thanks")
_WELCOME = (
    "You are welcome!", "You are welcome. Ask me again whenever you like.", "My pleasure. 😊",
    "Any time! Have a good day.", "You are welcome — it was a pleasure.", "Glad to help!",
)  # fmt: skip
SYSTEM_PROMPTS = (
    "You are a helpful assistant.", "You are a friendly assistant.",
    "You are a helpful and honest assistant.",
    "Answer politely.", "You are a concise assistant.", "Be kind and clear.",
    "You are Tideserve's demo model.",
    "You are a teacher who explains things simply.", "You are a helpful AI assistant. Answer in English.",
)  # fmt: skip


def maybe_system(rng: Random) -> list[Message]:
    """Return a system turn, or usually none."""
    return [system(rng.choice(SYSTEM_PROMPTS))] if chance(rng, 0.25) else []


def thanks(rng: Random) -> list[Message]:
    """Return a turn of thanks and its answer."""
    return [user(rng.choice(_THANKS)), assistant(rng.choice(_WELCOME))]


def question_about(rng: Random, topic: Topic) -> str:
    """Return one of many ways to ask about a topic."""
    name = rng.choice(topic.names) if chance(rng, 0.5) else topic.name
    forms = _QUESTIONS
    if name == topic.name and chance(rng, 0.35):
        forms = _WHAT_MANY if topic.verb == "are" else _WHAT
    return casual(rng, capitalised(rng.choice(forms).format(name)))


def topic_chat(rng: Random) -> Chat:
    """Return a conversation of one to three turns about a topic."""
    topic = rng.choice(all_topics())
    kind = rng.random()
    if kind < 0.08:
        return _single(rng, topic, _ONE_FACT, f"{topic.definition} {rng.choice(topic.facts)}")
    if kind < 0.16:
        return _single(rng, topic, _ONE_SENTENCE, topic.definition)
    facts = list(topic.facts)
    rng.shuffle(facts)
    count = rng.randint(2, 5)
    messages = [
        *maybe_system(rng),
        user(question_about(rng, topic)),
        assistant(_answer(rng, topic, facts[:count])),
    ]
    rest = facts[count:]
    if len(rest) >= 2 and chance(rng, 0.25):
        more = " ".join(some(rng, rest, 1, 3))
        messages += [user(casual(rng, rng.choice(_MORE))), assistant(rng.choice(_MORE_OPENINGS) + more)]
    if chance(rng, 0.1):
        other = rng.choice(all_topics())
        messages += [
            user(question_about(rng, other)),
            assistant(_answer(rng, other, some(rng, other.facts, 1, 4))),
        ]
    if chance(rng, 0.08):
        messages += thanks(rng)
    return Chat(messages)


def _single(rng: Random, topic: Topic, forms: tuple[str, ...], answer: str) -> Chat:
    name = rng.choice(topic.names) if chance(rng, 0.3) else topic.name
    return Chat([*maybe_system(rng), user(casual(rng, rng.choice(forms).format(name))), assistant(answer)])


def _answer(rng: Random, topic: Topic, facts: list[str]) -> str:
    sentences = [topic.definition, *facts]
    if chance(rng, 0.25):
        sentences.append(rng.choice(_CLOSINGS).format(name=topic.name, pronoun=topic.pronoun))
    if len(sentences) > 4 and chance(rng, 0.15):
        middle = len(sentences) // 2
        return f"{' '.join(sentences[:middle])}\n\n{' '.join(sentences[middle:])}"
    return rng.choice(_OPENINGS) + " ".join(sentences)
