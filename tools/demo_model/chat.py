"""Chat documents and the one way they become text: the shipped chat template."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from serve_app.weights import embedded_model_path

Message = dict[str, Any]
Tool = dict[str, Any]

TEMPLATE_NAME = "chat_template.jinja"


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, with the tools that its system turn offers."""

    messages: list[Message]
    tools: list[Tool] = field(default_factory=list)


@cache
def chat_template() -> str:
    """Return the source of the shipped chat template."""
    return (embedded_model_path() / TEMPLATE_NAME).read_text(encoding="utf-8")


def render(chat: Chat, *, add_generation_prompt: bool = False) -> str:
    """Render a chat exactly as a server does with this model's template."""
    rendered, _ = render_jinja_template(
        conversations=[chat.messages],
        tools=[*chat.tools] or None,
        chat_template=chat_template(),
        add_generation_prompt=add_generation_prompt,
    )
    return str(rendered[0])


def user(text: str) -> Message:
    """Return a user turn."""
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    """Return an assistant turn."""
    return {"role": "assistant", "content": text}


def system(text: str) -> Message:
    """Return a system turn."""
    return {"role": "system", "content": text}
