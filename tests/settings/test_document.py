from pathlib import Path

import pytest
import yaml

from serve_app.settings.document import parse_yaml, read_text
from serve_app.settings.settings_error import SettingsError

PROJECT = Path(__file__).parents[2]
WRITTEN = sorted(
    path
    for pattern in ("config/*", "serve_app/**/*", "replay/**/*", "loadtests/**/*", "helm/**/*", "k8s/*",
                    "tools/**/*", "benchmarks/**/*")
    for path in PROJECT.glob(f"{pattern}.yaml")
    if not {"templates", "rules", "results"} & set(path.parts)  # Helm's templates are no YAML
)  # fmt: skip


def problems(text: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        parse_yaml(text, "f.yaml")
    return caught.value.problems


def test_a_repeated_key_is_refused_with_path_and_lines() -> None:
    text = "models:\n- name: a\n  knobs:\n    max_replicas: 3\n    # later\n    max_replicas: 1\n- name: b\n"

    assert problems(text) == ["f.yaml:6: models[0].knobs.max_replicas: given twice; line 4 has it first"]


def test_every_repeated_key_is_refused() -> None:
    assert problems("a: 1\nb: {c: 1, c: 2}\na: 2\na: 3\n") == [
        "f.yaml:2: b.c: given twice",
        "f.yaml:3: a: given twice; line 1 has it first",
        "f.yaml:4: a: given twice; line 1 has it first",
    ]


@pytest.mark.parametrize(
    "text", ["yes: 1\ntrue: 2", "1: a\n0x1: b", "a: 1\n'a': 2", "1: a\n1.0: b", "=: 1\n=: 2"]
)
def test_keys_that_read_as_equal_are_one_key(text: str) -> None:
    (line,) = problems(text)

    assert line.endswith("given twice; line 1 has it first")


def test_a_repeated_key_in_an_anchor_is_reported_once() -> None:
    assert problems("x: &x {a: 1, a: 2}\ny: *x\nz: {<<: *x}\n") == ["f.yaml:1: x.a: given twice"]


@pytest.mark.parametrize(
    "text",
    [
        "base: &b {a: 1, c: 3}\none: {<<: *b, a: 2}\n",
        "base: &b {a: 1}\nother: &o {a: 2}\none:\n  <<: [*b, *o]\n  c: 3\ntwo: *b\n",
        "one: &b {a: 1}\ntwo: &c {<<: *b, d: 2}\nthree: {<<: *c, a: 3}\n",
        "list: [{a: 1}, {a: 2}]\n",
        "1: number\n'1': text\n",
    ],
)
def test_merges_and_anchors_work_as_in_pyyaml(text: str) -> None:
    assert parse_yaml(text, "f").value == yaml.safe_load(text)


def test_a_line_is_that_of_the_effective_value() -> None:
    document = parse_yaml("b: &b\n  a: 1\n  c: 2\none:\n  <<: *b\n  a: 5\n", "f")

    assert document.line(["one", "a"]) == 6
    assert document.line(["one", "c"]) == 3
    assert document.line(["one", "d"]) == 4


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[" * 600, "f.yaml: nested too deeply"),
        ("n: !!int x", "f.yaml: not YAML: invalid literal"),
        *(
            (f"a: {text}", "f.yaml: not YAML: a value does not fit its tag")
            for text in ("!!bool x", "!!int ''", "{!!map x: 1}")
        ),
        ("a: 1\nb: \x00", "f.yaml: not YAML: unacceptable character"),
        ("a: 1\n---\nb: 2", "f.yaml:2: not YAML: expected a single document"),
        ("a: 1\n? [b]\n: 2", "f.yaml:2: not YAML: while constructing a mapping found unhashable key"),
        ("a: !!python/name:os.system", "f.yaml:1: not YAML: could not determine a constructor"),
    ],
)
def test_text_that_is_not_yaml_is_refused(text: str, told: str) -> None:
    (line,) = problems(text)

    assert line.startswith(told)


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(PROJECT)))
def test_no_file_of_the_project_repeats_a_key(path: Path) -> None:
    text = read_text(path)

    for document in text.split("\n---\n"):
        parse_yaml(document, str(path))
