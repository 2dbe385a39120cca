import json
from dataclasses import replace

import pytest

from serve_app.wire.batches import NO_BATCHES, BatchBacklog, backlogs_document, parse_backlogs

LEFT = BatchBacklog(2, 30, 4, 2000, 1.5, ((10, 5.0), (20, 9.0)), 1, None)


def test_a_document_has_all_that_is_left() -> None:
    document = json.loads(json.dumps(backlogs_document({"tide": LEFT, "none": NO_BATCHES}, 7.0)))

    assert parse_backlogs(document) == (7.0, {"tide": LEFT, "none": NO_BATCHES})


@pytest.mark.parametrize(
    "broken", [{"at": 1.0}, {"models": {}}, {"at": 1.0, "models": {"tide": {"lines": "many"}}}]
)
def test_a_document_of_another_kind_is_refused(broken: object) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        parse_backlogs(broken)


def test_a_rate_may_be_unknown() -> None:
    unknown = replace(LEFT, lines_per_s=None)

    assert parse_backlogs(backlogs_document({"tide": unknown}, 0.0))[1] == {"tide": unknown}
