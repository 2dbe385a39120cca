"""Load on a model with two versions, and what its clients see."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx


@dataclass
class Load:
    """Clients that send one short stream after another."""

    url: str
    model: str
    clients: int = 12
    max_tokens: int = 40
    seen: Counter[str] = field(default_factory=Counter)
    """`ok`, `length` and `error`, by how the streams ended."""
    errors: list[str] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    _stops: bool = False

    async def run(self, until: Callable[[], bool], limit_s: float) -> float:
        """Run until `until` holds, or for `limit_s`. Returns the seconds."""
        began = time.monotonic()
        async with httpx.AsyncClient(base_url=self.url, timeout=120) as http:
            tasks = [asyncio.create_task(self._client(http, number)) for number in range(self.clients)]
            while time.monotonic() - began < limit_s and not await asyncio.to_thread(until):
                await asyncio.sleep(0.2)
            took_s = time.monotonic() - began
            self._stops = True
            await asyncio.gather(*tasks)
        return took_s

    async def _client(self, http: httpx.AsyncClient, number: int) -> None:
        turn = 0
        while not self._stops:
            turn += 1
            words = f"Say a word about number {number} and {turn}."
            body = {
                "model": self.model,
                "messages": [{"role": "user", "content": words}],
                "max_tokens": self.max_tokens,
                "stream": True,
            }
            began = time.monotonic()
            text = ""
            async with http.stream("POST", "/v1/chat/completions", json=body) as reply:
                async for part in reply.aiter_text():
                    if not text:
                        self.ttft_s.append(time.monotonic() - began)
                    text += part
            if reply.status_code != 200 or not text.endswith("data: [DONE]\n\n") or '"error"' in text:
                self.seen["error"] += 1
                self.errors.append(f"{reply.status_code}: {text[-400:]}")
            else:
                self.seen["length" if '"finish_reason":"length"' in text else "ok"] += 1


def version_status(url: str, deployment: str) -> dict[str, object]:
    """Return the policy's status of a version."""
    answer = httpx.get(f"{url}/autoscaling/decisions", params={"limit": 1}, timeout=10).json()
    found: dict[str, object] = (answer["autoscaler"] or {"models": {}})["models"].get(deployment, {})
    return found


def events(url: str, model: str) -> list[str]:
    """Return the reasons of the version's events, oldest first."""
    query = {"limit": 1000, "model": model}
    answer = httpx.get(f"{url}/autoscaling/decisions", params=query, timeout=10).json()
    return [each["reason"] for each in answer["decisions"] if each["kind"] == "version"]


def set_share(url: str, model: str, share: float) -> float:
    """Change the share, and return the seconds that it took."""
    began = time.monotonic()
    body = json.dumps({"model": model, "share": share})
    reply = httpx.put(f"{url}/autoscaling/canary", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == 200, reply.text
    return time.monotonic() - began
