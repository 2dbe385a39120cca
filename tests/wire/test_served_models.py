import json
from typing import Any

import pytest
from pydantic import ValidationError

from serve_app.settings.knobs import IngressKnobs, Knobs
from serve_app.settings.telemetry import TraceSettings
from serve_app.wire.served_models import ServedApplication, ServedModel, read_served

SERVED = ServedApplication(
    {
        "Engine-a": ServedModel("a", "Engine-a", Knobs(max_replicas=4), {"GPU": 1.0}, "a 7B on 1 x A100"),
        "Engine-b": ServedModel("b/instruct", "Engine-b", Knobs(mode="advise")),
    },
    IngressKnobs(max_replicas=7),
    "autoscaling['a'].headroom = -1: too small",
    {"CPU": 0.5},
    zygote=False,
    model_preemption=True,
    traces=TraceSettings(enabled=True, endpoint="http://collector:4317"),
)


def test_what_is_served_comes_back_from_json_as_it_was() -> None:
    assert read_served(json.loads(json.dumps(SERVED.document(at=1.0)))) == SERVED


def test_a_document_with_knobs_that_are_none_is_refused() -> None:
    document: dict[str, Any] = json.loads(json.dumps(SERVED.document(at=1.0)))
    document["models"][0]["knobs"]["max_replicas"] = 0

    with pytest.raises(ValidationError, match="max_replicas"):
        read_served(document)


@pytest.mark.parametrize("key", ["models", "ingress", "rejected"])
def test_a_document_without_one_of_its_parts_is_refused(key: str) -> None:
    document = SERVED.document(at=1.0)
    del document[key]

    with pytest.raises(KeyError, match=key):
        read_served(document)


def test_document_without_identities_is_read() -> None:
    document: dict[str, Any] = json.loads(json.dumps(SERVED.document(at=1.0)))
    del document["traces"]
    for model in document["models"]:
        del model["identity"]

    assert [model.identity for model in read_served(document).models.values()] == ["", ""]
