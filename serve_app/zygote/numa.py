"""The NUMA memory policy of a process, as `numactl` sets it: on which nodes its memory is allocated."""

import ctypes
import os

_CALLS = {"x86_64": (239, 238), "aarch64": (236, 237)}
"""Numbers of get_mempolicy(2) and set_mempolicy(2), by machine: the C library has no functions for them."""
_NODES = 1024
"""The most NUMA nodes that Linux can be built for."""
_Mask = ctypes.c_ulong * (_NODES // (8 * ctypes.sizeof(ctypes.c_ulong)))


def memory_policy() -> list[int]:
    """Return this process's mode and the words of its node mask; empty where the kernel does not tell."""
    mode, mask = ctypes.c_int(), _Mask()
    told = _call(0, ctypes.byref(mode), mask, ctypes.c_ulong(_NODES), None, ctypes.c_ulong(0))
    return [mode.value, *mask] if told else []


def set_memory_policy(policy: list[int]) -> None:
    """Give this process a policy of `memory_policy`. A container without SYS_NICE may forbid it."""
    if policy:
        _call(1, ctypes.c_int(policy[0]), _Mask(*policy[1:]), ctypes.c_ulong(_NODES))


def _call(which: int, *arguments: object) -> bool:
    numbers = _CALLS.get(os.uname().machine)
    return numbers is not None and ctypes.CDLL(None).syscall(numbers[which], *arguments) == 0
