"""The pages on how to read the report have its policies, its reasons and the costs of a sidecar."""

import re
from pathlib import Path

import pytest

from proxy.session.decision import Reason
from replay.measure import net
from replay.report import wording

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ("users/report.md", "users/decide.md")
PAGE = "".join((DOCS / page).read_text() for page in PAGES)
CODE = set(re.findall(r"`([^`\n]+)`", PAGE))


@pytest.mark.parametrize(
    ("cost", "written"),
    [
        (net.PROCESS_BYTES / 1e6, "51 MB"),
        (net.CONNECTION_BYTES / 1e3, "12.2 kB for each connection"),
        (net.PARTITION_BYTES, "110 bytes for each partition"),
        (net.FETCH_SECONDS * 1e6, "160 µs for each fetch"),
        (net.LISTED_SECONDS * 1e6, "0.57 µs for each partition"),
        (net.RECORD_SECONDS * 1e9, "1.8 s for each GB of records"),
    ],
)
def test_the_costs_of_a_sidecar_are_documented(cost: float, written: str) -> None:
    assert written in PAGE
    assert float(written.split(maxsplit=1)[0]) == pytest.approx(cost)


def test_the_example_of_a_sidecar_s_price_has_the_requests_of_the_manifests() -> None:
    manifest = (DOCS.parent / "tools/deploy/kubernetes/base/deployment.yaml").read_text()
    requests = re.findall(r"requests:\n +cpu: (\d+)m\n +memory: (\d+)Mi\n", manifest)
    ((cpu, memory),) = [found for found in requests if f"{found[1]}Mi of memory" in PAGE]
    cores, gigabytes = int(cpu) / 1e3, int(memory) * 2**20 / 1e9
    assert f"{cpu}m of CPU ({cores} cores)" in PAGE
    assert f"({gigabytes:.1f} GB)" in PAGE
    times, whole = "\u00d7", round(gigabytes, 1) * 10 + cores * 50
    assert f"{gigabytes:.1f} {times} 10 + {cores} {times} 50 = {whole:.2f} USD" in PAGE


@pytest.mark.parametrize("policy", wording.POLICY)
def test_each_policy_is_documented(policy: str) -> None:
    assert f"--policy {policy}" in CODE


@pytest.mark.parametrize("reason", [*sorted(wording.REASONS.keys() - set(Reason)), "fetch v3", "error 56"])
def test_each_reason_that_the_report_explains_is_documented(reason: str) -> None:
    assert reason in CODE
    assert wording.meaning(reason)
