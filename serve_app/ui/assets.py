"""Put pages together from plain scripts and styles, without a build step."""

from functools import cache
from importlib import resources

from serve_app.ui import palette

SHARED = "serve_app.ui.shared"
"""The package of the scripts and styles that all pages have in common."""
_PAGE = "serve_app.ui.page"
_VENDOR = "serve_app.ui.vendor"


def joined(ending: str, *packages: str) -> str:
    """Return all files with this ending, in the order of the packages and of their names.

    Scripts only define things, so their order does not matter. Own styles come after shared ones.
    """
    files = [
        file
        for package in packages
        for file in sorted(resources.files(package).iterdir(), key=lambda file: file.name)
        if file.name.endswith(ending)
    ]
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


@cache
def script() -> bytes:
    """Return the page's script. `start` is defined in `serve_app/ui/page/main.js`."""
    own = joined(".js", SHARED, _PAGE)
    return f'{joined(".js", _VENDOR)}\n(() => {{\n"use strict";\n{own}\nstart();\n}})();\n'.encode()


@cache
def style() -> bytes:
    """Return the page's style sheet."""
    return "\n".join((joined(".css", _VENDOR), palette.rules(), joined(".css", SHARED, _PAGE))).encode()


@cache
def template() -> str:
    """Return the page as HTML. Its links work from `/` and `/ui`, also below a prefix."""
    return resources.files(_PAGE).joinpath("page.html").read_text(encoding="utf-8")
