"""The zygote that a start without one has for itself."""

import os
from pathlib import Path

import psutil

from serve_app import env
from serve_app.zygote.own import own_zygote
from tests.zygote.conftest import MARK, Start, wait_for


def test_what_is_started_meanwhile_is_forked_and_outlives_the_zygote(python: Start) -> None:
    with own_zygote(MARK):
        socket = os.environ[env.ZYGOTE_SOCKET]
        wait_for(Path(socket))
        program = (
            f"import os, sys; print(os.getppid(), {MARK!r} in sys.modules, flush=True); input(); print('on')"
        )
        process = python("-c", program, socket=socket)
        assert process.stdout is not None
        zygote, forked = process.stdout.readline().split()
    assert forked == "True"
    assert not psutil.pid_exists(int(zygote))
    assert env.ZYGOTE_SOCKET not in os.environ
    assert not os.path.exists(socket)
    assert process.communicate("\n", timeout=60)[0].strip() == "on"
