"""All tests of franz-go's fake broker (kfake) pass, directly and through gateways.

In the second run, each of the tests' clusters has a gateway in front of it.
"""

import pytest

from tests.clients.kfake import SUITE_SECONDS, Suite, build_suite, run_suite

pytestmark = [pytest.mark.clients, pytest.mark.timeout(2 * SUITE_SECONDS + 300)]
TESTS = 43


@pytest.fixture(scope="module", params=["direct", "gateway"])
def suite(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Suite:
    return run_suite(build_suite(), tmp_path_factory.mktemp("kfake"), gateway=request.param == "gateway")


def test_every_test_of_the_fake_broker_passes(suite: Suite) -> None:
    assert suite.others == [], suite.output
    assert len(suite.passed) == TESTS, suite.output


@pytest.mark.parametrize("suite", ["gateway"], indirect=True)
def test_the_client_s_sessions_are_passed_on(suite: Suite) -> None:
    client = {kind: number for (side, kind), number in suite.fetches.items() if side == "client"}
    broker = {kind: number for (side, kind), number in suite.fetches.items() if side == "broker"}
    assert client["incremental"] > 0
    assert broker["incremental"] >= client["incremental"], suite.fetches
