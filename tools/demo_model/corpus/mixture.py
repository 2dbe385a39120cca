"""How often each genre appears."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tools.demo_model.chat import Chat, render
from tools.demo_model.corpus.json_answers import json_chat
from tools.demo_model.corpus.poems import poem
from tools.demo_model.corpus.prose import essay, plain_story
from tools.demo_model.corpus.scenes import scene
from tools.demo_model.corpus.skills import skill
from tools.demo_model.corpus.small_talk import known_answer, small_talk
from tools.demo_model.corpus.story_chats import story_chat
from tools.demo_model.corpus.tool_chats import tool_chat
from tools.demo_model.corpus.topic_chats import topic_chat
from tools.demo_model.corpus.unknowns import long_prompt, unknown

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


def document(rng: Random) -> str:
    """Return one document of a random genre."""
    genre = rng.choices(list(GENRES), list(GENRES.values()))[0]
    drawn = genre(rng)
    return render(drawn) if isinstance(drawn, Chat) else drawn
