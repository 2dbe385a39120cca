# mypy: ignore-errors
"""A Locust user that sends a plan, each request in a greenlet of its own, and times every frame."""

import json
import os
import time
from pathlib import Path

import gevent
import gevent.pool
from locust import FastHttpUser, task

PLAN = json.loads(Path(os.environ["LOCUST_PLAN"]).read_text())


class Replay(FastHttpUser):
    """One user sends everything: with a user per request, Locust decides when they start."""

    concurrency = 1000

    @task
    def replay(self) -> None:
        """Send the plan, wait for all replies, end the run."""
        start = time.monotonic()
        sent = gevent.pool.Group()
        with Path(PLAN["out"]).open("w") as out:
            for order, planned in enumerate(PLAN["planned"]):
                gevent.sleep(max(0.0, start + planned["at_s"] - time.monotonic()))
                sent.spawn(self._send, order, planned["body"], out)
            sent.join()
        self.environment.runner.quit()

    def _send(self, order, body, out) -> None:
        record = {"order": order, "sent_s": time.monotonic(), "token_s": [], "comments": 0, "error": None}
        try:
            with gevent.Timeout(PLAN["cancel_after_s"]):
                self._read(body, record)
        except gevent.Timeout:
            record["error"] = "cancelled"
        except Exception as error:
            record["error"] = repr(error)
        out.write(json.dumps(record) + "\n")

    def _read(self, body, record) -> None:
        with self.client.post(
            "/v1/chat/completions", json=body, stream=True, catch_response=True
        ) as response:
            if response.status_code != 200:
                record["error"] = f"HTTP {response.status_code}"
                return
            stream = response._response  # The public iter_lines waits for each 1,024 bytes.
            try:
                while frame := bytes(stream.readline(b"\n\n")):
                    if b'"content":" ' in frame:
                        record["token_s"].append(time.monotonic())
                    record["comments"] += frame.startswith(b":")
            finally:
                stream.release()
