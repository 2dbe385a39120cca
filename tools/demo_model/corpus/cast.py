"""The people, animals, places and things that stories are about."""

from __future__ import annotations

from tools.demo_model.corpus.draw import words

KINDS = words("""
fox bear owl cat dog mouse rabbit whale gull crab turtle otter wolf horse frog penguin robot sailor baker
gardener painter teacher child captain keeper dragon farmer pirate astronaut knight
""")
HEROES = words("Ada Finn Mira Tom Zoë Oskar")
HELPERS = words("Clara Hugo Nora Emil Renée Leo")
"""Helpers' names are never heroes' names, so that a reader can tell the two apart at once."""
NAMES = [*HEROES, *HELPERS, *words("Maya Ravi Yuki José Amélie Sören Leila Sam Ella Otto Ivy Max")]
TRAITS = words("""
little old young curious quiet brave clever shy patient cheerful lonely kind tired small gentle sleepy proud
""")
FEELINGS = words("happy glad proud calm thankful content")

PLACE_NAMES = {
    "lighthouse": "in a lighthouse", "harbour": "in a small harbour", "forest": "in a forest",
    "island": "on an island", "village": "in a quiet village", "farm": "on a farm",
    "mountain": "on a mountain", "river": "beside a river", "city": "in a large city", "lake": "near a lake",
    "garden": "in a garden", "castle": "in a castle", "boat": "on a boat", "library": "in a library",
    "beach": "near a long beach", "sea": "by the sea",
}  # fmt: skip
PLACES = tuple(PLACE_NAMES.values())
OBJECTS = words("""
lantern map key bell letter ring clock kite book shell compass drum coin feather blanket telescope
""")
WEATHER = (
    "One morning the fog lay thick over the land.", "One evening a strong wind came from the sea.",
    "One day the rain would not stop.", "One cold night the first snow fell.",
    "One warm day in May the sky was clear.",
    "One autumn day the leaves flew through the air.", "One night the moon was round and bright.",
    "One day in summer it was so hot that even the birds were silent.",
)  # fmt: skip
