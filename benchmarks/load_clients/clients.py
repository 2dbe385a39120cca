"""The load generators that were compared, each driven in its own best way of sending a given schedule."""

import itertools
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.load_clients import tideserve_drive, vllm_bench
from benchmarks.load_clients.job import MODEL, TOKENIZER, Client, Job, Planned, Seen, order_of


def clients(environments: Path) -> dict[str, Client]:
    """All of them, by name; each but vLLM's in the virtual environment `environments`/NAME."""
    found: list[Client] = [Aiperf(environments), Guidellm(environments), VllmBench(), Locust(environments)]
    found.append(Tideserve())
    return {client.name: client for client in found}


def _write_lines(path: Path, rows: Iterable[Mapping[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _body(planned: Planned, script: Mapping[str, object]) -> dict[str, object]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": planned.prompt}],
        "max_tokens": planned.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"stub": dict(script)} if script else {}),
    }


class Aiperf:
    """NVIDIA's: whole payloads with timestamps, and a raw record of each frame."""

    name = "aiperf"

    def __init__(self, environments: Path) -> None:
        self._bin = environments / self.name / "bin"

    def command(self, job: Job) -> list[str]:
        """See `Client`."""
        rows = (
            {"timestamp": planned.at_s * 1e3, "payload": _body(planned, job.script)}
            for planned in job.planned
        )
        trace = _write_lines(job.directory / "trace.jsonl", rows)
        command = [str(self._bin / "aiperf"), "profile", "--model", MODEL, "--url", job.url]
        command += ["--endpoint-type", "chat", "--streaming", "--use-server-token-count"]
        command += ["--input-file", trace, "--custom-dataset-type", "mooncake_trace", "--fixed-schedule"]
        command += ["--tokenizer", str(TOKENIZER), "--no-gpu-telemetry", "--no-server-metrics"]
        command += ["--export-level", "raw", "--ui", "none", "--artifact-dir", str(job.directory / "out")]
        if job.cancel_after_s is not None:
            command += ["--request-cancellation-rate", "100"]
            command += ["--request-cancellation-delay", str(job.cancel_after_s)]
        return command

    def seen(self, job: Job) -> list[Seen]:
        """See `Client`."""
        out = job.directory / "out"
        merged = out / "profile_export_raw.jsonl"
        # Where all requests fail it ends before it merges the records of its processes.
        parts = [merged] if merged.exists() else sorted((out / "raw_records").iterdir())
        prompts = {}
        for raw in (json.loads(line) for part in parts for line in part.open()):
            message = (raw.get("payload") or {})["messages"][-1]
            prompts[raw["metadata"]["x_request_id"]] = message["content"]
        return [self._seen(json.loads(line), prompts) for line in (out / "profile_export.jsonl").open()]

    def _seen(self, row: dict[str, Any], prompts: Mapping[str, str]) -> Seen:
        metrics, identity = row["metrics"], row["metadata"]["x_request_id"]

        def value(name: str) -> Any:
            return metrics[name]["value"] if name in metrics else None

        first, mean = value("time_to_first_token"), value("inter_token_latency")
        error = row.get("error")
        return Seen(
            order=order_of(prompts[identity]),
            ttft_s=None if first is None else first / 1e3,
            gaps_s=tuple(gap / 1e3 for gap in value("inter_chunk_latency") or ()),
            mean_gap_s=None if mean is None else mean / 1e3,
            tokens=value("output_sequence_length"),
            error=None if error is None else json.dumps(error)[:300],
        )


class Guidellm:
    """The vLLM project's: a data file with relative timestamps, replayed."""

    name = "guidellm"

    def __init__(self, environments: Path) -> None:
        self._bin = environments / self.name / "bin"

    def command(self, job: Job) -> list[str]:
        """See `Client`."""
        rows = (
            {"relative_timestamp": p.at_s, "prompt": p.prompt, "output_tokens_count": p.max_tokens}
            for p in job.planned
        )
        data = _write_lines(job.directory / "data.jsonl", rows)
        backend: dict[str, object] = {"kind": "openai_http", "target": job.url, "model": MODEL}
        if job.script:
            backend["extras"] = {"body": {"stub": dict(job.script)}}
        config = {
            "backend": backend,
            "profile": {"kind": "replay", "schedule_turn": "timestamp"},
            "data": [{"kind": "json_file", "path": data}],
            "tokenizer": {"kind": "huggingface_auto", "model": str(TOKENIZER)},
            "outputs": [{"kind": "json", "path": str(job.directory / "out.json")}],
        }
        (job.directory / "config.json").write_text(json.dumps({"spec": config}))
        return [
            *(str(self._bin / "guidellm"), "run", "--disable-console"),
            *("--config", str(job.directory / "config.json")),
        ]

    def seen(self, job: Job) -> list[Seen]:
        """See `Client`."""
        kinds = json.loads((job.directory / "out.json").read_text())["benchmarks"][0]["requests"]
        return [
            self._seen(row, kind)
            for kind in ("successful", "errored", "incomplete")
            for row in kinds[kind] or []
        ]

    def _seen(self, row: dict[str, Any], kind: str) -> Seen:
        sent = row["request_args"]  # None where the request failed.
        content = json.loads(sent)["body"]["messages"][-1]["content"] if sent else None
        first, mean = row["time_to_first_token_ms"], row["inter_token_latency_ms"]
        return Seen(
            order=order_of(content[0]["text"]) if content else None,
            ttft_s=None if first is None else first / 1e3,
            gaps_s=(),
            mean_gap_s=None if mean is None else mean / 1e3,
            tokens=row["output_tokens"],
            error=None if kind == "successful" else f"{kind}: {row['info'].get('error')}",
        )


class VllmBench:
    """vLLM's own `vllm bench serve`, in this environment: a timed trace."""

    name = "vllm-bench"

    def command(self, job: Job) -> list[str]:
        """See `Client`."""
        rows = (
            {"timestamp": p.at_s, "input_length": 8, "output_length": p.max_tokens, "hash_ids": [order]}
            for order, p in enumerate(job.planned)
        )
        trace = _write_lines(job.directory / "trace.jsonl", rows)
        command = [sys.executable, vllm_bench.__file__, "--backend", "openai", "--base-url", job.url]
        command += ["--model", MODEL, "--tokenizer", str(TOKENIZER), "--num-prompts", str(len(job.planned))]
        command += ["--dataset-name", "timed_trace", "--dataset-path", trace]
        for label in ("timestamp", "input-length", "output-length", "hash-ids"):
            command += [f"--timed-trace-label-{label}", label.replace("-", "_")]
        command += ["--save-result", "--save-detailed", "--disable-tqdm"]
        command += ["--result-dir", str(job.directory), "--result-filename", "out.json"]
        if job.script:
            command += ["--extra-body", json.dumps({"stub": dict(job.script)})]
        return command

    def seen(self, job: Job) -> list[Seen]:
        """See `Client`."""
        out = json.loads((job.directory / "out.json").read_text())
        columns = (out["ttfts"], out["itls"], out["output_lens"], out["errors"])
        return [
            Seen(
                order=order,
                ttft_s=ttft or None,
                gaps_s=tuple(gaps),
                mean_gap_s=sum(gaps) / len(gaps) if gaps else None,
                tokens=tokens,
                error=error.strip()[-300:] or None,
            )
            for order, (ttft, gaps, tokens, error) in enumerate(zip(*columns, strict=True))
        ]


class Locust:
    """Locust with a user that walks the plan: it has no schedules of its own, nor times of tokens."""

    name = "locust"

    def __init__(self, environments: Path) -> None:
        self._bin = environments / self.name / "bin"

    def command(self, job: Job) -> list[str]:
        """See `Client`."""
        plan = {
            "planned": [{"at_s": p.at_s, "body": _body(p, job.script)} for p in job.planned],
            "cancel_after_s": job.cancel_after_s,
            "out": str(job.directory / "out.jsonl"),
        }
        (job.directory / "plan.json").write_text(json.dumps(plan))
        file = Path(__file__).with_name("locustfile.py")
        return [
            *("env", f"LOCUST_PLAN={job.directory / 'plan.json'}", str(self._bin / "locust")),
            *("--locustfile", str(file), "--headless", "--users", "1", "--host", job.url),
            *("--only-summary", "--stop-timeout", "600"),
        ]

    def seen(self, job: Job) -> list[Seen]:
        """See `Client`."""
        rows = [json.loads(line) for line in (job.directory / "out.jsonl").open()]
        return [self._seen(row) for row in rows]

    def _seen(self, row: dict[str, Any]) -> Seen:
        tokens = row["token_s"]
        gaps = tuple(after - before for before, after in itertools.pairwise(tokens))
        return Seen(
            order=row["order"],
            ttft_s=tokens[0] - row["sent_s"] if tokens else None,
            gaps_s=gaps,
            mean_gap_s=sum(gaps) / len(gaps) if gaps else None,
            tokens=len(tokens),
            error=row["error"],
        )


class Tideserve:
    """Our own, which `tideserve loadtest` uses, in one process and this environment."""

    name = "tideserve"

    def command(self, job: Job) -> list[str]:
        """See `Client`."""
        plan = {
            "url": job.url,
            "model": MODEL,
            "planned": [
                {"at_s": one.at_s, "max_tokens": one.max_tokens, "body": _body(one, job.script)}
                for one in job.planned
            ],
            "leave_after_s": job.cancel_after_s,
            "retries": 1,
            "out": str(job.directory / "out.jsonl"),
        }
        file = job.directory / "plan.json"
        file.write_text(json.dumps(plan))
        return [sys.executable, tideserve_drive.__file__, str(file)]

    def seen(self, job: Job) -> list[Seen]:
        """See `Client`. Latencies count from the intended time, which is what it reports."""
        return [_seen_by_tideserve(json.loads(line)) for line in (job.directory / "out.jsonl").open()]


def _seen_by_tideserve(row: dict[str, Any]) -> Seen:
    pieces = row["pieces_s"]
    gaps = tuple(after - before for before, after in itertools.pairwise(pieces))
    success = row["outcome"] in ("answered", "left")
    return Seen(
        order=row["index"],
        ttft_s=pieces[0] - row["at_s"] if pieces else None,
        gaps_s=gaps,
        mean_gap_s=sum(gaps) / len(gaps) if gaps else None,
        tokens=len(pieces),
        error=None if success else f"{row['outcome']}: {row['error']}",
    )
