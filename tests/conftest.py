"""What every test process needs before it imports Ray and vLLM, and Ray's key-value store without Ray."""

from __future__ import annotations

import atexit
import gc
import os
import secrets
import shutil
import signal
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.batch.s3_server import S3_PYTHON, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.stub_kv import StubKv

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # as in every engine replica: the sandbox forks
# Two workers with a thread for each core would wait for each other, and waiting threads of numpy's spin.
# Steps of an engine core took ten times as long; with one CPU, Ray gives a replica one thread as well.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Every cluster of the tests asks for this token; none is written into anybody's home.
assert "ray" not in sys.modules, "Ray reads its authentication mode once, when it is imported"
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

# Servers of the tests write no usage into the ledger of the user who runs them.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="tide-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

# A shell starts background jobs with SIGINT ignored. Tests send this signal to themselves and their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says more of the machine than of the code. `make test` has the same examples each
# time, so that a failure is of the change; `make test-long` has new ones, and more.
settings.register_profile("suite", deadline=None, derandomize=True, max_examples=40)
settings.register_profile("new-examples", deadline=None)
settings.load_profile("suite")


gc.disable()  # until collection ends


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests of engines, so that one of two processes starts each engine, and only once.

    Each process gets one half of the tests. It takes from the end of the other's half when it is done.
    """
    items.sort(key=lambda item: "engine" not in item.path.parts)


def pytest_collection_finish() -> None:
    gc.enable()
    gc.collect()


full_collections = 0


def pytest_runtest_setup() -> None:
    """Spare collections what has survived a full one: with vLLM a million objects, whose search takes 1 s.

    After the end of an engine they are searched once more. Nothing here counts the frozen objects: that takes
    0.2 s, in each test.
    """
    global full_collections  # noqa: PLW0603
    if (seen := gc.get_stats()[2]["collections"]) != full_collections:
        gc.freeze()
        full_collections = seen


@pytest.fixture
def kv(monkeypatch: pytest.MonkeyPatch) -> StubKv:
    """What stands in for Ray's key-value store, under documents and phases."""
    from tests.stub_kv import StubKv  # it imports Ray

    store = StubKv()
    monkeypatch.setattr("serve_app.wire.documents.internal_kv", store)
    monkeypatch.setattr("serve_app.wire.documents._unreadable", {})
    monkeypatch.setattr("serve_app.wire.phases.list_named_actors", store.list_named_actors)
    return store


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The URL of an S3 server."""
    if not S3_PYTHON.exists():
        pytest.skip("no .venv/moto: run make setup-dev")
    with s3_server() as address:
        yield address


@pytest.fixture
def s3_bucket(s3: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a bucket. The environment has its server and credentials."""
    for name, value in {
        "AWS_ENDPOINT_URL": s3,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "tide",
        "AWS_SECRET_ACCESS_KEY": "tide",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    return "s3://tide"
