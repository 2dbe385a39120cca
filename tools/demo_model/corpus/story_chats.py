"""Conversations in which somebody asks for a story."""

from __future__ import annotations

from random import Random

from tools.demo_model.chat import Chat, assistant, user
from tools.demo_model.corpus import cast
from tools.demo_model.corpus.draw import article, casual, chance
from tools.demo_model.corpus.stories import Setting, setting, story
from tools.demo_model.corpus.topic_chats import maybe_system, thanks

_VERBS = ("Tell me {0}", "Write {0}", "Please tell me {0}", "Can you tell me {0}", "I would like {0}",
          "Write me {0}", "Give me {0}", "Could you write {0}", "Make up {0}",
          "Can you write {0}")  # fmt: skip
_SHORT = ("a short story", "a very short story", "a quick story", "a little story", "a tiny tale")
_NORMAL = ("a story", "a tale", "a bedtime story", "a nice story", "a story for children", "a fairy tale")
_LONG = ("a long story", "a longer story", "a long tale", "a detailed story", "a very long story")
_ANOTHER = ("Another one, please.", "Another story!", "One more.", "Tell me another story.", "Again!")
_OPENINGS = ("", "", "", "", "", "Of course. Here is a story.\n\n", "Gladly!\n\n", "With pleasure.\n\n")


def story_chat(rng: Random) -> Chat:
    """Return a conversation of one or two stories."""
    length = rng.choices(("short", "normal", "long"), (4, 4, 2))[0]
    request, where = _request(rng, length)
    messages = [*maybe_system(rng), user(casual(rng, request))]
    messages.append(assistant(rng.choice(_OPENINGS) + story(rng, where, length=length)))
    if chance(rng, 0.1):
        messages += [user(rng.choice(_ANOTHER)), assistant(story(rng, setting(rng), length="short"))]
    if chance(rng, 0.05):
        messages += thanks(rng)
    return Chat(messages)


def _request(rng: Random, length: str) -> tuple[str, Setting]:
    form = rng.choice(_VERBS)
    asked = form.format(rng.choice({"short": _SHORT, "normal": _NORMAL, "long": _LONG}[length]))
    end = "?" if form.startswith("C") else "."
    kind, thing, name = rng.choice(cast.KINDS), rng.choice(cast.OBJECTS), rng.choice(cast.HEROES)
    spot = rng.choice(list(cast.PLACE_NAMES))
    place = cast.PLACE_NAMES[spot]
    roll = rng.random()
    if roll < 0.15:
        return asked + end, setting(rng)
    if roll < 0.35:
        return f"{asked} about {article(kind)}{end}", setting(rng, kind)
    if roll < 0.60:
        return f"{asked} about {article(kind)} and {article(spot)}{end}", setting(rng, kind, place)
    if roll < 0.75:
        return f"{asked} about {article(kind)} and {article(thing)}{end}", setting(rng, kind, thing=thing)
    if roll < 0.85:
        return f"{asked} about {article(kind)} who lives {place}{end}", setting(rng, kind, place)
    where = setting(rng, kind, name=name)
    if roll < 0.92:
        return f"{asked} about {article(kind)} named {name}{end}", where
    return f"{asked} about {name} the {kind}{end}", where
