import socket
from pathlib import Path

import pytest

from serve_app.cli import listening
from serve_app.cli.listening import (
    check_host,
    describe_listening,
    free_port,
    free_ports,
    port_taken,
    url_here,
)
from serve_app.settings.settings_error import SettingsError

BOTH, WITHOUT_HAPROXY = (True, False), (False,)


@pytest.mark.parametrize(
    ("given", "address", "proxies"),
    [
        ("127.0.0.1", "127.0.0.1", BOTH),
        ("localhost", "127.0.0.1", BOTH),
        ("0.0.0.0", "0.0.0.0", BOTH),
        *((host, host, WITHOUT_HAPROXY) for host in ("192.0.2.2", "127.0.0.2", "::1", "::")),
    ],
)
def test_haproxy_takes_this_machine_or_every_interface(
    given: str, address: str, proxies: tuple[bool, ...]
) -> None:
    for haproxy in proxies:
        assert check_host("--host", given, haproxy=haproxy) == address
    if True not in proxies:
        with pytest.raises(SettingsError, match=f"--host = '{given}': must be 127.0.0.1 .* or 0.0.0.0"):
            check_host("--host", given, haproxy=True)


@pytest.mark.parametrize("host", ["example.com", "", "127.0.0.1:8000", "*"])
def test_what_is_no_address_is_refused(host: str) -> None:
    with pytest.raises(SettingsError, match=r"http_options.host = .*: must be an IP address"):
        check_host("http_options.host", host, haproxy=False)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://127.0.0.1:8000"),
        ("192.0.2.2", "http://192.0.2.2:8000"),
        ("::1", "http://[::1]:8000"),
    ],
)
def test_it_is_asked_where_it_listens(host: str, url: str) -> None:
    assert url_here(host, 8000) == url


@pytest.mark.parametrize(
    ("keyless", "host", "local", "starts"),
    [
        (["tide"], "127.0.0.1", True, ["listens on 127.0.0.1:8000; only this machine can connect; --host"]),
        ([], "127.0.0.1", False, ["listens on 127.0.0.1:8000; only programs on the same node can connect;"]),
        (
            ["tide"],
            "0.0.0.0",
            True,
            [
                "listens on every network interface of this machine, port 8000; other machines can connect",
                "WARNING: no API keys: any program that can connect to port 8000 can use every model of",
            ],
        ),
        ([], "0.0.0.0", False, ["listens on every network interface of every node, port 8000; other"]),
        ([], "192.0.2.2", True, ["listens on 192.0.2.2, port 8000; other machines can connect"]),
    ],
)
def test_listening_is_described_with_its_risks(
    keyless: list[str], host: str, local: bool, starts: list[str]
) -> None:
    lines = describe_listening(keyless, host, 8000, local=local)

    assert [line[: len(start)] for line, start in zip(lines, starts, strict=True)] == starts


def test_port_is_taken_while_a_process_listens() -> None:
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        assert port_taken(port)
    assert not port_taken(port)


def test_free_ports_are_distinct_and_below_kernels_range() -> None:
    ports = free_ports(3)

    assert len(set(ports)) == 3
    with socket.create_server(("", free_port())):
        pass
    kernel = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert max(ports) < int(kernel[0])


def test_too_few_free_ports_are_an_error(monkeypatch) -> None:
    monkeypatch.setattr(listening, "port_taken", lambda port: port != 22_001)

    with pytest.raises(SettingsError, match="only 1 of 2 ports are free from 22000 to 29999"):
        free_ports(2)
