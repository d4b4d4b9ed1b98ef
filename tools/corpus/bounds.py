"""Bounds for untrusted programs that run in this process: time, memory, sizes of numbers.

Time is CPU time, bounded by a timer's signal, which stops Python code. Single operations that would
take long in C are refused by the sizes of their operands, or stopped by the bound of memory.
"""

import contextlib
import resource
import signal
import threading

MOST_CPU_S = 10.0
MOST_BYTES = 1 << 30
MOST_BITS = 1 << 16      # size of a number
MOST_REPEATED = 1 << 26  # characters of a text, or items of a list


class Exceeded(Exception):
    """Names the bound."""


@contextlib.contextmanager
def bounded():
    """Raises Exceeded or MemoryError in the code that runs within. Not reentrant."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals arrive in the main thread
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = _address_space() + MOST_BYTES
    previous = signal.signal(signal.SIGVTALRM, _stop)
    try:
        if before[0] == resource.RLIM_INFINITY or most < before[0]:
            resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
        signal.setitimer(signal.ITIMER_VIRTUAL, MOST_CPU_S, 0.1)  # repeated: code may swallow one
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGVTALRM, previous)


def _stop(*unused):
    raise Exceeded(f"it takes more than {MOST_CPU_S:.0f} s")


def _address_space():
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def check_operands(operator, left, right):
    """Checks the operands of * and ** before the operation."""
    if isinstance(left, int) and isinstance(right, int):
        bits = (left.bit_length() + right.bit_length() if operator == "*" else
                left.bit_length() * max(0, right))
        if bits > MOST_BITS:
            raise Exceeded(f"it computes a number of more than {MOST_BITS} bits")
    elif operator == "*":
        for repeated, count in ((left, right), (right, left)):
            if isinstance(count, int) and hasattr(repeated, "__len__") and (
                    len(repeated) * count > MOST_REPEATED):
                raise Exceeded(f"it repeats something to more than {MOST_REPEATED} items")
