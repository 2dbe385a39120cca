"""Record a live run of the policy on CPU engines: requests, knobs, the fleet, and the replicas that ran.

    python -m tests.replay.live_run.record FOLDER

starts an application at zero, sends it seven minutes of seeded Poisson traffic that rises and falls, and
writes to FOLDER what a replay needs and what to hold it against: `requests.jsonl.gz` (the request log) and
`run.json` (knobs, replicas over time, cold starts). The test replays the recording kept beside this file;
`fleet.yaml` there was measured with `tideserve capacity` on the same machine.
"""

import asyncio
import gzip
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from tests.integration.cluster import Running, application, engine_settings

MODEL = "tide"
KNOBS: dict[str, Any] = {
    "min_replicas": 0,
    "max_replicas": 3,
    "ttft_target_s": 0.5,
    "itl_target_s": 0.1,
    # Two cores bear little more than one engine bears; spare replicas make the policy use three.
    "headroom": 2.0,
    "downscale_delay_s": 20,
    "downscale_to_zero_delay_s": 40,
}
PHASES = ((60.0, 0.5), (90.0, 5.0), (60.0, 0.5), (75.0, 0.0), (60.0, 4.0), (75.0, 0.0))
"""(seconds, requests a second), one after the other."""
OUTPUT_TOKENS = 96
WORDS = ["tide", "harbour", "lantern", "river", "window", "bread", "music", "garden", "winter", "paper"]


def schedule(seed: int) -> list[float]:
    """When each request goes out: seconds from the start."""
    rng = random.Random(seed)
    out, start = [], 0.0
    for seconds, rate in PHASES:
        at = start
        while rate and (at := at + rng.expovariate(rate)) < start + seconds:
            out.append(at)
        start += seconds
    return out


async def send(client: httpx.AsyncClient, at: float, began: float, rng: random.Random) -> None:
    """One streamed completion at its intended time."""
    await asyncio.sleep(max(0.0, began + at - time.monotonic()))
    prompt = " ".join(rng.choices(WORDS, k=rng.randint(20, 200)))
    body = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": rng.randint(OUTPUT_TOKENS // 2, OUTPUT_TOKENS),
        "ignore_eos": True,
        "stream": True,
    }
    async with client.stream("POST", "/v1/completions", json=body) as reply:
        async for _ in reply.aiter_raw():
            pass


async def watch(client: httpx.AsyncClient, began: float, seen: list[list[float]], end: float) -> None:
    """Note (seconds, target, ready, starting) twice a second."""
    while time.monotonic() < began + end:
        reply = await client.get("/autoscaling/decisions", params={"limit": 1})
        now = reply.json()["autoscaler"]["models"]["Engine-" + MODEL]
        row = [time.monotonic() - began, now["target"], now["ready"], now["starting"]]
        seen.append([round(value, 2) for value in row])
        await asyncio.sleep(0.5)


async def drive(url: str, seed: int) -> tuple[float, list[list[float]]]:
    """Send the whole schedule; returns when it began (Unix time) and the replicas over time."""
    rng = random.Random(seed + 1)
    seen: list[list[float]] = []
    end = sum(seconds for seconds, _ in PHASES)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        began, began_at = time.monotonic(), time.time()
        requests = [send(client, at, began, random.Random(rng.random())) for at in schedule(seed)]
        await asyncio.gather(watch(client, began, seen, end), *requests)
    return began_at, seen


def main() -> int:
    """Record one run into the folder named on the command line."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    logs = folder / "logs"
    document = application(
        engine_settings(MODEL), knobs={MODEL: KNOBS}, request_log={"directory": str(logs.resolve())}
    )
    running = Running(document)
    running.start()
    try:
        running.wait_ready()
        print(f"serving at {running.url}; {sum(s for s, _ in PHASES):.0f} s of traffic", flush=True)
        began_at, seen = asyncio.run(drive(running.url, seed=7))
        status = httpx.get(f"{running.url}/autoscaling/decisions", params={"limit": 1000}, timeout=10).json()
    finally:
        running.stop()
    lines = sorted(line for path in logs.rglob("*.jsonl") for line in path.read_text().splitlines())
    with gzip.open(folder / "requests.jsonl.gz", "wt") as out:
        out.write("\n".join(lines) + "\n")
    model = status["autoscaler"]["models"]["Engine-" + MODEL]
    run = {
        "began_at": began_at,
        "first_arrival_s": json.loads(lines[0])["arrived_at"] - began_at,
        "knobs": KNOBS,
        "replicas": seen,
        "cold_start_s": model["cold_start_s"],
    }
    (folder / "run.json").write_text(json.dumps(run))
    changes = [d for d in status["decisions"] if d["old_target"] != d["new_target"]]
    for d in changes:
        print(f"{d['at'] - began_at:6.1f} s  {d['old_target']} -> {d['new_target']}  {d['reason']}")
    print(f"{len(lines)} requests; cold start {model['cold_start_s']:.1f} s; written to {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
