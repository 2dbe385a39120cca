from __future__ import annotations

import socket
from pathlib import Path

import pytest
import yaml

from serve_app.cli.config_file import read_config
from serve_app.cli.listening import check_host, free_port, given_host, meaning, port_taken, url_here
from serve_app.settings import AppSettings, SettingsError

CONFIG = Path(__file__).parents[2] / "config" / "serve.yaml"


def configuration(tmp_path: Path, keys: str | None = None) -> dict[str, AppSettings]:
    document = yaml.safe_load(CONFIG.read_text())
    if keys is not None:
        document["applications"][0]["args"]["http"] = {"api_keys_file": keys}
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(document))
    return read_config(path).applications


@pytest.mark.parametrize("path", sorted(CONFIG.parent.glob("*.yaml")), ids=lambda path: path.name)
def test_every_configuration_here_listens_on_this_machine_alone(path: Path) -> None:
    assert given_host(yaml.safe_load(path.read_text())) == "127.0.0.1"


def test_a_configuration_may_name_no_host() -> None:
    assert given_host({}) is None
    assert given_host({"http_options": None}) is None
    assert given_host({"http_options": {"port": 8000}}) is None


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


def test_on_this_machine_alone_nothing_is_warned_of(tmp_path: Path) -> None:
    assert meaning(configuration(tmp_path), "127.0.0.1", 8000) == [
        "listens on 127.0.0.1:8000; only this machine can connect; --host 0.0.0.0 opens it to others"
    ]


def test_open_without_keys_is_warned_of_in_plain_words(tmp_path: Path) -> None:
    opened, warned = meaning(configuration(tmp_path), "0.0.0.0", 8000)

    assert opened.startswith("listens on every network interface of this machine, port 8000; other machines")
    assert "not encrypted" in opened
    assert warned.startswith(
        "WARNING: no API keys: any program that can connect to port 8000 can use every model of"
    )


def test_open_with_keys_says_what_it_means_and_no_more(tmp_path: Path) -> None:
    [line] = meaning(configuration(tmp_path, "/run/keys"), "192.0.2.2", 8000)

    assert line.startswith("listens on 192.0.2.2, port 8000; other machines can connect")


def test_of_a_cluster_it_speaks_of_nodes(tmp_path: Path) -> None:
    config = configuration(tmp_path, "/run/keys")

    [closed] = meaning(config, "127.0.0.1", 8000, local=False)
    [opened] = meaning(config, "0.0.0.0", 8000, local=False)

    assert "only programs on the same node can connect;" in closed
    assert opened.startswith("listens on every network interface of every node, port 8000; ")


def test_a_port_somebody_listens_on_is_taken_and_a_free_one_is_not() -> None:
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        assert port_taken(port)
    assert not port_taken(port)


def test_a_free_port_can_be_listened_on() -> None:
    with socket.create_server(("", free_port())):
        pass
