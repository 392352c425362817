"""The record bytes that `replay measure` says would move to the client's zone are those that then move.

`tests.clients.predicted_zones` says how. `tests/clients` has the same test of clients in other languages.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.predicted_zones import assert_predicted, zoned_cluster
from tests.clients.runner import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, Program
from tools.kafka import Cluster


@pytest.fixture(scope="module")
def zoned() -> Iterator[Cluster]:
    with zoned_cluster() as cluster:
        yield cluster


@pytest.mark.parametrize("program", [CONFLUENT, KAFKA_PYTHON, AIOKAFKA], ids=lambda program: program.name)
def test_what_is_predicted_to_move_is_what_moves(zoned: Cluster, program: Program, tmp_path: Path) -> None:
    assert_predicted(program, zoned, tmp_path)
