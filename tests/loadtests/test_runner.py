"""What ends a run early."""

import asyncio
import signal

import pytest

from loadtests.runner import stop_on_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_the_first_signal_ends_the_run_and_the_second_is_pythons(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    stopping = asyncio.Event()
    try:
        with stop_on_signals(stopping):
            signal.raise_signal(number)
            await asyncio.wait_for(stopping.wait(), 5)
            assert signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)
    finally:
        signal.signal(number, before)


async def test_under_nohup_a_closed_terminal_is_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals(asyncio.Event()):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
