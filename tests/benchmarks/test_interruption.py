"""A benchmark ends by any of the usual signals, also where a shell has it ignore Ctrl-C."""

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import signal
from benchmarks.common.interruption import end_on_signals

signal.signal(signal.SIGINT, signal.SIG_IGN)
end_on_signals()
try:
    print("begun", flush=True)
    signal.pause()
except KeyboardInterrupt:
    print("ended in order")
"""


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_a_keyboard_interrupt(which: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "begun\n"
        running.send_signal(which)
        assert running.communicate(timeout=60)[0].splitlines()[-1] == "ended in order"
