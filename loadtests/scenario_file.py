"""Reading a scenario's file."""

from pathlib import Path

import yaml
from pydantic import ValidationError

from loadtests.arrivals import ARRIVALS_TAGS
from loadtests.distributions import DISTRIBUTION_TAGS
from loadtests.scenario import Scenario
from serve_app.settings.settings_error import SettingsError, located

_TAGS = ARRIVALS_TAGS | DISTRIBUTION_TAGS


def read_scenario(path: Path) -> Scenario:
    """The scenario in `path`.

    Raises SettingsError for a file that cannot be read, and each key of it that is wrong, with its line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError([f"{path}: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise SettingsError([f"{path}: not UTF-8: {error}"]) from None
    try:
        document = yaml.safe_load(text)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise SettingsError([f"{place}: not YAML: {getattr(error, 'problem', None) or error}"]) from None
    if not isinstance(document, dict):
        raise SettingsError([f"{path}: must be a mapping with the fields of a scenario"])
    try:
        return Scenario.model_validate(document)
    except ValidationError as error:
        problems = located(error, _TAGS)
        raise SettingsError(
            [f"{path}:{_line(node, place)}: {problem}" for place, problem in problems]
        ) from None


def _line(node: yaml.Node | None, location: tuple[int | str, ...]) -> int:
    """The line of the deepest part of `location` that stands in the file."""
    line = 1 if node is None else node.start_mark.line + 1
    for part in location:
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == str(part)), None)
            if found is not None:
                line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
    return line
