"""Conversations with tools: calls, parallel calls, and questions that need no tool."""

from __future__ import annotations

import json
from random import Random

from tools.demo_model.chat import Chat, Message, Tool, assistant, user
from tools.demo_model.corpus.draw import chance, listed
from tools.demo_model.corpus.small_talk import known_answer, small_talk
from tools.demo_model.corpus.tool_kit import Scene, city
from tools.demo_model.corpus.tool_scenes import SCENES, clock, weather
from tools.demo_model.corpus.topic_chats import maybe_system, topic_chat
from tools.demo_model.corpus.unknowns import unknown


def tool_chat(rng: Random) -> Chat:
    """Return a conversation whose system turn offers one to four tools."""
    roll = rng.random()
    if roll < 0.18:
        plain = rng.choice((topic_chat, small_talk, known_answer, unknown))(rng)
        return Chat(plain.messages, _offer(rng, []))
    if roll < 0.26:
        return _parallel(rng)
    first = rng.choice(SCENES)(rng)
    messages = [*maybe_system(rng), user(first.question), _calls([first])]
    if chance(rng, 0.75):
        messages += _closing(first)
    return Chat(messages, _offer(rng, [first.tool]))


def _offer(rng: Random, needed: list[Tool]) -> list[Tool]:
    taken = {tool["function"]["name"] for tool in needed}
    tools = list(needed)
    for _ in range(rng.choices((0, 1, 2, 3), (5, 3, 2, 1))[0] + (not needed)):
        other = rng.choice(SCENES)(rng).tool
        if other["function"]["name"] not in taken:
            taken.add(other["function"]["name"])
            tools.append(other)
    rng.shuffle(tools)
    return tools


def _calls(scenes: list[Scene]) -> Message:
    calls = [
        {
            "type": "function",
            "function": {"name": scene.tool["function"]["name"], "arguments": scene.arguments},
        }
        for scene in scenes
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _closing(scene: Scene) -> list[Message]:
    result = json.dumps(scene.result, ensure_ascii=False)
    return [{"role": "tool", "content": result}, assistant(scene.answer)]


def _parallel(rng: Random) -> Chat:
    kind = rng.choice((weather, clock))
    first = kind(rng)
    key = next(iter(first.arguments))
    places = [str(first.arguments[key]), *(city(rng) for _ in range(rng.choice((1, 1, 2))))]
    scenes = [Scene(first.tool, "", {key: place}, {}, "") for place in places]
    asked = "the weather" if kind is weather else "the time"
    form = rng.choice(
        ("What is {0} in {1}?", "Tell me {0} in {1}.", "Compare {0} in {1}.", "Get {0} for {1}.")
    )
    return Chat([user(form.format(asked, listed(places))), _calls(scenes)], _offer(rng, [first.tool]))
