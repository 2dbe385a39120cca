"""The file of keys: what it may hold, and what becomes of a change of it."""

import asyncio
import logging
import os
import threading
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from serve_app.api import api_keys
from serve_app.api.api_keys import ApiKeyFile, appeared
from serve_app.api.errors import ApiError
from serve_app.settings.settings_error import SettingsError
from tests.stub_engine import LIMIT_S
from tests.timing import Clock

NOT_A_KEY = "printable ASCII without spaces, one per line. A file of named keys begins with `keys:`"


class Mounted:
    """A Secret as Kubernetes mounts it: `keys` -> `..data/keys`, and `..data` -> a folder that is swapped."""

    def __init__(self, folder: Path, content: str) -> None:
        self._folder = folder
        self._versions = 0
        self.path = folder / "keys"
        self.swap(content)
        self.path.symlink_to(Path("..data") / "keys")

    def swap(self, content: str) -> None:
        self._versions += 1
        version = self._folder / f"..{self._versions}"
        version.mkdir()
        (version / "keys").write_text(content)
        new = self._folder / "..data_tmp"
        new.symlink_to(version.name)
        new.rename(self._folder / "..data")


def problem(path: Path) -> str:
    with pytest.raises(SettingsError) as error:
        ApiKeyFile(str(path))
    (only,) = error.value.problems
    start = f"http.api_keys_file = '{path}': "
    assert only.startswith(start)
    return only.removeprefix(start)


async def accepts(keys: ApiKeyFile, key: bytes) -> bool:
    await keys.refresh()
    try:
        keys.authenticate(key)
    except ApiError:
        return False
    return True


def keys_of(path: Path, content: bytes) -> ApiKeyFile:
    path.write_bytes(content)
    return ApiKeyFile(str(path))


async def test_each_line_is_a_key(tmp_path: Path) -> None:
    keys = keys_of(tmp_path / "keys", b"# of the web shop\nsk-one\n\n  sk-two=/+~!#\r\n#sk-old\nsk-last")

    for key in (b"sk-one", b"sk-two=/+~!#", b"sk-last"):
        assert await accepts(keys, key)
    for key in (b"", b"sk-on", b"sk-one ", b"SK-ONE", b"sk-old", b"#sk-old", b"sk-\xff", b"sk-one\nsk-last"):
        assert not await accepts(keys, key)


def test_a_key_given_twice_is_refused_by_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"# shop\nsk-one\nsk-two\n\n  sk-one\r\n")

    assert problem(path) == "line 5 has the key of line 2 again; give each key once"


def test_a_start_without_keys_is_an_error(tmp_path: Path) -> None:
    missing, empty, folder, closed = (tmp_path / name for name in ("missing", "empty", "folder", "closed"))
    empty.write_text("\n# none yet\n\n")
    folder.mkdir()
    closed.symlink_to(closed)

    assert problem(missing) == "No such file or directory"
    assert problem(empty) == "has no keys; it needs one per line"
    assert problem(folder) == "Is a directory"
    assert problem(closed) == "Too many levels of symbolic links"


async def test_a_start_waits_for_a_file_that_kubernetes_has_yet_to_show(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    waited = 0

    async def sleep(_: float) -> None:
        nonlocal waited
        waited += 1
        if waited == 120:
            path.write_bytes(b"sk-one")

    assert await accepts(await appeared(str(path), sleep), b"sk-one")
    assert waited == 120
    path.unlink()
    with pytest.raises(SettingsError, match="No such file"):
        await appeared(str(path), sleep)


@pytest.mark.parametrize(
    "line", [b"sk one", b"sk\tone", b"schl\xc3\xbcssel", b"sk\x00", b"\xef\xbb\xbfsk-one"]
)
def test_an_unusable_line_is_named_by_its_number(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"sk-good\n\n" + line + b"\n")

    assert problem(path) == "line 3 is not a key: " + NOT_A_KEY


def test_a_file_beyond_its_bounds_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("".join(f"sk-{number}\n" for number in range(1001)))
    assert problem(path) == "has 1,001 keys; at most 1,000 are allowed"
    path.write_bytes(b"#" * ((1 << 20) + 1))
    assert problem(path) == "has more than 1,048,576 bytes"


async def test_swapped_secret_is_in_force_a_second_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mounted, clock = Mounted(tmp_path, "sk-old\n"), Clock(100.0)
    keys = ApiKeyFile(str(mounted.path), clock)

    mounted.swap("sk-new\nsk-other\n")
    clock.now += 0.9
    assert await accepts(keys, b"sk-old")
    clock.now += 0.1
    with caplog.at_level(logging.INFO, "ray.serve"):
        assert await accepts(keys, b"sk-new")
        for _ in range(3):  # the file is read only once it has changed
            clock.now += 1.0
            assert not await accepts(keys, b"sk-old")

    assert caplog.messages == [f"http.api_keys_file = '{mounted.path}': has changed; keys in force: 2"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file or directory"),
        ("", "has no keys; it needs one per line"),
        ("sk new\n", f"line 1 is not a key: {NOT_A_KEY}"),
    ],
)
async def test_a_damaged_file_leaves_the_previous_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str | None, words: str
) -> None:
    path, clock = tmp_path / "keys", Clock(100.0)
    path.write_text("sk-one\n")
    keys = ApiKeyFile(str(path), clock)
    if content is None:
        path.unlink()
    else:
        path.write_text(content)

    for _ in range(3):
        clock.now += 1
        assert await accepts(keys, b"sk-one")
        assert not await accepts(keys, b"")
    assert caplog.messages == [f"http.api_keys_file = '{path}': {words}; the previous keys stay in force"]

    path.write_text("sk-two\n")
    clock.now += 1
    assert await accepts(keys, b"sk-two")
    assert not await accepts(keys, b"sk-one")


async def test_a_hanging_file_system_delays_one_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock, answers = tmp_path / "keys", Clock(100.0), threading.Event()
    path.write_text("sk-one\n")
    keys = ApiKeyFile(str(path), clock)
    stat = os.stat
    hung: list[str] = []

    def hanging(given: Any, **how: Any) -> os.stat_result:
        if given == str(path):
            hung.append(given)
            assert answers.wait(LIMIT_S)
        return stat(given, **how)

    monkeypatch.setattr(api_keys, "_LOOK_WAIT_S", 0.01)
    monkeypatch.setattr(os, "stat", hanging)
    try:
        async with asyncio.timeout(LIMIT_S):
            for _ in range(3):  # one look at a time: no thread more for each second that it hangs
                clock.now += 1
                assert await accepts(keys, b"sk-one")
    finally:
        answers.set()
    assert hung == [str(path)]


NAMED = """
keys:
  - name: shop
    hash: sha256:0aaa0c9a5e0d4d6ac9e8da1a8a0ad8ea4dbe6d3d9f4ac2ea8c4f0dd8c2d9bb0d
  - name: lab
    key: sk-lab
    expires: 2027-01-31T00:00:00+01:00
"""


async def test_key_ends_at_the_moment_of_its_expiry(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(NAMED)
    end = datetime(2027, 1, 30, 23, tzinfo=UTC).timestamp()
    now = end - 0.001
    keys = ApiKeyFile(str(path), wall=lambda: now)

    assert keys.authenticate(b"sk-lab").name == "lab"
    now = end
    with pytest.raises(ApiError, match="has expired"):
        keys.authenticate(b"sk-lab")


async def test_plain_keys_of_a_yaml_file_are_named_in_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    path.write_text(NAMED)
    ApiKeyFile(str(path))

    (message,) = caplog.messages
    assert "keys in plain text: lab;" in message
    assert "sk-lab" not in message


async def test_file_may_change_from_lines_to_yaml_and_back(tmp_path: Path) -> None:
    path, clock = tmp_path / "keys", Clock(100.0)
    path.write_text("sk-lab\n")
    keys = ApiKeyFile(str(path), clock, wall=lambda: 0.0)
    assert keys.authenticate(b"sk-lab").name == "key-" + sha256(b"sk-lab").hexdigest()[:8]

    path.write_text(NAMED)
    clock.now += 1
    assert await accepts(keys, b"sk-lab")
    assert keys.authenticate(b"sk-lab").name == "lab"

    path.write_text("sk-other\n")
    clock.now += 1
    assert not await accepts(keys, b"sk-lab")


async def test_trouble_lasts_until_the_file_is_valid(tmp_path: Path) -> None:
    path, clock = tmp_path / "keys", Clock(100.0)
    path.write_text(NAMED)
    keys = ApiKeyFile(str(path), clock)
    path.write_text(NAMED.replace("name: lab", "name: shop"))
    clock.now += 1
    await keys.refresh()
    assert keys.trouble == "keys[1] has the name of keys[0] again"

    path.write_text(NAMED)
    clock.now += 1
    await keys.refresh()
    assert (keys.trouble, len(keys)) == ("", 2)
