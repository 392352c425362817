"""Tests of processes of the gateway's own user, whose traffic transparent mode does not redirect."""

import os
from pathlib import Path

import pytest

from proxy.server import bypass
from proxy.server.bypass import passing_by

GATEWAY = b"python\0-m\0proxy\0proxy\0--transparent\0redirect\0"


class Proc:
    """A folder like /proc, with the gateway and its parent processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.add(1, name="init", parent=0, user=0)
        self.add(7, name="shell", parent=1)
        self.add(os.getpid(), name="python", parent=7, command=GATEWAY)

    def add(
        self,
        number: int,
        *,
        name: str,
        parent: int = 1,
        user: int = 61092,
        command: bytes = b"java\0Consumer\0",
        network: str = "net:[1]",
    ) -> Path:
        folder = self.folder / str(number)
        (folder / "ns").mkdir(parents=True)
        uids = f"{user}\t{user}\t{user}\t{user}"
        status = f"Name:\t{name}\nState:\tS (sleeping)\nPPid:\t{parent}\nUid:\t{uids}\nGid:\t0\n"
        (folder / "status").write_text(status)
        (folder / "cmdline").write_bytes(command)
        (folder / "ns" / "net").symlink_to(network)
        return folder


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    (tmp_path / "self").mkdir()
    return Proc(tmp_path)


def test_the_gateway_and_what_started_it_pass_by_nothing(proc: Proc) -> None:
    assert passing_by(proc.folder) == ""


def test_a_process_of_the_same_user_is_named(proc: Proc) -> None:
    proc.add(80, name="java")
    assert passing_by(proc.folder) == (
        "the gateway's user 61092 also runs java (80); the rules do not redirect their connections;"
        " give the gateway a user of its own"
    )


def test_many_are_counted(proc: Proc) -> None:
    for number in range(80, 88):
        proc.add(number, name="java")
    assert " and 3 more; the rules" in passing_by(proc.folder)


def test_other_users_networks_and_gateways_are_left_out(proc: Proc) -> None:
    proc.add(80, name="other", user=1000)
    proc.add(81, name="elsewhere", network="net:[2]")
    proc.add(82, name="python", command=GATEWAY)
    proc.add(85, name="python", command=b"python\0-m\0proxy\0proxy\0--check\0")
    proc.add(86, name="python", command=b"python\0-m\0proxy\0top\0")
    proc.add(83, name="kworker", command=b"")
    assert passing_by(proc.folder) == ""


def test_what_ends_meanwhile_is_left_out(proc: Proc) -> None:
    (proc.add(80, name="java") / "cmdline").unlink()
    (proc.folder / "81").mkdir()
    assert passing_by(proc.folder) == ""


def test_so_many_are_looked_at_and_no_more(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bypass, "MAX_SCANNED", 0)
    proc.add(80, name="java")
    assert passing_by(proc.folder) == ""


def test_without_proc_nothing_is_said(tmp_path: Path) -> None:
    assert passing_by(tmp_path) == ""
