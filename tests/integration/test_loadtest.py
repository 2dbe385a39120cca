"""`tideserve loadtest` with a server of its own: from zero to two replicas and back, and judged."""

from tests.integration.there_and_back import MODEL, ThereAndBack


def test_a_cold_burst_is_held_scaled_for_answered_and_judged(there_and_back: ThereAndBack) -> None:
    done, log = there_and_back.done, there_and_back.log
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{log[-4000:]}"
    assert done.stdout.startswith("Passed: ")
    document = there_and_back.document
    outcomes = {request["outcome"] for request in document["requests"] if request["kind"] != "leaves"}
    assert outcomes == {"answered"}
    assert {r["outcome"] for r in document["requests"] if r["kind"] == "leaves"} == {"left"}
    held = [request for request in document["requests"] if request.get("cold_wait_s", 0) > 0.5]
    burst = [
        request for request in document["requests"] if request["at_s"] == 0 and request["kind"] != "leaves"
    ]
    assert len(burst) >= 4
    assert all(request in held for request in burst)
    assert any(phase for request in held for _, phase in request.get("phases", ()))
    [fleet] = document["summary"]["fleets"]
    assert fleet["peak_ready"] == 2
    assert {decision["model"] for decision in document["decisions"]} == {MODEL}
    report = (there_and_back.out / "report.html").read_text()
    assert "<svg" in report or "createElementNS" in report


def test_its_server_was_stopped_in_order_and_nothing_of_it_is_left(there_and_back: ThereAndBack) -> None:
    assert "stopped; 0 processes had to be killed" in there_and_back.log
