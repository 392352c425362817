"""What is free again is kept for the next read."""

import platform
import subprocess
import sys

import pytest

_PROGRAM = """
import ctypes, sys
from proxy.heap import keep_freed
end_of_heap = ctypes.CDLL(None).sbrk
end_of_heap.restype = ctypes.c_void_p
if sys.argv[1] == "kept":
    keep_freed()
ends = []
for _ in range(20):
    pieces = [bytes(100_000) for _ in range(20)]
    ends.append(end_of_heap(0))
    del pieces
    ends.append(end_of_heap(0))
print(sum(before != after for before, after in zip(ends, ends[1:])))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not glibc")
@pytest.mark.parametrize(("how", "moves"), [("kept", range(2)), ("as it is", range(20, 40))])
def test_the_heap_stays_as_large_as_it_was(how: str, moves: range) -> None:
    told = subprocess.run([sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, check=True)
    assert int(told.stdout) in moves
