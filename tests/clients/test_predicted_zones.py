"""The record bytes that `replay measure` says would move to the client's zone are those that then move.

`tests.clients.predicted_zones` says how. `tests/integration` has the same test of Python clients.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.predicted_zones import assert_predicted, zoned_cluster
from tests.clients.programs import PROGRAMS
from tools.kafka import Cluster

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def zoned() -> Iterator[Cluster]:
    with zoned_cluster() as cluster:
        yield cluster


@pytest.mark.parametrize("name", ["java", "sarama"])
def test_what_is_predicted_to_move_is_what_moves(zoned: Cluster, name: str, tmp_path: Path) -> None:
    assert_predicted(PROGRAMS[name](), zoned, tmp_path)
