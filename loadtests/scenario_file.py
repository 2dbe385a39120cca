"""Reading a scenario's file."""

from pathlib import Path

from pydantic import ValidationError

from loadtests.arrivals import ARRIVALS_TAGS
from loadtests.distributions import DISTRIBUTION_TAGS
from loadtests.scenario import Scenario
from serve_app.settings.document import parse_yaml, read_text
from serve_app.settings.settings_error import SettingsError, located

_TAGS = ARRIVALS_TAGS | DISTRIBUTION_TAGS


def read_scenario(path: Path) -> Scenario:
    """The scenario in `path`.

    Raises SettingsError for a file that cannot be read, and each key of it that is wrong or given twice, with
    its line.
    """
    document = parse_yaml(read_text(path), str(path))
    if not isinstance(document.value, dict):
        raise SettingsError([f"{path}: must be a mapping with the fields of a scenario"])
    try:
        return Scenario.model_validate(document.value)
    except ValidationError as error:
        problems = located(error, _TAGS)
        raise SettingsError(
            [f"{path}:{document.line(place)}: {problem}" for place, problem in problems]
        ) from None
