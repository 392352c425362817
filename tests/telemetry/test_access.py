"""The token of the admin endpoint, and the separate endpoint of ``--metrics`` (docs/users/security.md)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.addresses import Address
from proxy.net.listen import Binding
from proxy.telemetry.access import MAX_TOKEN, Token, read_token
from proxy.telemetry.admin import METRICS, AdminEndpoint
from proxy.text.options import ConfigError
from tests.shell import gateway, stub_broker
from tests.telemetry.test_admin import send

TOKEN = "s3cret.-_~+/=="


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    return file


@asynccontextmanager
async def endpoint(token: Token | None = None, only: frozenset[str] = frozenset()) -> AsyncIterator[int]:
    async with stub_broker() as broker, gateway(broker.address) as gate:
        sockets = Binding().bind(Address("127.0.0.1", 0))
        admin = AdminEndpoint(gate, token=token, only=only)
        admin.start(sockets)
        try:
            yield sockets[0].getsockname()[1]
        finally:
            admin.close()


async def _status(port: int, path: str, authorization: str = "") -> int:
    field = f"Authorization: {authorization}\r\n" if authorization else ""
    status, headers, body = await send(port, f"GET {path} HTTP/1.1\r\n{field}\r\n".encode())
    assert headers.get("WWW-Authenticate") == ('Bearer realm="fetchgate"' if status == 401 else None)
    assert TOKEN.encode() not in body
    return status


@pytest.mark.parametrize("path", ["/metrics", "/state", "/cooperative", "/nothing", "/livez/", "/"])
async def test_without_the_token_a_peer_gets_nothing_but_probes(file: Path, path: str) -> None:
    async with endpoint(Token(file)) as port:
        for wrong in ("", "Bearer", "Bearer x", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer ü"):
            assert await _status(port, path, wrong) == 401
        found = 200 if path in {"/metrics", "/state"} else 404
        for right in (f"Bearer {TOKEN}", f"bearer  {TOKEN} "):
            assert await _status(port, path, right) == found


async def test_probes_need_no_token(file: Path) -> None:
    async with endpoint(Token(file)) as port:
        assert await _status(port, "/livez") == 200
        assert await _status(port, "/readyz") in {200, 503}
        assert await _status(port, "/readyz?x=1") in {200, 503}


def test_a_token_that_changes_needs_no_restart(file: Path) -> None:
    token = Token(file)
    with capture_logs() as lines:
        file.write_text("another-one")
        assert token.admits("Bearer another-one")
        assert not token.admits(f"Bearer {TOKEN}")
        file.write_text("")
        assert token.admits("Bearer another-one")
        assert not token.admits("Bearer ")
        file.unlink()
        assert token.admits("Bearer another-one")
    assert [line["event"] for line in lines] == [
        "token of the admin endpoint reloaded",
        "token not reloaded: the earlier one stays in use",
        "token not reloaded: the earlier one stays in use",
    ]
    assert "another-one" not in str(lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty; write a token into it (openssl rand -hex 32)"),
        ("\nsecond line", "the file is empty"),
        ("two words", "a token has at most 4096 ASCII letters, digits and signs"),
        ("schlüssel", "a token has at most 4096 ASCII letters"),
        ("tab\tbed", "a token has at most 4096 ASCII letters"),
        ("x" * (MAX_TOKEN + 1), "a token has at most 4096 ASCII letters"),
    ],
)
def test_what_is_no_token_is_told_without_it(file: Path, text: str, said: str) -> None:
    file.write_text(text)

    with pytest.raises(ConfigError) as caught:
        read_token("--admin-token-file", file)

    assert str(caught.value).startswith(f"--admin-token-file {file}: {said}")
    assert not text or text.strip() not in str(caught.value)


def test_a_token_that_can_not_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--token-file .*/none: No such file or directory"):
        read_token("--token-file", tmp_path / "none")


async def test_the_endpoint_of_metrics_serves_metrics_and_probes_alone() -> None:
    async with endpoint(only=METRICS) as port:
        assert await _status(port, "/metrics") == 200
        assert await _status(port, "/livez") == 200
        assert await _status(port, "/readyz") in {200, 503}
        for path in ("/state", "/cooperative", "/"):
            assert await _status(port, path) == 404
        assert (await send(port, b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n"))[0] == 421
