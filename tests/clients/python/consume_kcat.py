"""The consumer program of kcat. It starts one kcat for each topic, or a single one for a group.

The tests run it as ``python -m tests.clients.python.consume_kcat KCAT ...``. KCAT is the path of kcat. The
further arguments are described in `tests.clients`. The program stops when it reads any line from stdin.
"""

import argparse
import hashlib
import json
import re
import signal
import subprocess
import sys
import threading
from typing import Any, BinaryIO, Final

FORMAT: Final = r"%t %p %o %T %K %S\n%k%s%h\x1e\x1d\n"
"""The output format of kcat: a line with topic, partition, offset, time and lengths, then key, value and
headers.

The headers end at the two separator characters.
"""
END: Final = b"\x1e\x1d\n"
NULL: Final = -1
HEADER: Final = re.compile(rb"([a-z]+)=(.*?)(?=,[a-z]+=|\Z)", re.DOTALL)
_printing = threading.Lock()


def emit(kind: str, **fields: Any) -> None:
    with _printing:
        sys.stdout.write(json.dumps({"kind": kind, **fields}) + "\n")
        sys.stdout.flush()


def _headers(told: bytes) -> list[tuple[str, str | None]]:
    return [
        (name.decode(), None if value == b"NULL" else value.hex()) for name, value in HEADER.findall(told)
    ]


def _record(head: bytes, stream: BinaryIO) -> None:
    topic, *numbers = head.split()
    partition, offset, timestamp, key_size, size = map(int, numbers)
    key = stream.read(max(key_size, 0))
    value = stream.read(max(size, 0))
    told = b""
    while not told.endswith(END):
        told += stream.readline()
    emit(
        "record",
        topic=topic.decode(),
        partition=partition,
        offset=offset,
        timestamp=timestamp,
        key=None if key_size == NULL else key.hex(),
        value=None if size == NULL else f"{size}:{hashlib.sha256(value).hexdigest()}",
        headers=_headers(told.removesuffix(END)),
    )


def hear(stream: BinaryIO) -> None:
    """Read records from kcat's output and print each as a JSON line."""
    while head := stream.readline():
        _record(head, stream)


def hear_errors(stream: BinaryIO) -> None:
    """Print kcat's errors as JSON lines. Copy all of kcat's messages to stderr."""
    for line in stream:
        text = line.decode().strip()
        if "ERROR" in text:
            emit("error", code="kcat", text=text)
        sys.stderr.write(text + "\n")


def main() -> int:
    """Start the kcat processes, and stop them when a line arrives on stdin."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kcat")
    for name in ("bootstrap", "assign", "subscribe", "group"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--isolation", default="read_uncommitted")
    parser.add_argument("--suffix", default="")
    given = parser.parse_args()
    settings = {
        "client.id": f"kcat{given.suffix}",
        "fetch.wait.max.ms": 100,
        "isolation.level": given.isolation,
        "auto.commit.interval.ms": 1000,
    }
    command = [given.kcat, "-q", "-u", "-b", given.bootstrap, "-f", FORMAT]
    for name, value in settings.items():
        command += ["-X", f"{name}={value}"]
    if given.group:
        ways = [["-X", "auto.offset.reset=earliest", "-G", given.group, *given.subscribe.split(",")]]
    else:
        topics = [item.partition(":")[0] for item in given.assign.split(",")]
        ways = [["-C", "-o", "beginning", "-t", topic] for topic in topics]
    told = subprocess.run([given.kcat, "-V"], capture_output=True, text=True, check=False).stdout
    (version,) = re.findall(r"Version ([\d.]+)", told)
    emit("start", client="kcat", version=version)
    processes = [
        subprocess.Popen([*command, *way], stdout=subprocess.PIPE, stderr=subprocess.PIPE) for way in ways
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stderr is not None
        threading.Thread(target=hear, args=(process.stdout,), daemon=True).start()
        threading.Thread(target=hear_errors, args=(process.stderr,), daemon=True).start()
    sys.stdin.readline()
    for process in processes:
        process.send_signal(signal.SIGTERM)
    codes = {process.wait(30) for process in processes}
    emit("end")
    # A kcat that has not got as far as to handle the signal dies of it.
    return max(abs(code) for code in codes - {-signal.SIGTERM} | {0})


if __name__ == "__main__":
    sys.exit(main())
