"""Reports on the captures in the repository, made without Spark.

Their sums are right, and all formats work.
"""

import pytest

from replay.report import csv, html
from replay.report.anonymize import anonymize
from replay.report.model import Report
from tests.replay.report import sample
from tests.replay.report.test_terminal import printed
from tests.replay.tables import CAPTURES, measured

FEW = {"java-100p", "aiokafka-rebalance", "librdkafka-gateway-no-records"}
"""The few captures that `make test` uses: a client, both sides of a gateway, and no record contents."""
EACH = [
    path if path.stem in FEW else pytest.param(path, marks=pytest.mark.nightly)
    for path in sorted(CAPTURES.glob("*.pcap"))
]


@pytest.fixture(scope="module", params=EACH, ids=lambda path: path.stem)
def real(request: pytest.FixtureRequest) -> Report:
    return measured("gateway", request.param, price_per_gb=0.02)


def test_it_adds_up(real: Report) -> None:
    sample.assert_adds_up(real)
    assert real.keys() - {"zones"} == Report.__required_keys__  # only where racks are known
    assert real["fetch"]["actual"]["requests"] > 0


def test_every_form_of_it_renders(real: Report) -> None:
    hidden = anonymize(real)
    broker, pseudonym = (told["by_broker"][0]["broker"] for told in (real, hidden))
    assert broker.startswith("127.0.0.1:")
    for told, there, absent in ((real, broker, pseudonym), (hidden, pseudonym, broker)):
        for text in (html.render(told), csv.render(told), printed(told)):
            assert there in text
            assert absent not in text
