"""Small tasks: counting, sums, lists, greetings in other languages, jokes, echoes."""

from __future__ import annotations

from random import Random

from tools.demo_model.chat import Chat, assistant, user
from tools.demo_model.corpus import cast
from tools.demo_model.corpus.draw import capitalised, casual, chance, lines, listed, words
from tools.demo_model.corpus.small_talk import nonsense
from tools.demo_model.corpus.topic_chats import maybe_system, thanks
from tools.demo_model.corpus.word_lists import JOKES, LISTS, PHRASES, SEQUENCES

_WORDS = words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
)
_JOKE_REQUESTS = ("Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Another joke, please.",
                  "A joke!",
                  "Say something funny.", "Tell me a joke about the sea.", "Give me a joke.")  # fmt: skip


def skill(rng: Random) -> Chat:
    """Return a conversation that asks for one or more small tasks."""
    tasks = (_count, _sum, _list, _list, _phrase, _phrase, _joke, _sequence, _echo, _emoji)
    turns = maybe_system(rng)
    while True:
        question, answer = rng.choice(tasks)(rng)
        turns += [user(question), assistant(answer)]
        if not chance(rng, 0.15):
            return Chat(turns + (thanks(rng) if chance(rng, 0.05) else []))


def _count(rng: Random) -> tuple[str, str]:
    first, last = 1, rng.choice((3, 5, 5, 10, 10, 10, 10, 12, 15, 20, 20, 30))
    if chance(rng, 0.3):
        first = rng.randint(2, 12)
        last = first + rng.randint(3, 10)
    numbers = list(range(first, last + 1))
    spelled = last <= 20 and chance(rng, 0.5)
    start, stop = (_WORDS[first], _WORDS[last]) if spelled else (str(first), str(last))
    forms = [f"Count from {start} to {stop}.", f"Please count from {start} to {stop}."]
    if first == 1:
        forms += [f"Count to {stop}.", f"Can you count to {stop}?", f"Please count to {stop}."] * 2
    if chance(rng, 0.2):
        numbers.reverse()
        forms = [f"Count backwards from {stop} to {start}.", f"Count down from {stop} to {start}."]
    spoken = [_WORDS[n] if spelled else str(n) for n in numbers]
    answer = ", ".join(spoken)
    return casual(rng, rng.choice(forms)), capitalised(answer) + "."


def _sum(rng: Random) -> tuple[str, str]:
    kind = rng.choice("++-*")
    a, b = rng.randint(0, 20), rng.randint(0, 20)
    if kind == "*":
        a, b = rng.randint(0, 10), rng.randint(0, 10)
    if kind == "-":
        a, b = max(a, b), min(a, b)
    result = {"+": a + b, "-": a - b, "*": a * b}[kind]
    word = {"+": "plus", "-": "minus", "*": "times"}[kind]
    sign = {"+": "+", "-": "-", "*": rng.choice("*×x")}[kind]  # noqa: RUF001
    shown = rng.choice((f"{a} {sign} {b}", f"{a}{sign}{b}", f"{a} {word} {b}"))
    question = rng.choice(
        ("What is {0}?", "Calculate {0}.", "How much is {0}?", "{0} = ?", "{0}", "What's {0}?")
    )
    answer = rng.choice(
        (f"{a} {word} {b} is {result}.", f"{a} {sign} {b} = {result}", f"The answer is {result}.")
    )
    return question.format(shown), answer


def _list(rng: Random) -> tuple[str, str]:
    name = rng.choice(list(LISTS))
    count = rng.choice((2, 3, 3, 3, 4, 5, 5, 6))
    items = rng.sample(LISTS[name].split(", "), count)
    word = _WORDS[count] if chance(rng, 0.6) else str(count)
    form = rng.choice(("List {0} {1}.", "Name {0} {1}.", "Give me {0} {1}.", "Can you name {0} {1}?",
                       "Tell me {0} {1}.", "Write a list of {0} {1}.", "Please list {0} {1}."))  # fmt: skip
    style = rng.random()
    if style < 0.4:
        answer = "\n".join(f"{n}. {capitalised(item)}" for n, item in enumerate(items, 1))
    elif style < 0.7:
        answer = "\n".join(f"- {capitalised(item)}" for item in items)
    else:
        answer = f"{capitalised(_WORDS[count])} {name} are {listed(items)}."
    if style < 0.7 and chance(rng, 0.4):
        answer = f"Here are {_WORDS[count]} {name}:\n\n{answer}"
    return casual(rng, form.format(word, name)), answer


def _phrase(rng: Random) -> tuple[str, str]:
    meaning, language, text = (part.strip() for part in rng.choice(lines(PHRASES)).split("|"))
    form = rng.choice(("Say {0} in {1}.", "How do you say {0} in {1}?", "What is {0} in {1}?",
    "Say “{0}” in {1}.",
                       "Translate {0} into {1}.", "How do people say {0} in {1}?"))  # fmt: skip
    answer = rng.choice(("In {1} it is “{2}”.", "{2}", "You say “{2}”.", "{2} — that is “{0}” in {1}.",
                         "“{2}” is how you say {0} in {1}."))  # fmt: skip
    return casual(rng, form.format(meaning, language)), answer.format(meaning, language, text)


def _joke(rng: Random) -> tuple[str, str]:
    return casual(rng, rng.choice(_JOKE_REQUESTS)), rng.choice(lines(JOKES)).replace("|", "\n")


def _sequence(rng: Random) -> tuple[str, str]:
    questions, answer = rng.choice(lines(SEQUENCES)).split("|")
    return casual(rng, rng.choice(questions.split(";"))), answer


def _echo(rng: Random) -> tuple[str, str]:
    said = [rng.choice((rng.choice(cast.KINDS), rng.choice(cast.OBJECTS), rng.choice(cast.TRAITS),
    nonsense(rng)))
             for _ in range(rng.randint(1, 4))]  # fmt: skip
    phrase = rng.choice((" ".join(said), capitalised(" ".join(said)) + "!", "this is a test", said[0]))
    quoted = rng.choice(("“{0}”", '"{0}"', "'{0}'", "{0}")).format(phrase)
    form = rng.choice(
        ("Say {0}", "Say {0}.", "Repeat after me: {0}", "Repeat {0}.", "Please say {0}.", "Echo {0}")
    )
    return form.format(quoted), capitalised(phrase)


def _emoji(rng: Random) -> tuple[str, str]:
    name, emoji = rng.choice(lines(_EMOJI)).split("|")
    form = rng.choice(("Show me an emoji of {0}.", "Send me an emoji for {0}.", "Which emoji is {0}?",
                       "Give me the emoji for {0}.", "Draw {0} as an emoji."))  # fmt: skip
    return casual(rng, form.format(name)), rng.choice(
        (emoji, f"Here it is: {emoji}", f"{emoji} — that is {name}.")
    )


_EMOJI = """
a wave|🌊
the moon|🌙
the sun|☀️
a star|⭐
a cat|🐱
a dog|🐶
a fish|🐟
a whale|🐳
an octopus|🐙
a ship|🚢
an anchor|⚓
a rocket|🚀
a robot|🤖
a heart|💙
a smile|😊
a tree|🌳
a flower|🌸
bread|🍞
rain|🌧️
snow|❄️
"""
