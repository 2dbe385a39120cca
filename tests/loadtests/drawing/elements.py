"""The elements of a page, and its data."""

import json
from html.parser import HTMLParser
from typing import Any

HOSTILE = "</script><script>alert(1)</script><!-- {{data}} \u2028 & \ud800"
"""A name that no page may take for markup."""


class Elements(HTMLParser):
    """The elements of a page, and the text of its data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.data = ""
        self._in_data = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._in_data = ("id", "data") in attrs

    def handle_data(self, data: str) -> None:
        if self._in_data:
            self.data += data
            self._in_data = False

    def document(self) -> Any:
        return json.loads(self.data)
