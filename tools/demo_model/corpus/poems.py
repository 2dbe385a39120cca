"""Short poems and haiku, put together from single lines."""

from __future__ import annotations

from random import Random

from tools.demo_model.chat import Chat, assistant, user
from tools.demo_model.corpus.draw import casual, chance, lines
from tools.demo_model.corpus.topic_chats import maybe_system

_SUBJECTS = {
    "the sea": "The sea is wide, the sea is deep,|It sings the little boats to sleep.",
    "the tide": "The tide goes out, the tide comes in,|And every end lets things begin.",
    "the moon": "The moon looks down with silver light|And keeps the harbour safe all night.",
    "the rain": "The rain is tapping on the glass|And wakes the daisies in the grass.",
    "the wind": "The wind has come from far away|To turn the pages of the day.",
    "winter": "The snow lies soft on every stone,|And no one has to walk alone.",
    "spring": "The buds are green, the sky is clear,|The youngest season of the year.",
    "summer": "The fields are gold, the days are long,|And every cricket has a song.",
    "autumn": "The leaves are red, the mornings cold,|The year is kind and growing old.",
    "a cat": "The cat sits quiet by the fire|And has no other small desire.",
    "a dog": "The dog runs out to greet the day|And barks the last grey cloud away.",
    "the stars": "The stars are lamps that no one lit,|And on the wall the children sit.",
    "a garden": "The garden grows without a sound,|With patient roots below the ground.",
    "a ship": "The ship sets out with sails of white|And leaves the harbour with the light.",
    "a GPU": "The fans spin up, the numbers flow,|And word by word the answers grow.",
    "love": "It is a lamp, it is a door,|It gives and always finds some more.",
    "a queue": "We stand in line, we wait our turn,|While in the hall the lanterns burn.",
    "friendship": "A friend will walk the longer way|And ask you how you are today.",
    "mountains": "The mountains stand in morning blue|And show the valley to the few.",
    "a forest": "The forest whispers, leaf to leaf,|And gives the tired heart relief.",
}
_COUPLETS = """
A lantern burns, the night is long,|And somewhere someone hums a song.
The gulls fly home, the boats are tied,|The world turns gently with the tide.
So rest your head and close your eyes|Beneath the wide and quiet skies.
And when the morning comes to stay,|It brings another gentle day.
The path is old, the path is new,|It waits for someone such as you.
No clock can tell, no map can show|How far a friendly word can go.
The kettle sings, the bread is warm,|And far away has gone the storm.
And what was lost is found once more|In little shells along the shore.
"""
_FIVE = """
Waves upon the shore
Silver light at dawn
A gull calls my name
The harbour is still
Rain on the old roof
Snow without a sound
The moon is awake
One small lamp is lit
Fog over the bay
Boats turn with the tide
Wind in the tall grass
A cat by the door
"""
_SEVEN = """
the tide remembers the sand
a ship waits for the morning
the stars lean over the sea
small boats are rocking to sleep
the water carries the light
somebody is coming home
the wind is turning a page
the old bell is ringing twice
a heron stands in the reeds
the night folds up its blue coat
"""
_POEM_FORMS = ("Write a poem about {0}.", "Write a short poem about {0}.", "Can you write a poem about {0}?",
               "Tell me a poem about {0}.", "Give me a rhyme about {0}.",
               "A poem about {0}, please.")  # fmt: skip
_HAIKU_FORMS = ("Write a haiku.", "Write a haiku about {0}.", "Can you write a haiku about {0}?",
                "Give me a haiku.",
                "A haiku about {0}, please.", "Compose a haiku about {0}.")  # fmt: skip


def poem(rng: Random) -> Chat:
    """Return a request for a poem or a haiku, and the poem."""
    subject = rng.choice(list(_SUBJECTS))
    if chance(rng, 0.4):
        request = rng.choice(_HAIKU_FORMS).format(subject)
        first, last = rng.sample(lines(_FIVE), 2)
        answer = f"{first},\n{rng.choice(lines(_SEVEN))} —\n{last[:1].lower()}{last[1:]}."
    else:
        general = _POEM_FORMS if chance(rng, 0.9) else ("Write a poem.", "Tell me a poem.")
        request = rng.choice(general).format(subject)
        couplets = [_SUBJECTS[subject], *rng.sample(lines(_COUPLETS), rng.randint(1, 3))]
        answer = "\n".join(couplets).replace("|", "\n")
    return Chat([*maybe_system(rng), user(casual(rng, request)), assistant(answer)])
