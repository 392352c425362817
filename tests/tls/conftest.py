"""Fixtures that all tests of TLS use."""

import logging
from collections.abc import Iterator

import pytest
import structlog

from proxy.server import upstream
from tests.tls.secured import Keys
from tools.certificates import Authority


@pytest.fixture(scope="package")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    folder = tmp_path_factory.mktemp("keys")
    ca, other = Authority(folder), Authority(folder, "other")
    return Keys(ca, other, ca.sign("good"), other.sign("stranger"))


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Reset the log after each test, and check that asyncio logged no warning. Event loops warn if TLS is
    misused.
    """
    yield
    structlog.reset_defaults()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close clients of unreachable brokers after a short time."""
    monkeypatch.setattr(upstream, "UNREACHABLE_SECONDS", 0.05)
