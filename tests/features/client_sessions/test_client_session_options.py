"""The options ``--client-sessions`` and those of its cache."""

import pytest

from proxy.command.config import load
from proxy.features.client_sessions.options import ClientSessionOptions
from tests.command.loading import NEEDED, error_of


def test_by_default_the_gateway_gives_sessions_where_brokers_do_not() -> None:
    assert load(NEEDED, {}, None).of(ClientSessionOptions) == ClientSessionOptions(
        client_sessions="auto",
        max_incremental_fetch_session_cache_slots=1000,
        min_incremental_fetch_session_eviction_ms=120_000,
    )


@pytest.mark.parametrize(
    ("text", "found"), [("off", "off"), ("False", "off"), ("0", "off"), ("yes", "on"), ("1", "on")]
)
def test_a_switch_takes_every_word_for_on_and_off(text: str, found: str) -> None:
    given = {"client_sessions": text, "min_incremental_fetch_session_eviction_ms": "30s"}

    options = load(NEEDED | given, {}, None).of(ClientSessionOptions)

    assert options.client_sessions == found
    assert options.min_incremental_fetch_session_eviction_ms == 30_000


def test_another_word_is_refused() -> None:
    told = "--client-sessions: 'maybe' is not one of auto, on, off"
    assert error_of(NEEDED | {"client_sessions": "maybe"}) == told
