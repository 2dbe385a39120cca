"""The corpus: an endless, seeded stream of documents from our own generator."""

from collections.abc import Callable, Iterator
from random import Random

from tools.demo_model.chat import Chat, render
from tools.demo_model.corpus.json_answers import json_chat
from tools.demo_model.corpus.prose import essay, poem, scene
from tools.demo_model.corpus.skills import skill
from tools.demo_model.corpus.small_talk import known_answer, long_prompt, small_talk, unknown
from tools.demo_model.corpus.stories import plain_story, story_chat
from tools.demo_model.corpus.tool_chats import tool_chat
from tools.demo_model.corpus.topics import topic_chat

GENRES: dict[Callable[[Random], Chat | str], float] = {
    topic_chat: 26,
    story_chat: 8,
    small_talk: 6,
    known_answer: 5,
    unknown: 7,
    skill: 10,
    poem: 2,
    plain_story: 6,
    essay: 6,
    scene: 4,
    long_prompt: 1.5,
    tool_chat: 10,
    json_chat: 11,
}
"""Genres and their weights, as shares of documents."""


def documents(seed: int) -> Iterator[str]:
    """Yield documents for ever; the same seed always yields the same documents."""
    rng = Random(seed)
    while True:
        drawn = rng.choices(list(GENRES), list(GENRES.values()))[0](rng)
        yield render(drawn) if isinstance(drawn, Chat) else drawn
