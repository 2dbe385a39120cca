from __future__ import annotations

import pytest

from serve_app import env
from serve_app.haproxy.limits import Limits


def test_what_is_not_set_has_its_default() -> None:
    assert Limits.read({}) == Limits(header_timeout_s=10, connections_per_address=0, admin_host="127.0.0.1")


def test_what_is_set_counts() -> None:
    environ = {
        env.HEADER_TIMEOUT_S: "3600",
        env.CONNECTIONS_PER_ADDRESS: "1000000",
        env.HAPROXY_ADMIN_HOST: "::1",
    }

    assert Limits.read(environ) == Limits(3600, 1_000_000, "::1")


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [
        (env.HEADER_TIMEOUT_S, "0", "from 1 to 3600"),
        (env.HEADER_TIMEOUT_S, "3601", "from 1 to 3600"),
        (env.HEADER_TIMEOUT_S, "1.5", "a whole number"),
        (env.HEADER_TIMEOUT_S, "\u00b2", "a whole number"),
        (env.CONNECTIONS_PER_ADDRESS, "-1", "from 0 to 1000000"),
        (env.CONNECTIONS_PER_ADDRESS, "1000001", "from 0 to 1000000"),
        (env.HAPROXY_ADMIN_HOST, "localhost", "an IP address"),
    ],
)
def test_what_is_out_of_bounds_is_named_with_its_value(name: str, value: str, bound: str) -> None:
    with pytest.raises(ValueError, match=bound) as error:
        Limits.read({name: value})

    assert str(error.value).startswith(f"{name} = {value!r}: ")
