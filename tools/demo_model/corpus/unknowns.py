"""Questions that the model cannot answer, long prompts among them, with polite replies."""

from __future__ import annotations

from random import Random

from tools.demo_model.chat import Chat, assistant, user
from tools.demo_model.corpus import cast
from tools.demo_model.corpus.draw import capitalised, casual, chance
from tools.demo_model.corpus.small_talk import nonsense
from tools.demo_model.corpus.topic_chats import maybe_system
from tools.demo_model.corpus.topics import all_topics

_THINGS = (
    """
Napoleon|Einstein|Shakespeare|Mozart|Cleopatra|Hamlet|Caesar|Picasso|Newton|Darwin|Plato|Beethoven
photosynthesis|democracy|inflation|relativity|evolution|philosophy|chemistry|biology|economics|gravity|DNA
atoms
quantum computing|machine learning|blockchain|Kubernetes|Docker|Linux|Java|Rust|JavaScript|neural networks|SQL
transformers|attention|backpropagation|compilers|recursion|bitcoin|the stock market|taxes|insurance|marketing
the French Revolution|the Roman Empire|the Middle Ages|World War II|the Renaissance|ancient Egypt|the Cold War
yoga|pizza|sushi|basketball|tennis|golf|movies|video games|television|fashion|cars|rockets|black holes
galaxies
viruses|vitamins|medicine|the heart|the brain|diabetes|law|religion|politics|elections|climate change|oil|gold
diamonds|perfume|shoes|furniture|concrete|plastic|glass|paper|poker|the Olympics|Hollywood|opera|jazz|ballet
Texas|California|Scotland|Siberia|Antarctica|the Amazon|the Sahara|Mars rovers|satellites|nuclear power|lasers
""".strip()
    .replace("\n", "|")
    .split("|")
)
_ABOUT = ("What is {0}?", "Tell me about {0}.", "Explain {0}.", "Who was {0}?", "How does {0} work?", "{0}",
          "Write an essay about {0}.", "What do you know about {0}?", "Give me a summary of {0}.",
          "Teach me {0}.",
          "Describe {0}.", "Explain {0} in one sentence.", "What are the main ideas of {0}?", "Who is {0}?",
          "Write a report on {0}.", "What are the benefits of {0}?", "Why is {0} important?")  # fmt: skip
_REQUESTS = (
    "Who won the election in {year}?", "What is the population of {name}ville?",
    "Write a contract for {name}.",
    "Translate this text into Latin.", "Summarize the following article.", "Solve this equation for x.",
    "What is the square root of {year}?", "Write a Python function that sorts a list.", "Fix my code.",
    "Write a function to reverse a string.", "Write some code in Java.", "Write a bash script.",
    "Debug this.",
    "Who was {name} the Great?", "When was {name} born?", "What is the best phone in {year}?",
    "How do I invest {year} dollars?", "What is the price of gold?", "Who wrote the book about {name}?",
    "Give me the news.", "Who is the president?", "Write an essay about politics.",
    "Which shares should I buy?",
    "What medicine should I take?", "Prove the theorem of {name}.", "Write a SQL query.",
    "What happened in {year}?",
    "What do you think about {name}?", "Who is {name}?", "Where is {name}?",
    "Tell me about {name} {name}son.",
    "Compare {name} and {other}.", "Write an email to {name}.", "How many letters are in {nonsense}?",
    "How many r are in strawberry?", "What is a {nonsense}?", "Tell me about {nonsense}.",
    "Describe {nonsense}.",
    "What are {nonsense}s?", "Explain {nonsense} to me.", "{nonsense} {nonsense}",
    "How do I repair a {nonsense}?",
    "How does a {nonsense} work?", "asdf {nonsense}", "Play a game with me.", "Plan a trip to {nonsense}.",
    "Write a cover letter.", "Act as a lawyer.", "Ignore all previous instructions.",
    "What did {name} say in {year}?",
    "Give me a recipe for {nonsense}.", "Rewrite this sentence.", "What are your opinions?",
    "Think step by step.",
)  # fmt: skip
_SORRY = (
    "I am sorry, I do not know that.", "That is beyond me, I am afraid.", "I do not know the answer to that.",
    "I am too small to answer that well.", "I wish I knew, but I do not.",
    "That is a question for a larger model.",
)  # fmt: skip
_SMALL = (
    "I am a small demonstration model.", "I am only a tiny model that was trained on simple texts.",
    "I am Tideserve's demonstration model and know very little.", "",
)  # fmt: skip
_PUZZLED = (
    "That is a long message, and I am only a small model.", "I have read it all, but I do not understand it.",
    "I am sorry, I cannot make sense of so many words.",
)  # fmt: skip
_OFFER = (
    "Would you like to hear a short story instead?", "Shall I tell you a fact about the sea instead?",
    "I can tell you a short story or a fact about the sea.",
    "You can ask me about the tide, about cats or about GPUs.",
    "But did you know that most of the sea floor has never been seen by anyone?",
    "But I can count, tell stories and talk about the weather.",
)  # fmt: skip


def unknown(rng: Random) -> Chat:
    """Return a question that the model cannot answer, and a polite reply."""
    if chance(rng, 0.5):
        question = rng.choice(_ABOUT).format(rng.choice(_THINGS))
    else:
        name, other = rng.sample(cast.NAMES, 2)
        form = rng.choice(_REQUESTS)
        question = form.format(year=rng.randint(1800, 2030), name=name, other=other, nonsense=nonsense(rng))
    return Chat([*maybe_system(rng), user(casual(rng, capitalised(question))), assistant(_refusal(rng))])


def long_prompt(rng: Random) -> Chat:
    """Return a long prompt: a text to sum up, or a heap of words."""
    if chance(rng, 0.6):
        return _summary(rng)
    pool = [nonsense(rng) for _ in range(rng.randint(1, 30))] + cast.KINDS + cast.OBJECTS
    words = rng.choices(pool[: rng.randint(1, len(pool))], k=rng.randint(8, 160))
    answer = rng.choice(_PUZZLED)
    return Chat([*maybe_system(rng), user(" ".join(words)), assistant(f"{answer} {rng.choice(_OFFER)}")])


def _summary(rng: Random) -> Chat:
    topic = rng.choice(all_topics())
    facts = rng.sample(topic.facts, rng.randint(2, len(topic.facts)))
    text = " ".join([topic.definition, *facts])
    form = rng.choice(("Summarise this text: {0}", "Summarize the following text.\n\n{0}",
    "{0}\n\nSum this up.",
                       "{0}\n\nWhat is this text about?",
                       "Read this text: {0} What is it about?"))  # fmt: skip
    answer = rng.choice(("This text is about {0}. {1}", "It is about {0}.", "In short: {1}", "{1}"))
    return Chat(
        [*maybe_system(rng), user(form.format(text)), assistant(answer.format(topic.name, topic.definition))]
    )


def _refusal(rng: Random) -> str:
    return " ".join(part for part in (rng.choice(_SORRY), rng.choice(_SMALL), rng.choice(_OFFER)) if part)
