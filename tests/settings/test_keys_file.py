"""The file of keys: what it may hold, and that no error repeats a secret."""

import contextlib
import json
from hashlib import sha256
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from serve_app.settings.caller import Caller
from serve_app.settings.keys_file import ApiKey, parse_keys
from serve_app.settings.settings_error import SettingsError

SECRET = "sk-tide-secret"
HASH = "sha256:" + sha256(SECRET.encode()).hexdigest()


def parsed(*entries: Any) -> tuple[ApiKey, ...]:
    return parse_keys(yaml.safe_dump({"keys": list(entries)}).encode()).keys


def problems(content: str) -> list[str]:
    with pytest.raises(SettingsError) as error:
        parse_keys(content.encode())
    return error.value.problems


def test_hash_and_plain_key_have_the_same_digest() -> None:
    hashed, plain = parsed({"name": "a", "hash": HASH}), parsed({"name": "a", "key": SECRET})

    assert hashed[0].digest == plain[0].digest == sha256(SECRET.encode()).digest()


def test_entry_has_every_right_by_default() -> None:
    (key,) = parsed({"name": "a", "hash": HASH})

    assert key.caller == Caller("a", "standard", 1.0)
    assert key.allows("any/model")
    assert not key.is_limited
    assert not key.admin
    assert key.expires_at is None


def test_models_are_allowed_by_patterns() -> None:
    (key,) = parsed({"name": "a", "hash": HASH, "models": ["qwen-*", "org/embed"]})

    assert [key.allows(name) for name in ("qwen-7b", "org/embed", "QWEN-7b", "org/embed-2", "")] == [
        True, True, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("comment", ["", "# the shop\n\n"])
def test_file_may_be_json(comment: str) -> None:
    content = comment + json.dumps({"keys": [{"name": "a", "key": SECRET}]}, separators=(",", ":"))

    assert [key.name for key in parse_keys(content.encode()).keys] == ["a"]


def test_a_line_is_named_by_its_digest() -> None:
    (key,) = parse_keys(b"# the shop\n  sk-one\r\n").keys

    assert key.name == "key-" + sha256(b"sk-one").hexdigest()[:8]
    assert key.caller == Caller(key.name)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("lane: fast", "keys[0].lane = 'fast': input should be 'interactive', 'standard' or 'background'"),
        ("weight: 0", "keys[0].weight = 0: input should be greater than or equal to 0.001"),
        ("weight: 1.0e-320", "keys[0].weight = 1e-320: input should be greater than or equal to 0.001"),
        ("weight: 1001", "keys[0].weight = 1001: input should be less than or equal to 1000"),
        ("tokens_per_minute: 0", "keys[0].tokens_per_minute = 0: input should be greater than or equal to 1"),
        ("models: []", "keys[0].models = []: tuple should have at least 1 item after validation, not 0"),
        ("expires: 2027", "keys[0].expires = 2027: must be a date and time, such as 2027-01-31T00:00:00Z"),
        ("expires: 2027-01-31T00:00:00", "input should have timezone info"),
        ("key: other", "keys[0]: must have one of `hash` and `key`"),
        ("sk-typo: 1", "keys[0]: has an unknown field; known are name, hash, key"),
    ],
)
def test_error_names_key_value_and_bound(entry: str, problem: str) -> None:
    (found,) = problems(f"keys:\n  - name: a\n    hash: {HASH}\n    {entry}\n")

    assert problem in found


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("keys: []", "keys: tuple should have at least 1 item"),
        ("keys: {", "not YAML"),
        ("keys:\nlimits: 1", "has an unknown field; known are keys"),
        ("keys:\n- {name: other, key: b}", "keys[0].name = 'other': is the name of the sum of further keys"),
        ("keys:\n- {name: !!bool b, key: c}", "not YAML"),
        ("keys:\n- {name: a, key: b}\n- {name: a, key: c}", "keys[1] has the name of keys[0] again"),
        ("keys:\n- {name: a, key: b}\n- {name: c, key: b}", "keys[1] has the key of keys[0] again"),
        ("keys:\n- {name: a, lane: standard, lane: background}", "line 2: given twice"),
        ("{}", "keys: required, and not given"),
        ("{keys", "not YAML"),
        ("- name: a", "A file of named keys begins with `keys:`"),
    ],
)
def test_invalid_file_is_refused(content: str, problem: str) -> None:
    assert problem in " ".join(problems(content))


def test_more_than_1000_keys_are_refused() -> None:
    entries = [{"name": f"a{number}", "hash": f"sha256:{number:064x}"} for number in range(1001)]
    with pytest.raises(SettingsError, match="at most 1000 items"):
        parsed(*entries)


@pytest.mark.parametrize(
    "content",
    [
        f"keys: [{SECRET}]",
        f"keys: {{{SECRET}: a, {SECRET}: b}}",
        f"keys: *{SECRET}",
        f"keys: {SECRET}",
        f"keys:\n- {{name: a, {SECRET}: 1}}",
        f"keys:\n- {{name: a, key: {SECRET} two}}",
        f"keys:\n- {{name: a, key: [{SECRET}]}}",
        f"keys:\n- {{name: a, key: {SECRET}, hash: {SECRET}}}",
        f"keys:\n- {{name: a, hash: {SECRET}}}",
        f"keys:\n- {{name: a, key: {SECRET}, metadata: {{{SECRET}: [1]}}}}",
        f"keys:\n- {{key: {SECRET}}}",
        f"keys:\n- {{name: a, key: {SECRET}}}\n- {{name: b, key: {SECRET}}}",
        f"{{{SECRET}: {SECRET}}}",
        f"{{{SECRET}",
        f"sk-{SECRET} two",
        f"{SECRET}\n{SECRET}",
    ],
)
def test_no_error_repeats_a_secret(content: str) -> None:
    assert SECRET not in " ".join(problems(content))


@given(st.binary(max_size=200))
def test_any_bytes_are_keys_or_a_settings_error(content: bytes) -> None:
    for start in (b"", b"keys:\n"):
        with contextlib.suppress(SettingsError):
            assert parse_keys(start + content).keys


def test_budgets_are_named_by_key_and_team() -> None:
    content = f"""
teams: {{shop: {{budget: {{usd: 100, per: week}}}}, search: {{}}}}
keys:
  - {{name: a, hash: "{HASH}", team: shop, budget: {{usd: 30, per: month, timezone: Europe/Berlin}}}}
  - {{name: b, key: sk-b, team: search}}
"""
    found = parse_keys(content.encode())

    assert {name: budget.usd for name, budget in found.budgets.items()} == {"key/a": 30.0, "team/shop": 100.0}
    assert [key.caller.budgets for key in found.keys] == [("key/a", "team/shop"), ("team/search",)]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("team: shop", "keys[0].team = 'shop': must be one of the file's `teams`"),
        ("budget: {usd: -1, per: day}", "keys[0].budget.usd = -1: input should be greater than 0"),
        (
            "budget: {usd: 1, per: year}",
            "keys[0].budget.per = 'year': input should be 'day', 'week' or 'month'",
        ),
        (
            "budget: {usd: 1, per: day, timezone: Mars/Base}",
            "keys[0].budget.timezone = 'Mars/Base': must be a name of the IANA time zone database",
        ),
        (f"budget: {{{SECRET}: 1}}", "keys[0].budget: has an unknown field; known are usd, per, timezone"),
    ],
)
def test_problem_of_a_budget_names_field_value_and_bound(entry: str, problem: str) -> None:
    found = problems(f"keys:\n  - {{name: a, key: sk-a, {entry}}}")

    assert any(each.startswith(problem) for each in found), found
    assert not any(SECRET in each for each in found)


def test_problem_of_a_team_names_the_team() -> None:
    content = "teams: {shop: {budget: {usd: 0, per: day}}}\nkeys: [{name: a, key: sk-a}]"

    assert problems(content) == ["teams.shop.budget.usd = 0: input should be greater than 0"]
