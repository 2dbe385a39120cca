import asyncio

import pytest

from serve_app.wire.documents import NAMESPACE
from serve_app.wire.ingress_reports import (
    IngressReport,
    forget_report,
    keep_report,
    publish_report,
    read_reports,
)
from tests.stub_kv import StubKv


def test_report_is_read_as_written_until_forgotten(kv: StubKv) -> None:
    publish_report("shop", "i1", {"Engine-a:held_requests": 9.0}, 100.0)
    publish_report("shop", "i1", {"Engine-a:held_requests": 8.0}, 100.5, ["00-a-b-01"])
    publish_report("shop", "i2", {"Engine-a:held_requests": 1.0}, 100.0)
    publish_report("another", "i1", {}, 100.0)

    assert read_reports("shop") == {
        "i1": IngressReport(100.5, {"Engine-a:held_requests": 8.0}, ("00-a-b-01",)),
        "i2": IngressReport(100.0, {"Engine-a:held_requests": 1.0}),
    }
    forget_report("shop", "i1")
    assert set(read_reports("shop")) == {"i2"}


@pytest.mark.parametrize(
    "document",
    [
        b"\x00",
        b"[]",
        b"{}",
        b'{"at": "soon", "values": {}}',
        b'{"at": 1, "values": {"a": "b"}}',
        b'{"at": NaN}',
    ],
)
def test_unreadable_report_is_left_out(kv: StubKv, document: bytes) -> None:
    publish_report("shop", "i1", {}, 100.0)
    kv._internal_kv_put("ingress/shop/i0", document, overwrite=True, namespace=NAMESPACE)

    assert set(read_reports("shop")) == {"i1"}


async def turns(kv: StubKv, count: int) -> None:
    """Until so many more reports have been written."""
    enough = len(kv.written) + count
    async with asyncio.timeout(10):
        while len(kv.written) < enough:
            await asyncio.sleep(0)


async def test_a_replica_reports_for_as_long_as_it_holds_requests(
    kv: StubKv, caplog: pytest.LogCaptureFixture
) -> None:
    held = 3
    keeping = asyncio.create_task(
        keep_report("shop", "i1", lambda: held > 0, lambda: {"held": float(held)}, interval_s=0.0)
    )
    await turns(kv, 2)
    assert read_reports("shop")["i1"].values == {"held": 3.0}

    kv.fails = ConnectionError("no GCS")  # which costs a warning, and no more
    async with asyncio.timeout(10):
        while not caplog.records:
            await asyncio.sleep(0)
    kv.fails = None
    await turns(kv, 2)

    held = 0
    async with asyncio.timeout(10):
        while read_reports("shop"):
            await asyncio.sleep(0)
    assert [record.message for record in caplog.records] == [
        "the report of queued requests cannot be written"
    ]
    keeping.cancel()
