"""The documents name only what exists: links, anchors, files, make targets, modules, commands, options."""

import json
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from loadtests.scenario import read_scenario
from serve_app.cli.main import command_line, main
from tests.markdown import INLINE, LINK, anchors, blocks, commands, languages, prose, shell_commands

PROJECT = Path(__file__).parents[1]
_PLACES = ("*.md", "docs/**/*.md", "loadtests/*.md", "benchmarks/**/*.md", "helm/**/*.md", "k8s/*.md")
DOCUMENTS = sorted(
    path for pattern in _PLACES for path in PROJECT.glob(pattern) if "results" not in path.parts
)
_FOLDERS = (
    "benchmarks/", "config/", "docs/", "helm/", "k8s/", "loadtests/", "replay/", "requirements/",
    "serve_app/", "tests/", "tools/",
)  # fmt: skip
_WRITTEN = ("benchmarks/results/", "requirements/wheels")
"""What a command writes, or the reader puts there."""


def names(document: Path) -> str:
    return str(document.relative_to(PROJECT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=names)
def test_links_lead_somewhere(document: Path) -> None:
    broken = []
    for target in LINK.findall(prose(document)):
        if re.match(r"[a-z]+://", target):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=names)
def test_files_that_are_named_exist(document: Path) -> None:
    named = [
        name
        for name in INLINE.findall(prose(document))
        if name.startswith(_FOLDERS) and not name.startswith(_WRITTEN) and " " not in name
    ]
    places = (PROJECT, document.parent)
    assert [name for name in named if not any(any(p.glob(name.rstrip("/"))) for p in places)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=names)
def test_make_targets_and_modules_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text("utf-8"), re.MULTILINE))
    missing = []
    for command in commands(document):
        if (make := re.match(r"make ([a-z-]+)", command)) and make[1] not in targets:
            missing.append(command)
        module = re.search(r"python -m ((?:serve_app|loadtests|replay|benchmarks|tools)[\w.]*)", command)
        if module and find_spec(module[1]) is None:
            missing.append(command)
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=names)
def test_commands_and_their_options_exist(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = []
    for command in commands(document):
        said = re.match(r"(?:\.venv/bin/)?tideserve ([a-z-]+)\b(?! [|/])(.*)", command.partition(" # ")[0])
        if said is None:
            continue
        options = {option.partition("=")[0] for option in re.findall(r"(?<=\s)--[a-z-]+", said[2])}
        known = _options(said[1], capsys)
        if not known or options - known:
            unknown.append(command)
    assert unknown == []


_CLUSTER = "needs a Kubernetes cluster"
_IMAGES = "builds, signs or runs images of containers"
_OTHERS = {
    "apt": "installs packages of the system",
    "buildah": _IMAGES,
    "claude": "is a program of Anthropic",
    "cosign": _IMAGES,
    "docker": _IMAGES,
    "helm": _CLUSTER,
    "/kaniko/executor": _IMAGES,
    "kubectl": _CLUSTER,
    "oc": _CLUSTER,
    "open": "opens a browser",
    "openssl": "makes the certificates of a sample",
    "ray": "starts a cluster of several machines",
    "rsync": "copies from other nodes",
    "serve": "deploys to a cluster of several machines",
}
"""Programs whose commands no test reads, with the reason."""
_ALWAYS_THERE = {
    "base64",
    "curl",
    "echo",
    "eval",
    "export",
    "for",
    "grep",
    "head",
    "jq",
    "python",
    "ruff",
    "sed",
    "source",
    "tail",
}


@pytest.mark.parametrize("document", DOCUMENTS, ids=names)
def test_blocks_of_commands_are_whole(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text("utf-8"), re.MULTILINE))
    wrong = []
    for words in (words for block in blocks(document, "") for words in shell_commands(block)):
        program, *rest = words[1:] if words[0] == "sudo" else words
        program = program.removeprefix(".venv/bin/").removeprefix(".venv-gpu/bin/")
        missing = [
            word
            for word in re.split(r"[ =]", " ".join(rest))
            if word.startswith(_FOLDERS) and not (word.startswith(_WRITTEN) or (PROJECT / word).exists())
        ]
        if missing:
            wrong.append((words, missing))
        elif program == "tideserve":
            try:
                command_line().parse_args([word for word in rest if word != "…"])
            except SystemExit as end:
                if end.code:
                    wrong.append((words, [capsys.readouterr().err]))
        elif program == "make":
            if not targets.issuperset(word for word in rest if "=" not in word):
                wrong.append((words, ["no such target"]))
        elif program not in _OTHERS and program not in _ALWAYS_THERE:
            wrong.append((words, ["no test knows this program"]))
    assert wrong == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=names)
def test_a_page_says_where_its_bare_command_comes_from(document: Path) -> None:
    said, _, _ = document.read_text("utf-8").partition("\ntideserve ")
    for block in blocks(document, ""):
        if any(words[0] == "tideserve" for words in shell_commands(block)):
            assert "`source .venv/bin/activate` puts" in said


@pytest.mark.parametrize("document", DOCUMENTS, ids=names)
def test_each_block_has_a_language_that_is_checked(document: Path) -> None:
    outputs_and_others = {"text", "promql", "js"}  # output, an expression for Prometheus, code of a web page
    assert languages(document) <= {"", "yaml", "json", "toml", "python", *outputs_and_others}


_BELOW = {
    "keys": ("new", "check"),
    "knobs": ("set",),
    "batch": ("submit", "wait", "ls", "show", "cancel", "fetch"),
}


def _options(command: str, capsys: pytest.CaptureFixture[str]) -> frozenset[str]:
    """The options in the help of a command and of the commands below it; none if there is no such command."""
    found: set[str] = set()
    for words in ([command], *([command, below] for below in _BELOW.get(command, ()))):
        try:
            main([*words, "--help"])
        except SystemExit as end:
            if end.code:
                return frozenset()
        found |= set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    return frozenset(found)


def configurations() -> list[tuple[Path, str]]:
    """The blocks of YAML that are whole Serve configurations."""
    return [(path, block) for path in DOCUMENTS for block in blocks(path, "yaml") if "import_path:" in block]


def test_the_documents_have_a_configuration() -> None:
    assert PROJECT / "README.md" in [document for document, _ in configurations()]


@pytest.mark.parametrize(("document", "block"), configurations(), ids=lambda each: Path(each).name[:20])
def test_configurations_are_valid_on_two_cores(document: Path, block: str, tmp_path: Path) -> None:
    (tmp_path / "serve.yaml").write_text(block)
    assert main(["check", "--cpus", "2", str(tmp_path / "serve.yaml")]) == 0


@pytest.mark.parametrize("document", DOCUMENTS, ids=names)
def test_blocks_of_data_can_be_read(document: Path) -> None:
    for block in blocks(document, "yaml"):
        assert isinstance(yaml.safe_load(block), dict)
    for block in blocks(document, "json"):
        assert isinstance(json.loads(block), dict)
    for block in blocks(document, "toml"):
        assert tomllib.loads(block)
    for block in blocks(document, "python"):
        compile(block, str(document), "exec")


def test_the_samples_of_keys_are_valid(tmp_path: Path) -> None:
    samples = [block for block in blocks(PROJECT / "docs/api.md", "yaml") if block.startswith("keys:")]
    assert len(samples) == 2
    for sample in samples:
        (tmp_path / "keys.yaml").write_text(sample)
        assert main(["keys", "check", str(tmp_path / "keys.yaml")]) == 0


def test_scenarios_in_the_documents_are_valid(tmp_path: Path) -> None:
    samples = blocks(PROJECT / "loadtests/README.md", "yaml")
    assert len(samples) >= 2
    for number, sample in enumerate(samples):
        path = tmp_path / f"{number}.yaml"
        path.write_text(sample)
        read_scenario(path)
