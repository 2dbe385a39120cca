"""A real Chromium, driven by the DevTools protocol."""

import asyncio
import base64
import itertools
import json
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from tests.loadtests.drawing.browser import BROWSER

LIMIT_S = 30.0
"""Far beyond what anything awaited takes on a busy machine."""


class Page:
    """One tab. `console` has all that the page logged, and every error, warning and failed request."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.console: list[str] = []
        self.received_bytes = 0
        self.requested: list[str] = []
        self._socket = socket
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._loaded = asyncio.Event()
        self._numbers = itertools.count(1)

    async def listen(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                answer = self._answers.pop(told["id"])
                if "error" in told:
                    answer.set_exception(AssertionError(told["error"]["message"]))
                else:
                    answer.set_result(told["result"])
            elif "params" in told:
                self._note(told["method"], told["params"])

    def _note(self, event: str, told: dict[str, Any]) -> None:
        if event == "Runtime.consoleAPICalled":
            self.console.append(" ".join(str(each.get("value", each)) for each in told["args"]))
        elif event == "Runtime.exceptionThrown":
            self.console.append(json.dumps(told["exceptionDetails"])[:500])
        elif event == "Log.entryAdded":
            self.console.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        elif event == "Page.loadEventFired":
            self._loaded.set()
        elif event == "Network.requestWillBeSent":
            if told["request"]["url"].startswith("http"):
                self.requested.append(told["request"]["url"])
        elif event == "Network.loadingFinished":
            self.received_bytes += int(told["encodedDataLength"])

    async def call(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        self._answers[number] = answer = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(LIMIT_S):
            return await answer

    async def visit(self, url: str) -> None:
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        async with asyncio.timeout(LIMIT_S):
            await self._loaded.wait()

    async def run(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        found = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in found, json.dumps(found["exceptionDetails"])[:1000]
        return found["result"].get("value")

    async def until(self, condition: str, limit_s: float = LIMIT_S) -> None:
        """Wait until an expression is true. It may fail until then, because its elements are not there."""
        began = time.monotonic()
        while not await self.run(
            f"(() => {{ try {{ return !!({condition}); }} catch {{ return false; }} }})()"
        ):
            text = f"never true: {condition}\n{self.console}\n"
            assert time.monotonic() - began < limit_s, text + (await self.text())[:3000]
            await asyncio.sleep(0.1)

    async def text(self) -> str:
        """The text that the page shows."""
        return str(await self.run("document.body.innerText")).replace("\u00a0", " ")

    async def click(self, selector: str) -> None:
        await self.run(f"document.querySelector({json.dumps(selector)}).click()")

    async def fill(self, selector: str, value: str) -> None:
        place = f"document.querySelector({json.dumps(selector)})"
        await self.run(f"{place}.value = {json.dumps(value)}")

    async def size(self, width: int, height: int = 900) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def window(self, state: str) -> None:
        """Have the window `minimized`, which hides the tab, or `normal`."""
        window = (await self.call("Browser.getWindowForTarget"))["windowId"]
        await self.call("Browser.setWindowBounds", windowId=window, bounds={"windowState": state})

    async def scheme(self, name: str) -> None:
        """Have the reader's system prefer `light` or `dark`."""
        await self.call(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}]
        )

    async def picture(self, path: Path, whole: bool = True) -> None:
        taken = await self.call("Page.captureScreenshot", captureBeyondViewport=whole, format="png")
        path.write_bytes(base64.b64decode(taken["data"]))


@asynccontextmanager
async def chromium(*flags: str) -> AsyncIterator[Page]:
    """A new browser with one empty tab. It has no network but this machine's loopback."""
    assert BROWSER is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--disable-extensions", "--hide-scrollbars", "--remote-debugging-port=0",
            "--disable-background-networking",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
            f"--user-data-dir={folder}", *flags, "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with aiohttp.ClientSession() as session:
                address = await _address(Path(folder) / "DevToolsActivePort")
                async with session.get(f"{address}/json/list") as listed:
                    tab = next(each for each in await listed.json() if each["type"] == "page")
                async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = Page(socket)
                    listening = asyncio.create_task(page.listen())
                    for domain in ("Page", "Runtime", "Log", "Network"):
                        await page.call(f"{domain}.enable")
                    yield page
                    listening.cancel()
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _address(file: Path) -> str:
    """The address that the browser writes to `file` once it listens."""
    began = time.monotonic()
    while not (file.exists() and (lines := file.read_text().split())):
        assert time.monotonic() - began < LIMIT_S, "the browser did not start"
        await asyncio.sleep(0.05)
    return f"http://127.0.0.1:{lines[0]}"
