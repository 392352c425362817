"""The gateways that ``fetchgate top --admin`` names: addresses, lists, pods."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from proxy.__main__ import main
from proxy.addresses import Address
from proxy.command.config import TOP_OPTIONS, read
from proxy.dashboard.gateways import Gateways
from tests.dashboard.test_pods import listed, pod, sidecar


def asked(*admin: str, **more: str) -> Gateways:
    """Return the gateways of a command line."""
    flags = {"admin": admin} if admin else {}
    return Gateways.of(read(TOP_OPTIONS, {**flags, **more}, {}, None))


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Any:
    def give(text: str | bytes) -> None:
        body = text if isinstance(text, bytes) else text.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(body)))

    return give


def test_one_address_is_one_gateway() -> None:
    for given, shown in ((), "127.0.0.1:9464"), ((":9000",), "127.0.0.1:9000"), (("a:1", "a:1"), "a:1"):
        gateways = asked(*given)
        assert str(gateways.single) == shown
        assert [one.name for one in gateways.members] == [shown]


def test_several_addresses_are_a_table_each_with_its_own_tls_and_the_token_of_all(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    gateways = asked("a:1", "https://b:2", "a:1", admin_token_file=str(token))
    assert gateways.single is None
    assert [one.name for one in gateways.members] == ["a:1", "https://b:2"]
    first, second = (one.reader for one in gateways.members)
    assert first
    assert second
    assert (first.tls is None, second.tls is None) == (True, False)
    assert first.token == second.token == "s3cret"


def test_a_file_has_an_address_a_line(tmp_path: Path) -> None:
    file = tmp_path / "gates"
    file.write_text("# the shop\n10.0.0.7:9464\n\n  https://[::1]:9464/  # TLS\n[::1]:9465\r\n")
    gateways = asked(f"@{file}", "b:2")
    assert [one.name for one in gateways.members] == [
        *("10.0.0.7:9464", "https://[::1]:9464", "[::1]:9465", "b:2")
    ]
    file.write_text("10.0.0.7:9464\n")
    assert asked(f"@{file}").single is None, "a list is a table, even of one"


def test_a_list_of_the_configuration_file(tmp_path: Path) -> None:
    file = tmp_path / "top.toml"
    file.write_text('admin = ["a:1", "b:2"]\n')
    assert [one.name for one in Gateways.of(read(TOP_OPTIONS, {}, {}, str(file))).members] == ["a:1", "b:2"]


def test_pods_come_from_a_file_or_standard_input(tmp_path: Path, stdin: Any) -> None:
    opened = pod("orders-1", "10.0.0.8")
    sidecar(opened)["env"] += [
        {"name": "FETCHGATE_ADMIN", "value": "0.0.0.0:9464"},
        {"name": "FETCHGATE_ADMIN_CERT", "value": "/tls/tls.crt"},
    ]
    without = pod("web-0")
    without["spec"]["initContainers"] = []
    document = json.dumps(listed(pod("orders-0"), opened, pod("orders-2", None, phase="Pending"), without))
    token, file = tmp_path / "token", tmp_path / "pods.json"
    token.write_text("s3cret\n")
    file.write_text(f"\n{document}")
    stdin(document)
    for given in (f"@{file}", "-"):
        gateways = asked(given, admin_token_file=str(token))
        assert (gateways.without, gateways.from_stdin) == (1, given == "-")
        first, second, third = gateways.members
        assert first.reader
        assert (first.metrics, first.reader.tls, first.reader.token) == (True, None, ""), (
            "no token to metrics"
        )
        assert second.reader
        assert (second.metrics, second.reader.address) == (False, Address("10.0.0.8", 9464))
        assert second.reader.tls is not None
        assert second.reader.token == "s3cret"
        assert (third.reader, third.problem) == (None, "the pod has no address yet (Pending)")


def test_pods_of_two_lists_with_the_same_name_are_two_gateways(tmp_path: Path) -> None:
    """The lists may come from two namespaces or two clusters."""
    lists = [str(tmp_path / name) for name in ("east.json", "west.json")]
    for file, ip in zip(lists, ("10.0.0.7", "10.9.0.7"), strict=True):
        Path(file).write_text(json.dumps(listed(pod("orders-0", ip), pod(f"of-{ip}", ip))))
    members = asked(f"@{lists[0]}", f"@{lists[1]}", f"@{lists[0]}").members
    assert [one.name for one in members] == [
        *(f"orders-0 (@{lists[0]})", "of-10.0.0.7", f"orders-0 (@{lists[1]})", "of-10.9.0.7")
    ]


def test_standard_input_may_have_addresses(stdin: Any) -> None:
    stdin("a:1\nb:2\n")
    assert [one.name for one in asked("-", "c:3").members] == ["a:1", "b:2", "c:3"]


LINES = "write HOST:PORT, one a line, or give the output of kubectl get pods -o json"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", f"it names no gateway; {LINES}"),
        ("# none\n\n", f"it names no gateway; {LINES}"),
        ("a:1\n\nnowhere\n", "line 3: 'nowhere' has no port; write HOST:PORT"),
        ("a:1\nb:99999\n", "line 2: '99999' is not a port; ports are 1 to 65535"),
        ("http://a:1\n", "line 1: 'http://a:1' is a URL; write "),
        ("off\n", "line 1: the gateway's admin endpoint is off; fetchgate top needs it"),
        (b"\xff\xfe", f"it is not text in UTF-8; {LINES}"),
        ("{", "it is not JSON (Expecting property name"),
        ("x" * 100_000, f"line 1: '{'x' * 291} ... x"),
        ('{"a":' * 100_000, "it is not a list of pods; give the output of kubectl get pods -o json"),
        (
            '{"kind": "Deployment"}',
            "it is a Deployment, not a list of pods; give the output of kubectl get pods -o",
        ),
        ('{"kind": "List", "items": []}', "it lists no running pod; check the selector and the namespace"),
    ],
)
def test_a_list_that_names_no_gateway_is_one_line_and_code_2(
    tmp_path: Path, stdin: Any, capsys: pytest.CaptureFixture[str], text: str | bytes, said: str
) -> None:
    file = tmp_path / "gates"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    for given in (f"@{file}", "-"):
        stdin(text)
        assert main(["top", "--once", "--admin", given]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"fetchgate top: --admin {given}: {said}")
        assert error.count("\n") == 1


def test_a_list_is_not_typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign] # as a terminal
    monkeypatch.setattr(sys, "stdin", terminal)
    assert main(["top", "--admin", "-"]) == 2
    assert (
        "pipe a list into it: kubectl get pods -o json | fetchgate top --admin -" in capsys.readouterr().err
    )
