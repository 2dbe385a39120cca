"""A page in a real browser: what it draws, what its console says, and what it looks like."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="there is no chromium, chromium-browser or google-chrome on PATH"
)
# On its virtual clock a headless browser paints no frames, so frames are timers here.
FRAMES = "<script>window.requestAnimationFrame = (draw) => setTimeout(draw, 0);</script>"


@dataclass(frozen=True)
class Opened:
    """What came of a page once its scripts had run."""

    dom: str
    console: list[str]
    picture: Path
    """A screenshot, where one was asked for."""

    def count(self, pattern: str) -> int:
        return len(re.findall(pattern, self.dom))


def opened(text: str, folder: Path, width: int = 1400, height: int = 1000, shot: bool = False) -> Opened:
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    return visited(path.as_uri(), folder, width, height, shot)


def visited(url: str, folder: Path, width: int = 1400, height: int = 1000, shot: bool = False) -> Opened:
    assert BROWSER is not None
    picture = folder / "page.png"
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--disable-extensions", "--hide-scrollbars", "--host-resolver-rules=MAP *.example 127.0.0.1",
         f"--window-size={width},{height}",
         f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=3000",
         *([f"--screenshot={picture}"] if shot else []), "--dump-dom", url],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Opened(done.stdout, said, picture)
