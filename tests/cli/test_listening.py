import socket
from pathlib import Path

import pytest

from serve_app.cli import listening
from serve_app.cli.config_file import read_config
from serve_app.cli.listening import (
    check_host,
    describe_listening,
    free_port,
    free_ports,
    port_taken,
    url_here,
)
from serve_app.settings import SettingsError

CONFIG = Path(__file__).parents[2] / "config" / "serve.yaml"


@pytest.mark.parametrize("path", sorted(CONFIG.parent.glob("*.yaml")), ids=lambda path: path.name)
def test_every_configuration_here_listens_on_this_machine_alone(path: Path) -> None:
    assert read_config(path).host == "127.0.0.1"


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("haproxy", [True, False])
def test_this_machine_and_every_interface_can_be_named(host: str, haproxy: bool) -> None:
    assert check_host("--host", host, haproxy=haproxy) == host


def test_localhost_is_its_address() -> None:
    assert check_host("--host", "localhost", haproxy=True) == "127.0.0.1"


@pytest.mark.parametrize("host", ["192.0.2.2", "127.0.0.2", "::1", "::"])
def test_one_interface_can_be_named_without_haproxy_only(host: str) -> None:
    assert check_host("--host", host, haproxy=False) == host
    with pytest.raises(SettingsError, match=f"--host = '{host}': must be 127.0.0.1 .* or 0.0.0.0"):
        check_host("--host", host, haproxy=True)


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


def test_on_this_machine_alone_nothing_is_warned_of() -> None:
    assert describe_listening(["tide"], "127.0.0.1", 8000) == [
        "listens on 127.0.0.1:8000; only this machine can connect; --host 0.0.0.0 opens it to others"
    ]


def test_open_without_keys_is_warned_of_in_plain_words() -> None:
    opened, warned = describe_listening(["tide"], "0.0.0.0", 8000)

    assert opened.startswith("listens on every network interface of this machine, port 8000; other machines")
    assert "not encrypted" in opened
    assert warned.startswith(
        "WARNING: no API keys: any program that can connect to port 8000 can use every model of"
    )


def test_open_with_keys_says_what_it_means_and_no_more() -> None:
    [line] = describe_listening([], "192.0.2.2", 8000)

    assert line.startswith("listens on 192.0.2.2, port 8000; other machines can connect")


def test_of_a_cluster_it_speaks_of_nodes() -> None:
    [closed] = describe_listening([], "127.0.0.1", 8000, local=False)
    [opened] = describe_listening([], "0.0.0.0", 8000, local=False)

    assert "only programs on the same node can connect;" in closed
    assert opened.startswith("listens on every network interface of every node, port 8000; ")


def test_port_is_taken_while_a_process_listens() -> None:
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        assert port_taken(port)
    assert not port_taken(port)


def test_free_ports_are_distinct_and_below_kernels_range() -> None:
    ports = free_ports(3)

    assert len(set(ports)) == 3
    kernel = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert max(ports) < int(kernel[0])


def test_a_free_port_can_be_listened_on() -> None:
    with socket.create_server(("", free_port())):
        pass


def test_too_few_free_ports_are_an_error(monkeypatch) -> None:
    monkeypatch.setattr(listening, "port_taken", lambda port: port != 22_001)

    with pytest.raises(SettingsError, match="only 1 of 2 ports are free from 22000 to 29999"):
        free_ports(2)
