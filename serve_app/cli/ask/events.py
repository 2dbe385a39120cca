"""Server-sent events and comments: the parts of the WHATWG's format that our API uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_WAIT = re.compile(r"\bphase=(?P<phase>\S+) eta_s=(?P<eta>\S+) waited_s=(?P<waited>[0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Event:
    """One event; `name` is empty if the stream gives none."""

    name: str
    data: str


@dataclass(frozen=True, slots=True)
class Wait:
    """What a comment in a held stream says; see `ColdWait`. Times in seconds."""

    phase: str
    eta_s: int | None
    waited_s: int


class EventReader:
    """Turns blocks of bytes into events and waits."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._data: list[str] = []

    def feed(self, data: bytes) -> Iterator[Event | Wait]:
        """The events and waits that are complete with these bytes. Other comments are skipped."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            text = line.removesuffix(b"\r").decode("utf-8", "replace")
            if not text:
                if self._data:
                    yield Event(self._name, "\n".join(self._data))
                self._name, self._data = "", []
            elif text.startswith(":"):
                wait = _WAIT.search(text)
                if wait:
                    eta = wait["eta"]
                    eta_s = int(eta) if eta.isascii() and eta.isdigit() and len(eta) < 10 else None
                    yield Wait(wait["phase"], eta_s, int(wait["waited"]))
            else:
                field, _, value = text.partition(":")
                value = value.removeprefix(" ")
                if field == "data":
                    self._data.append(value)
                elif field == "event":
                    self._name = value
