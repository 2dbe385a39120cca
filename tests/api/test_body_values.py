import json
import re
import tracemalloc

import pytest

from serve_app.api.body import MAX_CONTAINERS, MAX_TOKEN_IDS, MAX_VALUES, check_structure, count_values
from serve_app.api.errors import ApiError


def body(**fields) -> bytes:
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    "accepted",
    [
        body(messages=[{"role": "user", "content": "sea"}]),
        body(prompt='{[,"\\' * 500_000),
        body(prompt=[1] * MAX_TOKEN_IDS),
        body(prompt=[[1] * 1000] * 64, stop=["a", "b"]),
        body(tokens=[1] * 100_000),
        body(input=["tide, and [ebb]"] * 2_048),
        body(messages=[{"role": "user", "content": "a, b"}] * 2_048),
        b"not JSON" * 100_000,
        b"",
    ],
    ids=lambda value: value[:24].decode(),
)
async def test_what_is_quick_to_validate_passes(accepted: bytes) -> None:
    await check_structure(accepted)


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (
            body(messages=[{"role": "user", "content": "a"}] * 100_000),
            f"objects and lists; at most {MAX_CONTAINERS}",
        ),
        (body(input=[[1]] * 100_000), f"objects and lists; at most {MAX_CONTAINERS}"),
        (body(prompt=[1] * (MAX_TOKEN_IDS + 1)), f"token ids; at most {MAX_TOKEN_IDS}"),
        (body(prompt=[1.5] * 100_000), f"values; at most {MAX_VALUES}"),
        (body(input=["a"] * 100_000), f"values; at most {MAX_VALUES}"),
        (body(stop_token_ids=[1] * 100_000), f"values; at most {MAX_VALUES}"),
        (body(logit_bias={str(i): 1 for i in range(100_000)}), f"values; at most {MAX_VALUES}"),
        (b"[" * 1_000_000, f"objects and lists; at most {MAX_CONTAINERS}"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_what_would_hold_up_others_is_refused_with_its_bound(refused: bytes, said: str) -> None:
    with pytest.raises(ApiError, match=re.escape(said)) as caught:
        await check_structure(refused)

    assert caught.value.status == 400


def test_strings_are_no_structure() -> None:
    assert count_values(b'{"a": "[{,\\"[,", "b\\\\": [1, 2]}') == (2, 3)


async def test_fields_that_hold_no_token_ids_are_never_built() -> None:
    many = body(prompt="a", **{str(i): i for i in range(100_000)})
    tracemalloc.start()
    with pytest.raises(ApiError):
        await check_structure(many)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert most < 5 * len(many)  # two copies of the text; an object for each field took ten times the text
