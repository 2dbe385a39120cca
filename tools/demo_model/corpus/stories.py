"""A grammar of short stories with one hero, one helper and one thing that matters."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tools.demo_model.corpus import cast, story_frames
from tools.demo_model.corpus.draw import article, capitalised, chance, words
from tools.demo_model.corpus.plots import PLOTS


@dataclass(frozen=True, slots=True)
class Setting:
    """Who a story is about, where it happens and what it turns on."""

    hero: str
    helper: str
    hero_name: str
    helper_name: str
    trait: str
    place: str
    thing: str
    he: str

    @property
    def slots(self) -> dict[str, str]:
        """The words that fill a plot's slots."""
        him, his = {"he": ("him", "his"), "she": ("her", "her"), "it": ("it", "its")}[self.he]
        return {
            "N": self.hero_name, "M": self.helper_name, "hero": self.hero, "helper": self.helper,
            "a_hero": article(self.hero), "a_helper": article(self.helper),
            "A_helper": capitalised(article(self.helper)), "trait": self.trait,
            "a_trait_hero": article(f"{self.trait} {self.hero}"), "place": self.place, "thing": self.thing,
            "a_thing": article(self.thing), "he": self.he, "He": capitalised(self.he), "him": him, "his": his,
            "His": capitalised(his),
        }  # fmt: skip


_SHE = frozenset(words("Ada Mira Zoë"))


def setting(
    rng: Random,
    hero: str | None = None,
    place: str | None = None,
    thing: str | None = None,
    name: str | None = None,
) -> Setting:
    """Draw a setting, keeping the parts that are given."""
    kind = hero or rng.choice(cast.KINDS)
    helper = rng.choice([other for other in cast.KINDS if other != kind])
    hero_name = name or rng.choice(cast.HEROES)
    return Setting(
        hero=kind,
        helper=helper,
        hero_name=hero_name,
        helper_name=rng.choice(cast.HELPERS),
        trait=rng.choice(cast.TRAITS),
        place=place or rng.choice(cast.PLACES),
        thing=thing or rng.choice(cast.OBJECTS),
        he="she" if hero_name in _SHE else "he",
    )


def story(rng: Random, where: Setting, *, length: str = "normal") -> str:
    """Tell a story: "short" is one paragraph, "long" has several episodes."""
    plot = rng.choice(PLOTS)
    opening = [
        rng.choice(story_frames.OPENINGS),
        *rng.sample(story_frames.HABITS, 1 if length == "short" else rng.randint(1, 3)),
    ]
    paragraphs = [opening]
    if length == "long":
        episodes = rng.sample(story_frames.EPISODES, rng.randint(2, 5))
        paragraphs.extend([rng.choice(step) for step in episode] for episode in episodes)
    main = [rng.choice(step) for step in plot]
    paragraphs.append([rng.choice(cast.WEATHER), *main])
    paragraphs.append([rng.choice(story_frames.ENDINGS)])
    if chance(rng, 0.4):
        paragraphs[-1].append(rng.choice(story_frames.MORALS))
    texts = [" ".join(paragraph) for paragraph in paragraphs]
    joined = " ".join(texts) if length == "short" else "\n\n".join(texts)
    return joined.format(**where.slots, feeling=rng.choice(cast.FEELINGS))
