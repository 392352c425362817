"""Fixtures with real brokers and gateways, for all folders of tests. A fixture starts when a test first needs
it.
"""

import gc
import inspect
import os
import socket
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
import structlog
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests.names import Names
from tools import debian
from tools.gateway import GatewayProcess
from tools.kafka import LATEST, Broker, Cluster, ports
from tools.kafka.java import java_home

os.environ["PATH"] += f"{os.pathsep}{debian.programs()}"  # at its end: what is installed comes first
# Brokers and Spark of a test end before code compiled twice has paid: 2 of 5 s of a broker's start.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

# No deadline: it would be a test of time. The number of examples is a share in per cent (tests/examples.py).
settings.register_profile("check", deadline=None, max_examples=10)
settings.register_profile("test", deadline=None, max_examples=25)
settings.register_profile("all", deadline=None, max_examples=100)
settings.load_profile("all")

_LONG: Final = (
    "tests/replay/measure/spark/",
    "tests/tools/test_bench_",
    "tests/integration/test_soak.py",
    "tests/integration/test_demo.py",
    "tests/integration/test_cooperative_",
)
"""How the paths of the files begin that take longest, although they have few tests."""

_SPARK: Final = "tests/replay/measure/spark/"
_WITHOUT_SESSION: Final = (f"{_SPARK}test_cluster", f"{_SPARK}test_session.py")
"""The files whose tests start Spark themselves. Of these, only one of `make soak` uses the shared session."""

_gateways: list[GatewayProcess] = []


class OneSparkSession(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """The tests of one file run in one process, and so do all files that share a Spark session.

    A session costs 20 s of CPU time until it has measured once.
    """

    def _split_scope(self, nodeid: str) -> str:
        shares = nodeid.startswith(_SPARK) and not nodeid.startswith(_WITHOUT_SESSION)
        return _SPARK if shares else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Divide the tests between processes as `--dist loadfile` does, except for those on Spark."""
    return OneSparkSession(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_configure() -> None:
    """Give each pytest process its own range of ports, because a gateway binds 300 consecutive ports."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    part = (ports.HIGHEST - ports.LOWEST) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    ports.LOWEST += number * part
    ports.HIGHEST = ports.LOWEST + part


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files, then with those of most tests, so that no process has to end alone.

    Files with brokers, which mostly wait, take turns with the others, which do not. By itself, xdist begins
    with the files of most tests (`--no-loadscope-reorder` in the Makefile).
    """
    number = Counter(item.path for item in items)
    with_broker = {item.path for item in items if item.get_closest_marker("integration")}
    long = {item.path for item in items if item.nodeid.startswith(_LONG)}
    place: dict[Path, tuple[float, str]] = {}
    for kind in (with_broker, number.keys() - with_broker):
        files = sorted(kind, key=lambda path: (path not in long, -number[path], path))
        place |= {path: (at / len(files), str(path)) for at, path in enumerate(files)}
    items.sort(key=lambda item: place[item.path])


def pytest_collection_finish() -> None:
    """Exclude modules and collected tests from later garbage collections: each took 0.3 s for them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an ``async def`` test on uvloop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    from tests.shell import run  # noqa: PLC0415 - it imports the gateway, which few processes of tests need

    arguments = inspect.signature(pyfuncitem.obj).parameters
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in arguments}))
    return True


@pytest.fixture(scope="session", autouse=True)
def _java_of_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run Spark with the same Java as the test brokers. `replay measure` looks at JAVA_HOME first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(java_home(tmp_path_factory.mktemp("java-home"))))
        yield


@pytest.fixture
def log_defaults() -> Iterator[None]:
    """Reset structlog after the test, because the log that `main` set up writes to a stream of this test."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide all other processes of the machine from the gateway.

    In transparent mode the gateway would warn about them.
    """
    monkeypatch.setattr("proxy.server.bypass.MAX_SCANNED", 0)


@pytest.fixture
def fake_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    """Return a fake name server for the domain ``example``."""
    names = Names()
    monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)
    yield names
    names.end()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """Return a broker of the newest release, shared by the whole run. Each test uses its own topics."""
    with Broker(LATEST) as broker:
        yield broker


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Return three brokers of the newest release. A test module shares them, because idle brokers use CPU.

    A test that stops a broker starts it again.
    """
    with Cluster(LATEST, nodes=3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def broker_of() -> Iterator[Callable[[str], Broker]]:
    """Return a function that gives a broker of a release. The brokers run for one module only, because no run
    needs all releases at the same time.
    """
    brokers: dict[str, Broker] = {}
    with ExitStack() as stack:

        def give(version: str) -> Broker:
            if version not in brokers:
                brokers[version] = stack.enter_context(Broker(version))
            return brokers[version]

        yield give


@pytest.fixture
def start_gateway() -> Iterator[Callable[..., GatewayProcess]]:
    """Return a function that starts a gateway, with the arguments of GatewayProcess.

    The gateways stop at the end of the test.
    """
    with ExitStack() as stack:

        def start(
            bootstrap: str,
            *options: str,
            environment: Mapping[str, str] | None = None,
            ready: bool = True,
        ) -> GatewayProcess:
            gateway = GatewayProcess(bootstrap, *options, environment=environment, ready=ready)
            _gateways.append(gateway)
            stack.callback(_gateways.remove, gateway)
            return stack.enter_context(gateway)

        yield start


@pytest.fixture
def gateway(broker: Broker, start_gateway: Callable[..., GatewayProcess]) -> GatewayProcess:
    """Return a gateway with default options in front of `broker`."""
    return start_gateway(broker.address)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the output of the gateways when a test fails."""
    report = yield
    if report.failed:
        for gateway in _gateways:
            report.sections.append((f"log of the gateway at {gateway.address}", gateway.log()))
    return report
