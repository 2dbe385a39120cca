"""Descriptions, letters and diaries: prose with no plot, for completions that start anywhere."""

from __future__ import annotations

from random import Random

from tools.demo_model.corpus import cast
from tools.demo_model.corpus.draw import article, chance, lines, words
from tools.demo_model.corpus.facts_people import CAPITALS, REASONS

_OPENINGS = """
It was a dark and stormy night.
It was a quiet morning, and nobody was awake.
It was late in the afternoon when the rain stopped.
The harbour was quiet.
The tide was low, and the sand shone like glass.
The sea was calm that day.
The sun was rising over the water.
The old house stood at the end of the road.
In the beginning there was only the sound of the waves.
When I was young, we lived beside the sea.
Yesterday I walked along the shore.
The wind had turned in the night.
On the first day of spring the market opened again.
The train was late, and the platform was empty.
There is a street in our town that leads down to the water.
The last light of the day lay on the roofs.
In the morning the fishing boats came home.
I remember the summer when the lighthouse was painted.
We arrived in the evening, tired and happy.
The old man sat on the bench and looked at the sea.
"""
_SIGHTS = """
The boats moved gently on their ropes.
A gull sat on a post and cleaned its feathers.
Somewhere a door opened and closed again.
The smell of bread came from the bakery.
Two children threw stones into the water and counted the rings.
An old woman was mending a net and humming a tune.
The lamp in the lighthouse turned slowly.
A dog ran along the wall and barked at the waves.
Far out, a ship passed without a sound.
The clouds were low and grey, but in the west there was a strip of gold.
The rain had washed the streets, and every stone was shining.
A cat was asleep on a pile of ropes.
On the quay stood boxes of fish and ice.
The bell of the church rang six times.
The wind smelled of salt and of seaweed.
Nobody spoke, and nobody needed to.
The water rose, a hand at a time, and covered the stones.
Behind the hills the first stars came out.
A woman at a window waved, and a man in a boat waved back.
The trees bent toward the land, as they had done for a hundred years.
Small crabs hurried across the wet sand.
The baker put a tray of warm rolls into the window.
The postman stopped, looked at the sky and went on.
A lantern was burning at the end of the pier.
Someone had left a red umbrella on the bench.
The café was still open, and its windows were warm and yellow.
"""
_ENDINGS = """
It was time to go home.
So the day came to its end.
And then it was night.
I have never forgotten it.
We stayed until it was dark.
Nothing else happened, and that was the best of it.
Tomorrow the tide will come again.
"""
_LETTER_NEWS = """
The weather has been kind to us this week.
We have painted the boat, and now it is blue.
The garden is full of beans, and I do not know who will eat them all.
The cat has had three kittens in the drawer with the socks.
I have finished the book that you sent me, and I liked it very much.
There was a storm on Tuesday, but the roof held.
The new lamp in the lighthouse can be seen from the hill.
I walk along the shore every morning before work.
Please tell me how you are and what you are reading.
I hope that you will visit us in the spring.
The bread did not rise today, but we ate it all the same.
"""
_FUTURE = """
The future of AI is hard to know, but good tools should be kind, honest and useful.
The future of AI is open, and people will decide together what it should do.
The president of a country is chosen by its people, and I do not know who it is today.
The meaning of a word often depends on the words around it.
The best time to plant a tree is in autumn, when the soil is still warm.
The most important thing is to begin.
The quick fox jumps over the quiet dog.
My favourite place is the end of the pier, where you can hear only the water.
Today is a good day to learn something new.
Large language models are programs that predict the next piece of text.
San Francisco is a city on a bay, and it is known for its fog and its bridge.
Deep learning is a way to let a program learn from many examples.
To be happy, it often helps to sleep well and to be kind.
"""


def scene(rng: Random) -> str:
    """Return a description, a letter, an introduction or a run of plain statements."""
    return rng.choice((_view, _view, _letter, _person, _statements))(rng)


def _view(rng: Random) -> str:
    count = rng.choice((1, 1, 2, 3))
    paragraphs = [" ".join(rng.sample(lines(_SIGHTS), rng.randint(3, 6))) for _ in range(count)]
    paragraphs[0] = f"{rng.choice(lines(_OPENINGS))} {paragraphs[0]}"
    paragraphs[-1] += f" {rng.choice(lines(_ENDINGS))}"
    return "\n\n".join(paragraphs)


def _letter(rng: Random) -> str:
    sender, receiver = rng.sample(cast.NAMES, 2)
    news = " ".join(rng.sample(lines(_LETTER_NEWS), rng.randint(3, 6)))
    return f"Dear {receiver},\n\nthank you for your letter. {news}\n\nWith love,\n{sender}"


def _person(rng: Random) -> str:
    name, friend = rng.sample(cast.NAMES, 2)
    job = rng.choice(words("baker sailor teacher gardener painter doctor musician shepherd clockmaker"))
    start = rng.choice(("Hello, my name is {0}.", "My name is {0}.", "I am {0}.", "Hi, I am {0}.")).format(
        name
    )
    parts = [
        start, f"I am {article(job)}, and I live {rng.choice(cast.PLACES)}.",
        *rng.sample((
            f"My best friend is {friend}, and we meet every Sunday.", "I like tea, long walks and old maps.",
            f"On my table there is always {article(rng.choice(cast.OBJECTS))}.", "In winter I read a lot.",
            "I get up early, because the mornings are quiet.", "I have never been on a plane.",
            f"Someday I would like to see {rng.choice(list(CAPITALS))}.", "I am not rich, but I am content.",
        ), rng.randint(2, 5)),
    ]  # fmt: skip
    return " ".join(parts)


def _statements(rng: Random) -> str:
    pool = [f"The capital of {country} is {city}." for country, city in CAPITALS.items()]
    pool = rng.sample(pool, 4) + rng.sample([line.split("|")[1] for line in lines(REASONS)], 3)
    pool += rng.sample(lines(_FUTURE), 4)
    rng.shuffle(pool)
    return (" " if chance(rng, 0.7) else "\n").join(pool[: rng.randint(2, 8)])
