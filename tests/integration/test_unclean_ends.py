"""A Ctrl-C that leaves nothing behind.

The last of the tests of this application in their order: it ends here.
"""

import psutil

from tests.integration.cluster import Running


def test_ctrl_c_leaves_no_process_behind(app: Running) -> None:
    started = app.descendants()
    assert len(started) > 5
    assert app.stop() == 0
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []
    assert "0 processes had to be killed" in app.log
