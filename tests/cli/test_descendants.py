from __future__ import annotations

import os

from serve_app.cli.descendants import reap_orphans


def ended_child() -> int:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


def test_processes_that_have_ended_are_taken_leave_of_and_the_server_is_left_to_who_waits_for_it() -> None:
    adopted, server = ended_child(), ended_child()

    reap_orphans(server)

    assert not os.path.exists(f"/proc/{adopted}")
    assert os.waitpid(server, 0) == (server, 0)
