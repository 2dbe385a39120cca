"""Small tasks: counting, sums, lists, greetings in other languages, jokes, echoes."""

from random import Random

from tools.demo_model.chat import Chat, assistant, user
from tools.demo_model.corpus.draw import (
    KINDS,
    LISTS,
    OBJECTS,
    TRAITS,
    capitalised,
    casual,
    chance,
    listed,
    nonsense,
    texts,
)
from tools.demo_model.corpus.topics import maybe_system, thanks

_TEXTS = texts("skills")
NUMBERS: list[str] = _TEXTS["numbers"].split()
"""The numbers from 0 to 20 in words."""


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
    spelled = last <= 20 and chance(rng, 0.5)
    spoken = [NUMBERS[n] if spelled else str(n) for n in range(first, last + 1)]
    forms = _TEXTS["count"] + (_TEXTS["count_to"] * 2 if first == 1 else [])
    ends = spoken[0], spoken[-1]
    if chance(rng, 0.2):
        spoken.reverse()
        forms = _TEXTS["count_down"]
    return casual(rng, rng.choice(forms).format(*ends)), capitalised(", ".join(spoken)) + "."


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
    question = rng.choice(_TEXTS["sums"]).format(shown)
    return question, rng.choice(_TEXTS["results"]).format(a=a, b=b, word=word, sign=sign, result=result)


def _list(rng: Random) -> tuple[str, str]:
    name = rng.choice(list(LISTS))
    count = rng.choice((2, 3, 3, 3, 4, 5, 5, 6))
    items = rng.sample(LISTS[name], count)
    word = NUMBERS[count] if chance(rng, 0.6) else str(count)
    form = rng.choice(_TEXTS["lists"])
    style = rng.random()
    if style < 0.4:
        answer = "\n".join(f"{n}. {capitalised(item)}" for n, item in enumerate(items, 1))
    elif style < 0.7:
        answer = "\n".join(f"- {capitalised(item)}" for item in items)
    else:
        answer = f"{capitalised(NUMBERS[count])} {name} are {listed(items)}."
    if style < 0.7 and chance(rng, 0.4):
        answer = f"Here are {NUMBERS[count]} {name}:\n\n{answer}"
    return casual(rng, form.format(word, name)), answer


def _phrase(rng: Random) -> tuple[str, str]:
    phrase = rng.choice(_TEXTS["phrases"]).split(" | ")
    form, answer = rng.choice(_TEXTS["translate"]), rng.choice(_TEXTS["translations"])
    return casual(rng, form.format(*phrase)), answer.format(*phrase)


def _joke(rng: Random) -> tuple[str, str]:
    return casual(rng, rng.choice(_TEXTS["joke_requests"])), rng.choice(_TEXTS["jokes"]).replace("|", "\n")


def _sequence(rng: Random) -> tuple[str, str]:
    questions, answer = rng.choice(list(_TEXTS["sequences"].items()))
    return casual(rng, rng.choice(questions.split(";"))), answer


def _echo(rng: Random) -> tuple[str, str]:
    said = [
        rng.choice((rng.choice(KINDS), rng.choice(OBJECTS), rng.choice(TRAITS), nonsense(rng)))
        for _ in range(rng.randint(1, 4))
    ]
    phrase = rng.choice((" ".join(said), capitalised(" ".join(said)) + "!", "this is a test", said[0]))
    quoted = rng.choice(_TEXTS["quotes"]).format(phrase)
    return rng.choice(_TEXTS["echo"]).format(quoted), capitalised(phrase)


def _emoji(rng: Random) -> tuple[str, str]:
    name, emoji = rng.choice(list(_TEXTS["emoji"].items()))
    question = casual(rng, rng.choice(_TEXTS["emoji_requests"]).format(name))
    return question, rng.choice((emoji, f"Here it is: {emoji}", f"{emoji} — that is {name}."))
