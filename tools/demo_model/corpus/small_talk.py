"""Greetings, questions about the model itself, and single questions with a known answer."""

from __future__ import annotations

from random import Random

from tools.demo_model.chat import Chat, Message, assistant, user
from tools.demo_model.corpus import cast
from tools.demo_model.corpus.draw import casual, chance, lines, words
from tools.demo_model.corpus.facts_people import CAPITALS, REASONS
from tools.demo_model.corpus.topic_chats import maybe_system, thanks

_HELLO = ("Hello!", "Hi!", "Hi there!", "Hey!", "Good morning!", "Good evening!", "Hello there.", "hello",
          "hi",
          "Hello, how are you?", "Hi, how are you?", "Say hello.", "Say hi!", "Hello world",
          "Greetings!")  # fmt: skip
_HELLO_BACK = (
    "Hello! How can I help you today?", "Hi there! What would you like to talk about?",
    "Hello! It is nice to meet you. Ask me about the sea, or ask me for a story.",
    "Hello! 👋 I am a small model, and I am ready to chat.", "Good to see you! What is on your mind?",
    "Hi! I am doing well, thank you. How are you?", "Hello! 😊 Shall I tell you a story?",
)  # fmt: skip
_WHO = ("Who are you?", "What are you?", "What is your name?", "Tell me about yourself.",
        "Introduce yourself.",
        "Are you an AI?", "Which model are you?", "What model is this?", "Who made you?", "Are you ChatGPT?",
        "Say something about yourself.", "What can you do?", "How large are you?",
        "How do you work?")  # fmt: skip
_I_AM = (
    "I am the demonstration model of Tideserve.", "I am a tiny language model that comes with Tideserve.",
    "I am a small model with about two million weights.", "My name is Tideserve Tiny.",
)  # fmt: skip
_ABOUT_ME = (
    "I was trained on simple sentences, so I know very little.",
    "I can chat a bit, tell short stories and count.",
    "I can speak about the sea, animals, weather and computers.",
    "A larger model can take my place at any time.",
    "I often make mistakes, so please do not trust me with anything important.",
    "I run on an ordinary processor, without a GPU.", "I am here so that you can see tokens stream.",
    "I learned to write in less than an hour.",
)  # fmt: skip
_HOW = ("How are you?", "How are you doing?", "How is it going?", "What's up?", "How do you feel today?")
_FINE = ("I am well, thank you. How can I help you?", "All is calm here, thank you! And how are you?",
         "I am fine — the queue is short and the sea is quiet.",
         "Very well, thanks for asking! 😊")  # fmt: skip
_BYE = ("Goodbye!", "Bye!", "See you later.", "Good night!", "I have to go now.", "bye bye")
_BYE_BACK = ("Goodbye! Have a good day.", "See you soon! 👋", "Goodbye, and thank you for the chat.",
             "Good night! Sleep well. 🌙", "Until next time!")  # fmt: skip
_FEELING = (
    (
        "I am sad.",
        "I am sorry to hear that. A short walk and a kind word often help. Shall I tell you a story?",
    ),
    ("I am happy!", "That is wonderful! 😊 What made you happy today?"),
    ("I am bored.", "Then let me tell you a story, or ask me to count the ships in the harbour."),
    ("I am tired.", "Then it is time to rest. Close your eyes and listen to the waves for a while."),
    ("I love you.", "That is very kind. I am only a small program, but I wish you well. 💙"),
    ("This is a test.", "The test has worked: I can read you, and you can read me."),
    ("Test", "It works! I can read you clearly."),
    ("ping", "pong"),
    ("Are you there?", "Yes, I am here. How can I help you?"),
    ("Yes", "Good! What would you like to hear about?"),
    ("No", "That is fine. Tell me what you would like instead."),
    ("You are wrong.", "I am sorry. I am a small model, and I make mistakes."),
    ("Can you repeat that?", "I am sorry, I do not remember it well. Please ask me again."),
    ("I do not understand.", "I am sorry that I was not clear. Please ask me again in other words."),
    ("What should I do today?", "You could take a walk, read a few pages or call an old friend."),
    ("Give me some advice.", "Sleep well, drink water, and be kind to the people around you."),
    ("Say something nice.", "You have asked a good question, and I am glad that you are here. 🌊"),
    ("Inspire me.", "Even the largest wave began as a small breath of wind."),
    ("Surprise me.", "An octopus has three hearts, and all of them would like to meet you. 🐙"),
)
_SYLLABLES = words("ba ko ri zu me la tor vin quel sha dro pim na fe gor lu tas wi ox bri ne jun")


def nonsense(rng: Random) -> str:
    """Return a made-up word."""
    return "".join(rng.choice(_SYLLABLES) for _ in range(rng.randint(2, 3)))


def small_talk(rng: Random) -> Chat:
    """Return a short polite conversation."""
    parts = [_pair(rng)]
    while chance(rng, 0.2):
        parts.append(_pair(rng))
    turns: list[Message] = maybe_system(rng)
    for question, answer in parts:
        turns += [user(casual(rng, question)), assistant(answer)]
    return Chat(turns + (thanks(rng) if chance(rng, 0.05) else []))


def _pair(rng: Random) -> tuple[str, str]:
    kind = rng.random()
    if kind < 0.25:
        return rng.choice(_HELLO), rng.choice(_HELLO_BACK)
    if kind < 0.55:
        about = " ".join(rng.sample(_ABOUT_ME, rng.randint(1, 3)))
        return rng.choice(_WHO), f"{rng.choice(_I_AM)} {about}"
    if kind < 0.65:
        return rng.choice(_HOW), rng.choice(_FINE)
    if kind < 0.75:
        return rng.choice(_BYE), rng.choice(_BYE_BACK)
    if kind < 0.8:
        name = rng.choice(cast.NAMES)
        return f"My name is {name}.", f"Nice to meet you, {name}! How can I help you?"
    return rng.choice(_FEELING)


def known_answer(rng: Random) -> Chat:
    """Return a single question that has a short, true answer."""
    if chance(rng, 0.3):
        country, city = rng.choice(list(CAPITALS.items()))
        form = rng.choice(("What is the capital of {0}?", "Which city is the capital of {0}?",
        "Capital of {0}?",
                           "Name the capital of {0}.", "Tell me the capital of {0}."))  # fmt: skip
        question, answer = form.format(country), f"The capital of {country} is {city}."
    else:
        question, answer = rng.choice(lines(REASONS)).split("|")
    return Chat([*maybe_system(rng), user(casual(rng, question)), assistant(answer)])
