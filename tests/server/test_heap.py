"""Freed memory stays in the heap, and libraries are only mapped where they are used."""

import os
import platform
import subprocess
import sys

import pytest

_PROGRAM = """
import ctypes, sys
from proxy.server.process import give_back, keep_freed
end_of_heap = ctypes.CDLL(None).sbrk
end_of_heap.restype = ctypes.c_void_p
if sys.argv[1] == "keep":
    keep_freed()
ends = []
for _ in range(20):
    pieces = [bytes(100_000) for _ in range(20)]
    ends.append(end_of_heap(0))
    del pieces
    ends.append(end_of_heap(0))
give_back()
print(sum(before != after for before, after in zip(ends, ends[1:])), ends[-1] - end_of_heap(0))
"""

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not glibc")


def _moves(how: str, **variables: str) -> tuple[int, int]:
    """Run a program that allocates memory.

    Return how often the end of its heap moved, and by how many bytes `give_back` made the heap smaller.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", _PROGRAM, how]
    done = subprocess.run(command, env=own | variables, capture_output=True, text=True, check=True)
    moves, given_back = map(int, done.stdout.split())
    return moves, given_back


def test_the_heap_stays_as_large_as_it_was_until_it_is_given_back() -> None:
    moves, given_back = _moves("keep")
    assert moves <= 1 < _moves("")[0]
    assert given_back > 1_000_000


def test_what_an_operator_asks_of_the_heap_counts() -> None:
    assert _moves("keep", MALLOC_TRIM_THRESHOLD_="100000")[0] > 1
