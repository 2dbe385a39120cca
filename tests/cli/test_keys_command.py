from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from serve_app.cli.main import main
from serve_app.settings.caller import Caller
from serve_app.settings.keys_file import parse_keys
from tests.cli.test_check import document


def test_new_key_opens_the_entry_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--lane interactive --weight 2.5 --tokens-per-minute 60000 --requests-per-minute 60"
    more = (
        "--concurrent-requests 8 --model qwen-* --model org/embed --expires 2027-01-31T00:00:00+01:00 --admin"
        " --metadata team=shop --metadata note=a=b"
    )
    assert main(["keys", "new", "web-shop", *options.split(), *more.split()]) == 0

    out, err = capsys.readouterr()
    (key,) = parse_keys(f"keys:\n{out}".encode()).keys
    secret = err.split()[-1]
    assert secret.startswith("sk-tide-")
    assert len(secret) == 8 + 43
    assert key.digest == sha256(secret.encode()).digest()
    assert secret not in out
    assert key.caller == Caller("web-shop", "interactive", 2.5)
    assert (key.tokens_per_minute, key.requests_per_minute, key.concurrent_requests) == (60_000, 60, 8)
    assert key.models == ("qwen-*", "org/embed")
    assert key.metadata == {"team": "shop", "note": "a=b"}
    assert key.admin
    assert not key.work_conserving


def test_entry_has_only_fields_that_differ_from_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", "web"]) == 0
    (entry,) = yaml.safe_load(capsys.readouterr().out)
    assert set(entry) == {"name", "hash"}


def test_two_keys_differ(capsys: pytest.CaptureFixture[str]) -> None:
    main(["keys", "new", "a"])
    main(["keys", "new", "a"])
    first, second = capsys.readouterr().err.splitlines()
    assert first != second


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["a b"], "name = 'a b': string should match pattern"),
        (["a", "--weight", "0"], "weight = '0': input should be greater than or equal to 0.001"),
        (["a", "--expires", "soon"], "expires = 'soon': "),
        (["a", "--tokens-per-minute", "many"], "tokens_per_minute = 'many': "),
    ],
)
def test_invalid_options_are_refused(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "new", *arguments]) == 2
    assert problem in capsys.readouterr().err


FILE = f"""
keys:
  - {{name: web, key: sk-web}}
  - {{name: old, hash: "sha256:{1:064x}", expires: "2020-01-01T00:00:00Z"}}
"""


def test_metadata_has_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["keys", "new", "a", "--metadata", "team"])
    assert "--metadata: 'team': must be NAME=TEXT" in capsys.readouterr().err


def test_check_names_plain_and_expired_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(FILE)
    assert main(["keys", "check", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: 2 keys; expired: old; in plain text: web\n"


def test_check_refuses_an_invalid_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(FILE.replace("old", "web"))
    assert main(["keys", "check", str(path)]) == 2
    assert f"{path}: keys[1] has the name of keys[0] again" in capsys.readouterr().err
    assert main(["keys", "check", str(tmp_path / "missing")]) == 2
    assert "missing: No such file or directory" in capsys.readouterr().err


def test_check_of_a_configuration_checks_its_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys, config = tmp_path / "keys.yaml", tmp_path / "serve.yaml"
    application = yaml.safe_load(document("{name: a, device: cpu}"))
    application["applications"][0]["args"]["http"] = {"api_keys_file": str(keys)}
    config.write_text(yaml.safe_dump(application))

    assert main(["check", str(config)]) == 0
    assert f"  API keys: {keys} is not on this machine, and was not checked\n" in capsys.readouterr().out
    keys.write_text(FILE)
    assert main(["check", str(config)]) == 0
    assert "  API keys: 2 keys; expired: old; in plain text: web\n" in capsys.readouterr().out
    keys.write_text("keys: []")
    assert main(["check", str(config)]) == 2
    assert f"{keys}: keys: tuple should have at least 1 item" in capsys.readouterr().err
