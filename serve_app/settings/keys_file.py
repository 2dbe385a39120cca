"""The file of API keys: who may send requests, in which lane, and how much.

A file is either YAML with named keys (`KeysFile`), or text with one key per line. Errors are logged, so no
error contains a key, a digest, or text of the file that may be a key.
"""

import hmac
import re
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Annotated, Any, Self

import yaml
from pydantic import (
    AfterValidator,
    AwareDatetime,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from serve_app.settings.budget import Budget, Team
from serve_app.settings.caller import Caller, Lane
from serve_app.settings.closed_model import ClosedModel
from serve_app.settings.document import parse_yaml
from serve_app.settings.settings_error import SettingsError, dotted, shown

MOST_KEYS = 1_000
MOST_BYTES = 1 << 20
PLAIN = r"[\x21-\x7e]+"
"""Printable ASCII without spaces, which a header can carry."""
DIGEST = "sha256:"
_YAML_START = re.compile(rb"(---|keys:|teams:)(\s|$)|\{")
"""JSON is YAML too."""
_SECRET = ("key", "hash")
_CACHE_SALT = b"tideserve: salt of the prefix cache"
_LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""1,000 keys take 0.5 s with libyaml and 2 s without."""

OTHER_KEYS = "other"
"""The sum of all keys beyond a number, in metrics and in sums of usage. No key may have this name."""


def _is_free(name: str) -> str:
    if name == OTHER_KEYS:
        raise ValueError("is the name of the sum of further keys")
    return name


Name = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"),
    AfterValidator(_is_free),
]
Limit = Annotated[int, Field(ge=1, le=10**12)]


class ApiKey(ClosedModel):
    """One key, and the rights and limits of the clients that have it."""

    model_config = ConfigDict(use_attribute_docstrings=True)  # editors show them from the published schema

    name: Name
    """The key's name in metrics, logs and the ledger."""
    hash: Annotated[str, Field(pattern=f"^{DIGEST}[0-9a-f]{{64}}$")] | None = None
    """The SHA-256 of the key. `tideserve keys new` prints it."""
    key: Annotated[str, Field(pattern=f"^{PLAIN}$")] | None = Field(default=None, repr=False)
    """The key itself, in place of `hash`. Whoever reads the file can then use the key."""
    lane: Lane = "standard"
    """The class of the work. A client may lower the lane of a request, and never raise it."""
    weight: Annotated[float, Field(ge=0.001, le=1_000)] = 1.0
    """The key's share of tokens within its lane, beside the weights of other keys."""
    tokens_per_minute: Limit | None = None
    """Prompt and generated tokens per minute; by default without a limit."""
    requests_per_minute: Limit | None = None
    """Requests for a model per minute, also lines of batches; by default without a limit."""
    concurrent_requests: Limit | None = None
    """Requests that are open at once, the lane `background` apart; by default without a limit."""
    budget: Budget | None = None
    """The most that the key's requests may cost; by default without a limit."""
    team: Name | None = None
    """The key's team, one of the file's `teams`; the team's budget holds for the key too."""
    models: Annotated[tuple[str, ...], Field(min_length=1)] = ("*",)
    """Names of the allowed models, with the wildcards `*`, `?` and `[…]`."""
    expires: AwareDatetime | None = None
    """When the key ends, as RFC 3339 with a time zone; by default never."""
    metadata: dict[str, str] = Field(default_factory=dict)
    """Notes of the operator, such as the team. Tideserve does not read them."""
    work_conserving: bool = False
    """Whether requests above a rate are served in the lane `background`, and not refused."""
    admin: bool = False
    """Whether the key may see the usage of all keys, and change knobs over HTTP."""

    @field_validator("expires", mode="before")
    @classmethod
    def _is_a_date(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, str | datetime):  # a number would count from 1970
            raise ValueError("must be a date and time, such as 2027-01-31T00:00:00Z")
        return value

    @model_validator(mode="after")
    def _has_one_secret(self) -> Self:
        if (self.hash is None) == (self.key is None):
            raise ValueError("must have one of `hash` and `key`")
        return self

    @cached_property
    def digest(self) -> bytes:
        if self.key is not None:
            return sha256(self.key.encode()).digest()
        assert self.hash is not None
        return bytes.fromhex(self.hash.removeprefix(DIGEST))

    @cached_property
    def cache_salt(self) -> str:
        """The salt of the prefix cache for the key's clients: 64 characters, which do not reveal the key.

        It depends only on the key, so all replicas compute the same salt, also after a restart.
        """
        return hmac.digest(self.digest, _CACHE_SALT, "sha256").hex()

    @cached_property
    def caller(self) -> Caller:
        return Caller(self.name, self.lane, self.weight, self.budgets)

    @cached_property
    def budgets(self) -> tuple[str, ...]:
        own = () if self.budget is None else (f"key/{self.name}",)
        return own if self.team is None else (*own, f"team/{self.team}")

    @cached_property
    def expires_at(self) -> float | None:
        """The Unix time at which the key ends; None for never."""
        return None if self.expires is None else self.expires.timestamp()

    @cached_property
    def is_limited(self) -> bool:
        return (self.tokens_per_minute, self.requests_per_minute, self.concurrent_requests) != (None,) * 3

    def allows(self, model: str) -> bool:
        return _matches(model, self.models)


@lru_cache(maxsize=1 << 14)  # matching takes 1 us per pattern
def _matches(model: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(model, pattern) for pattern in patterns)


class KeysFile(ClosedModel):
    """The content of a YAML file of API keys."""

    keys: Annotated[tuple[ApiKey, ...], Field(min_length=1, max_length=MOST_KEYS)]
    teams: Annotated[dict[Name, Team], Field(max_length=MOST_KEYS)] = Field(default_factory=dict)
    """The teams by name."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        for what in ("name", "digest"):
            places: dict[Any, int] = {}
            for index, key in enumerate(self.keys):
                first = places.setdefault(getattr(key, what), index)
                if first != index:
                    same = "key" if what == "digest" else "name"
                    # An operator who deletes one of two equal entries would believe that the key is revoked.
                    raise ValueError(f"keys[{index}] has the {same} of keys[{first}] again")
        return self

    @model_validator(mode="after")
    def _teams_exist(self) -> Self:
        for index, key in enumerate(self.keys):
            if key.team is not None and key.team not in self.teams:
                raise ValueError(f"keys[{index}].team = {key.team!r}: must be one of the file's `teams`")
        return self

    @cached_property
    def budgets(self) -> dict[str, Budget]:
        of_keys = {f"key/{key.name}": key.budget for key in self.keys}
        of_teams = {f"team/{name}": team.budget for name, team in self.teams.items()}
        return {name: budget for name, budget in (of_keys | of_teams).items() if budget is not None}

    @property
    def plain(self) -> list[str]:
        """The names of the keys that are written in plain text."""
        return [key.name for key in self.keys if key.key is not None]


def parse_keys(content: bytes) -> KeysFile:
    """Return the keys of a file.

    Raises:
        SettingsError: the file is invalid. The error's problems do not name the file.
    """
    if len(content) > MOST_BYTES:
        raise SettingsError([f"has more than {MOST_BYTES:,} bytes"])
    lines = [(number, line.strip()) for number, line in enumerate(content.split(b"\n"), 1)]
    given = [(number, line) for number, line in lines if line and not line.startswith(b"#")]
    if given and _YAML_START.match(given[0][1]):
        return _parse_yaml(content)
    numbers: dict[bytes, int] = {}
    for number, line in given:
        if not re.fullmatch(PLAIN.encode(), line):
            hint = "printable ASCII without spaces, one per line. A file of named keys begins with `keys:`"
            raise SettingsError([f"line {number} is not a key: {hint}"])
        if line in numbers:
            again = f"line {number} has the key of line {numbers[line]} again; give each key once"
            raise SettingsError([again])
        numbers[line] = number
    if not numbers:
        raise SettingsError(["has no keys; it needs one per line"])
    if len(numbers) > MOST_KEYS:
        raise SettingsError([f"has {len(numbers):,} keys; at most {MOST_KEYS:,} are allowed"])
    digests = [sha256(key).hexdigest() for key in numbers]
    names = Counter(digest[:8] for digest in digests)
    if names.most_common(1)[0][1] > 1:
        raise SettingsError(["two keys would get the same name; replace one of them, or use named keys"])
    return KeysFile(keys=tuple(ApiKey(name=f"key-{hex_[:8]}", hash=DIGEST + hex_) for hex_ in digests))


def _parse_yaml(content: bytes) -> KeysFile:
    try:
        document = parse_yaml(content.decode(), "line", _LOADER).value
    except UnicodeDecodeError as error:
        raise SettingsError([f"not UTF-8 at byte {error.start}"]) from None
    except SettingsError as error:
        raise SettingsError([_without_words(problem) for problem in error.problems]) from None
    try:
        return KeysFile.model_validate(document)
    except ValidationError as error:
        items = error.errors(include_url=False)
        # Pydantic counts only valid entries, and reports the others separately.
        found = [item for item in items if len(items) == 1 or item["loc"] != ("keys",)]
        raise SettingsError([_problem(item) for item in found]) from None


def _without_words(problem: str) -> str:
    """Return a problem of YAML without words of the file, because any word may be a key."""
    place = re.match(r"line:\d+", problem)
    what = "given twice" if "given twice" in problem else "not YAML"
    return f"{place[0].replace(':', ' ') if place else 'the file'}: {what}"


def _problem(item: Any) -> str:
    """Return the text of a problem that pydantic found. The text names fields, and shows no secret.

    A value in an unknown place may be a key, so only values of known fields are shown.
    """
    location = item["loc"]
    fields = {**ApiKey.model_fields, **Budget.model_fields}
    in_team = location[:1] == ("teams",)
    path = [part for part in location if in_team or isinstance(part, int) or part == "keys" or part in fields]
    where = dotted(path)
    if item["type"] == "extra_forbidden":
        models: Mapping[str, type[ClosedModel]] = {"budget": Budget, "teams": Team, "keys": ApiKey}
        inside = next((model for word, model in models.items() if word in location[:-1]), KeysFile)
        known, where = inside.model_fields, dotted([part for part in path if part != location[-1]])
        return f"{where}: has an unknown field; known are {', '.join(known)}"
    if item["type"] == "missing":
        return f"{where}: required, and not given"
    if path and len(path) == len(location) and path[-1] in fields and path[-1] not in _SECRET:
        where = f"{where} = {shown(item['input'])}"
    message = item["msg"].removeprefix("Value error, ")
    message = f"{message[0].lower()}{message[1:]}"
    return f"{where}: {message}" if path else message
