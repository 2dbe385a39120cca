"""The policy under test, made to raise while a file exists."""

import os
from pathlib import Path

from serve_app.controller import decision_records
from serve_app.controller.serve_policy import ServePolicy
from serve_app.policy.decide import Decision
from serve_app.policy.reports import Snapshot
from serve_app.policy.state import PolicyState
from serve_app.wire.served_models import ServedModel

MARK = "TIDESERVE_TEST_POLICY_RAISES"
"""Names the file, in the environment of the cluster."""

decision_records.HEARTBEAT_S = 1.0  # tests wait for records


class RaisingPolicy(ServePolicy):
    """`ServePolicy`, except while the file is there."""

    def decide(
        self, model: ServedModel, snapshot: Snapshot, state: PolicyState, now: float
    ) -> tuple[Decision, PolicyState]:
        if Path(os.environ[MARK]).exists():
            raise RuntimeError("made to raise")
        return super().decide(model, snapshot, state, now)
