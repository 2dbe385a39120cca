"""Read YAML and JSON that people write. A repeated key is an error here; PyYAML and json ignore it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from serve_app.settings.settings_error import SettingsError, dotted, shown

_SPECIAL = ("tag:yaml.org,2002:merge", "tag:yaml.org,2002:value")


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML document as plain data, with the lines of its parts."""

    value: Any
    node: yaml.Node | None

    def line(self, location: Sequence[int | str]) -> int:
        """Return the line of the deepest part of `location` that is in the document."""
        node = self.node
        line = 1 if node is None else node.start_mark.line + 1
        for part in location:
            if isinstance(node, yaml.MappingNode):
                # `<<` merges in front of a mapping's own keys, which override it.
                pairs = reversed(node.value)
                found = next(((key, value) for key, value in pairs if key.value == str(part)), None)
                if found is not None:
                    line, node = found[0].start_mark.line + 1, found[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = node.start_mark.line + 1
        return line


def read_text(path: Path) -> str:
    """Return the text of a file. Raises SettingsError if it cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError([f"{path}: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise SettingsError([f"{path}: not UTF-8: {error}"]) from None


def parse_yaml(
    text: str, where: str, loader_class: type[yaml.SafeLoader] = yaml.SafeLoader, *, numbered: bool = True
) -> Document:
    """Return the YAML document in `text`. Errors call it `where`, with line numbers if `numbered`.

    Raises:
        SettingsError: the text is not YAML, or a mapping has a key more than once.
    """

    def place(mark: yaml.Mark | None) -> str:
        return where if mark is None or not numbered else f"{where}:{mark.line + 1}"

    try:
        loader = loader_class(text)
        node = loader.get_single_node()
        if node is None:
            return Document(None, None)
        problems = [
            f"{place(again)}: {dotted(path)}: given twice"
            + ("" if first.line == again.line else f"; line {first.line + 1} has it first")
            for path, first, again in _repeated_keys(loader, node, set(), ())
        ]
        if problems:
            raise SettingsError(problems)
        return Document(loader.construct_document(node), node)
    except yaml.MarkedYAMLError as error:
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise SettingsError([f"{place(error.problem_mark)}: not YAML: {problem}"]) from None
    except yaml.YAMLError as error:
        raise SettingsError([f"{where}: not YAML: {' '.join(str(error).split())}"]) from None
    except RecursionError:
        raise SettingsError([f"{where}: nested too deeply"]) from None
    except SettingsError:
        raise
    except ValueError as error:  # a date such as 2026-13-01, or `!!int x`
        raise SettingsError([f"{where}: not YAML: {error}"]) from None
    except Exception as error:  # PyYAML has an AttributeError for `!!timestamp x`, a KeyError for `!!bool x`
        problem = f"a value does not fit its tag: {error!r}"
        raise SettingsError([f"{where}: not YAML: {problem}"]) from None


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, for json's `object_pairs_hook`. Raises ValueError if it has a key twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key}: given twice, as {shown(found[key])} and as {shown(value)}")
        found[key] = value
    return found


def _repeated_keys(
    loader: yaml.SafeLoader, node: yaml.Node, seen: set[int], path: tuple[int | str, ...]
) -> Iterator[tuple[tuple[int | str, ...], yaml.Mark, yaml.Mark]]:
    """Yield the path of each repeated key in `node`, and the places of the first and the repeated one."""
    if id(node) in seen:  # an alias is the node of its anchor
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, entry in enumerate(node.value):
            yield from _repeated_keys(loader, entry, seen, (*path, index))
    elif isinstance(node, yaml.MappingNode):
        marks: dict[Any, yaml.Mark] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):  # refused where the mapping is made
                continue
            # `<<` and `=` have no value of their own. Others are one key if they are equal: `1` and `0x1`.
            special = key_node.tag in _SPECIAL
            key = (key_node.tag, key_node.value) if special else loader.construct_object(key_node)
            place = (*path, key_node.value)
            if key in marks:
                yield place, marks[key], key_node.start_mark
            else:
                marks[key] = key_node.start_mark
            yield from _repeated_keys(loader, value_node, seen, place)
