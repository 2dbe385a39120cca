"""Whether the files that Ray's TLS is given would do, before Ray is started with them."""

from pathlib import Path

import pytest

from serve_app.wire.tls import check_tls
from tests.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


def test_valid_files_and_no_tls_pass_the_check(authority: Authority) -> None:
    check_tls(authority.variables(), "127.0.0.1")
    check_tls({**authority.variables("127.0.0.2"), "RAY_USE_TLS": "0"}, "127.0.0.1")
    check_tls({}, "127.0.0.1")


def test_a_certificate_for_another_address_is_refused(authority: Authority) -> None:
    with pytest.raises(OSError, match=r"RAY_TLS_SERVER_CERT = .* refuse each other at 127.0.0.1: .*mismatch"):
        check_tls(authority.variables("127.0.0.2"), "127.0.0.1")


def test_a_certificate_of_another_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    theirs = Authority(tmp_path / "theirs").variables()["RAY_TLS_CA_CERT"]

    with pytest.raises(OSError, match=r"RAY_TLS_CA_CERT = .* refuse each other .*certificate"):
        check_tls({**authority.variables(), "RAY_TLS_CA_CERT": theirs}, "127.0.0.1")


def test_a_missing_file_is_named(authority: Authority) -> None:
    with pytest.raises(OSError, match="RAY_TLS_SERVER_KEY = '': no such file; RAY_USE_TLS is set"):
        check_tls({**authority.variables(), "RAY_TLS_SERVER_KEY": ""}, "127.0.0.1")
