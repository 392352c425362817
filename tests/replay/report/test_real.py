"""The golden reports of the captures in the repository have right sums, and all their forms can be made."""

import pytest

from replay.report import csv, html
from replay.report.anonymize import anonymize
from replay.report.model import Report
from tests.golden.measured import CAPTURES, kept
from tests.replay.report import sample
from tests.replay.report.test_terminal import printed


@pytest.fixture(scope="module", params=CAPTURES, ids=lambda path: path.stem)
def real(request: pytest.FixtureRequest) -> Report:
    return kept(request.param)


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
