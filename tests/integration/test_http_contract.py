"""The forms of an HTTP request through HAProxy. `test_other_ways` has them through Ray's own proxy."""

import pytest

from tests.integration.cluster import Running
from tests.integration.conftest import CHAT
from tests.integration.http_contract import Case, cases, send


@pytest.mark.parametrize("case", cases(CHAT), ids=lambda case: case.name)
def test_form_of_a_request_reaches_the_ingress(app: Running, case: Case) -> None:
    status, answer = send(app.port, case)
    assert (status, (answer.get("error") or {}).get("code")) == (case.status, case.code)
