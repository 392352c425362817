"""The options ``--max-fetch-bytes``, ``--fetch-min-bytes`` and ``--fetch-max-wait``."""

from pathlib import Path

import pytest

from proxy.command.config import load
from proxy.features.limits.options import LimitOptions
from tests.command.loading import NEEDED, error_of


def test_by_default_nothing_is_limited() -> None:
    assert load(NEEDED, {}, None).of(LimitOptions) == LimitOptions(
        max_fetch_bytes={"": 0}, fetch_min_bytes={"": 0}, fetch_max_wait={"": 0.0}
    )


@pytest.mark.parametrize(
    ("text", "ceilings"),
    [
        ("0", {"": 0}),
        ("1000", {"": 1000}),
        ("1000, a=5,b=x=0", {"": 1000, "a": 5, "b=x": 0}),
        ("a=5", {"a": 5}),
        ("", {}),
        ("10m,billing=1.5GB", {"": 10_485_760, "billing": 1_500_000_000}),
    ],
)
def test_a_ceiling_is_for_all_or_for_client_ids(tmp_path: Path, text: str, ceilings: dict[str, int]) -> None:
    file = tmp_path / "gate.toml"
    file.write_text(f"max_fetch_bytes = {text.split(',')}\n")

    assert load(NEEDED | {"max_fetch_bytes": text}, {}, None).of(LimitOptions).max_fetch_bytes == ceilings
    assert load(NEEDED, {}, str(file)).of(LimitOptions).max_fetch_bytes == ceilings


def test_floors_are_sizes_and_times() -> None:
    given = {"fetch_min_bytes": "64KiB,billing=0", "fetch_max_wait": "500ms,billing=2"}

    found = load(NEEDED | given, {}, None).of(LimitOptions)

    assert found.fetch_min_bytes == {"": 65_536, "billing": 0}
    assert found.fetch_max_wait == {"": 0.5, "billing": 2.0}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "max_fetch_bytes",
            "10,20",
            "--max-fetch-bytes: '10,20' has two values for all clients; give one, and ID=SIZE for others",
        ),
        (
            "max_fetch_bytes",
            "1000,a=50X",
            "--max-fetch-bytes: '50X' is not a size; give bytes, or a unit as in 10m, 256MiB or 1.5GB",
        ),
        (
            "fetch_min_bytes",
            "64KiB,a",
            "--fetch-min-bytes: 'a' is not a size; give bytes, or a unit as in 10m, 256MiB or 1.5GB",
        ),
        (
            "fetch_min_bytes",
            "a=2GiB",
            "--fetch-min-bytes: '2GiB' is too large: min_bytes of a fetch is at most 2147483647",
        ),
        (
            "fetch_min_bytes",
            "-1",
            "--fetch-min-bytes: '-1' is not a size; give bytes, or a unit as in 10m, 256MiB or 1.5GB",
        ),
        (
            "fetch_max_wait",
            "a=1s,a=2s",
            "--fetch-max-wait: 'a=1s,a=2s' has two values for client id a; give one, and ID=TIME for others",
        ),
        (
            "fetch_max_wait",
            "500",
            (
                "--fetch-max-wait: '500' is too long: give at most 5 s, since clients give up slow requests; "
                "a number without a unit is in seconds"
            ),
        ),
        (
            "fetch_max_wait",
            "a=soon",
            "--fetch-max-wait: 'soon' is not a time; give seconds, or a unit as in 500ms, 30s, 5m or 1h",
        ),
        (
            "max_fetch_bytes",
            "k\udce4fka=5",
            "--max-fetch-bytes: k\\udce4fka=5 is not UTF-8",
        ),
    ],
)
def test_a_value_that_cant_be_used_says_what_to_write(name: str, text: str, message: str) -> None:
    assert error_of(NEEDED | {name: text}) == message
