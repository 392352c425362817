"""Advice that is given with a report: the saving over the captured time, and a sentence for each client."""

from typing import Any

import pytest

from replay.report.decision import (
    DailyRate,
    OwnSidecars,
    by_fetch_min_bytes,
    conclusion,
    decide,
    why,
    without_gateway,
)
from replay.report.model import Action, ClientRow, DifferentHosts, FetchReport, Passed, Report, ToDo
from tests.replay.report import sample

RATE = DailyRate(seconds=100.0, price_per_gb=2.0)
HOSTS: DifferentHosts = {
    "captures": 2,
    "captured_bytes_per_day": 2,
    "saved_bytes_per_day": 1,
    "captured_per_month": 2.0,
    "money_per_month": 1.0,
    "shared_addresses": [],
    "sidecars_priced": False,
}


def fetches(
    *, requests: int = 100, whole: int = 1_000_000, saved: int = 0, records: int = 0, eligible: int = 0
) -> FetchReport:
    figures = {
        ("actual", "requests"): requests,
        ("actual", "response_bytes"): whole,
        ("actual", "record_bytes"): records,
        ("eligible", "exchanges"): eligible,
        ("eligible", "response_bytes"): saved,
    }
    return sample.combined(lambda group, field: figures.get((group, field), 0))


def client(
    fetch: FetchReport,
    reason: str = "",
    *,
    version: int = 11,
    software: str = "",
    connections: int = 1,
    seconds: float = 100.0,
) -> ClientRow:
    passed: dict[str, Passed] = {reason: {"exchanges": 1, "bytes": 900_000}} if reason else {}
    return {
        "client_id": "c",
        "software": software,
        "fetch_version": version,
        "connections": connections,
        "connection_seconds": connections * seconds,
        "fetch": fetch,
        "passed": passed,
    }


def to_do(row: ClientRow, rate: DailyRate = RATE) -> ToDo:
    (found,) = decide(row["fetch"], why(row["fetch"], row["passed"]), [row], rate)["to_do"]
    return found


def test_a_day_and_a_month_are_those_of_the_captured_time() -> None:
    decision = decide(fetches(saved=500_000), "", [], RATE)

    assert decision["saved_bytes_per_day"] == 500_000 * 864
    assert decision["money_per_month"] == pytest.approx(500_000 / 1e9 * 2.0 * 864 * 30)
    assert (decision["captured_seconds"], decision["enough"], decision["reason"]) == (100.0, False, "")
    assert decide(fetches(), "", [], DailyRate(seconds=3600.0))["enough"]
    assert decide(fetches(), "", [], DailyRate(seconds=3600.0))["money_per_month"] is None


@pytest.mark.parametrize("reason", ["bytes missing", "unpaired"])
def test_where_fetches_were_not_captured_whole_nothing_is_said_of_a_day(reason: str) -> None:
    fetch = fetches()
    decision = decide(fetch, why(fetch, {reason: {"exchanges": 9, "bytes": 900_000}}), [], RATE)

    assert decision["reason"] == reason
    assert (decision["saved_bytes_per_day"], decision["money_per_month"]) == (None, None)


@pytest.mark.parametrize("seconds", [0.0, 0.044, 4.9])
def test_where_little_time_was_captured_there_is_no_day_and_no_advice_to_wait(seconds: float) -> None:
    """How often a client fetches is not known from the burst of its first requests."""
    rate = DailyRate(seconds=seconds, price_per_gb=2.0)
    row = client(fetches(requests=10_000, saved=500_000), seconds=seconds)
    decision = decide(row["fetch"], "", [row], rate)

    assert (decision["saved_bytes_per_day"], decision["money_per_month"]) == (None, None)
    assert decision["to_do"][0]["sentence"] == (
        "Probably put it behind a gateway: that saves 50.0 %. Capture for at least an hour first."
    )
    assert by_fetch_min_bytes([row], rate) == {"saved_bytes": 0, "saved_per_month": None}


@pytest.mark.parametrize(
    ("row", "action", "told"),
    [
        (
            client(fetches(saved=500_000)),
            "gateway",
            "Put it behind a gateway: that saves 50.0 %, 430 MB a day, 26 a month at your price.",
        ),
        (
            client(fetches(), "native session"),
            "own sessions",
            "It has sessions of its own: it needs no gateway.",
        ),
        (client(fetches(), "one partition"), "one partition", "It lists a single partition: a session has"),
        (client(fetches(), "fetch v3", version=3), "upgrade client", "Upgrade the client: Fetch v3 has no"),
        (
            client(fetches(), "fetch v3", version=3, software="old 1"),
            "upgrade client",
            "Upgrade old 1: Fetch",
        ),
        (
            client(fetches(), "fetch v19", version=19),
            "upgrade fetchgate",
            "Upgrade fetchgate: it does not know",
        ),
        (client(fetches(), "leader epochs"), "upgrade brokers", "Upgrade the brokers to Kafka 2.5 or later"),
        (
            client(fetches(), "not a consumer"),
            "leave",
            "Leave it as it is: it is a broker. If its fetches were",
        ),
        (
            {**client(fetches(), "not a consumer"), "client_id": "raft-client-3"},
            "leave",
            "Leave it as it is: it is a broker or a controller, and fetches metadata from the active",
        ),
        (client(fetches(), "unpaired"), "capture again", "Capture it again, with both directions"),
        (
            client(fetches(records=950_000), "resting"),
            "leave",
            "Leave it: 95.0 % of its fetch bytes are records.",
        ),
        (
            client(fetches(), "resting"),
            "leave",
            "Leave it: sessions cost this connection more than they saved",
        ),
        (
            client(fetches(), "error 56"),
            "leave",
            "Leave it: the broker responded to the whole fetch with this",
        ),
        (client(fetches(saved=-5, eligible=3)), "leave", "Leave it: its partitions change with each fetch"),
    ],
)
def test_each_client_has_one_sentence(row: ClientRow, action: Action, told: str) -> None:
    found = to_do(row)

    assert found["action"] == action
    assert found["sentence"].startswith(told)
    assert found["sentence"].endswith(".")


def test_what_a_gateway_would_not_do_is_not_promised_of_one() -> None:
    row = client(fetches(saved=500_000))
    (found,) = decide(row["fetch"], why(row["fetch"], row["passed"]), [row], RATE, policy="always")["to_do"]

    assert found["sentence"].startswith("A session for each connection saves 50.0 %")


@pytest.mark.parametrize(
    ("own", "action", "told"),
    [
        (OwnSidecars(number=1, pay=1), "gateway", "Put it behind a gateway: that saves 50.0 %"),
        (
            OwnSidecars(number=3, pay=2),
            "gateway",
            "Put it behind a gateway at 2 of its 3 addresses, see Net: at all of them a gateway saves 50.0 %",
        ),
        (
            OwnSidecars(number=1, pay=0),
            "sidecar cost",
            "Leave it as it is: its sidecar does not pay at your prices, see Net. A gateway saves 50.0 %",
        ),
        (
            OwnSidecars(number=3, pay=0),
            "sidecar cost",
            "Leave it as it is: its sidecars do not pay at your prices, see Net. A gateway saves 50.0 %",
        ),
        (
            OwnSidecars(number=1, pay=0, others_wait=True),
            "sidecar cost",
            (
                "Leave it as it is: its sidecar does not pay at your prices once the other clients at its "
                "address raise fetch.min.bytes. A gateway saves 50.0 %"
            ),
        ),
    ],
)
def test_a_client_goes_behind_a_gateway_where_its_own_sidecars_pay(
    own: OwnSidecars, action: Action, told: str
) -> None:
    row = client(fetches(saved=500_000))
    (found,) = decide(row["fetch"], "", [row], RATE, sidecars={("c", "", 11): own})["to_do"]

    assert (found["action"], found["advice_saves_bytes_per_day"]) == (action, 432_000_000)
    assert found["sentence"] == f"{told}, 430 MB a day, 26 a month at your price."


def test_a_client_that_fetches_all_the_time_is_told_to_wait() -> None:
    busy = client(fetches(requests=10_000), "native session", connections=2)
    found = to_do(busy)

    assert found["action"] == "fetch.min.bytes"
    assert found["sentence"] == (
        "It has sessions of its own. Raise fetch.min.bytes to 65536, with fetch.max.wait.ms=500 "
        "(fetch.wait.max.ms in librdkafka): 2 fetches a second on a connection instead of 50 would save "
        "96.0 % (modelled), 830 MB a day, 50 a month at your price. Records come up to 0.5 s later."
    )
    assert found["advice_saves_bytes_per_day"] == 960_000 * 864
    assert found["saved_bytes_per_day"] == 0


def test_waiting_is_advised_where_it_saves_more_and_its_cost_is_told() -> None:
    """A client that fetches 50 times a second: sessions save half of it, longer waits 96 %."""
    busy = client(fetches(requests=10_000, saved=500_000), connections=2, software="librdkafka 2.16.0")
    waits = (
        "Raise fetch.min.bytes to 65536, with fetch.wait.max.ms=500: 2 fetches a second on a connection "
        "instead of 50 would save 96.0 % (modelled), 830 MB a day, 50 a month at your price. Records come up "
        "to 0.5 s later. If they must not, "
    )
    gateway = "put it behind a gateway: that saves 50.0 %, 430 MB a day, 26 a month at your price"

    assert to_do(busy)["sentence"] == f"{waits}{gateway}."
    figures = ("action", "advice_saves_bytes_per_day", "saved_bytes_per_day")
    assert [to_do(busy)[name] for name in figures] == ["fetch.min.bytes", 960_000 * 864, 500_000 * 864]  # type: ignore[literal-required]  # fields of ToDo
    for own, action, told in (
        (
            OwnSidecars(number=1, pay=1, waiting_wins=True),
            "fetch.min.bytes",
            f"{waits}{gateway}, less the cost of its sidecar.",
        ),
        (
            OwnSidecars(number=3, pay=2, waiting_wins=True),
            "fetch.min.bytes",
            (
                f"{waits}put it behind a gateway at 2 of its 3 addresses, see Net: at all of them a gateway "
                "saves 50.0 %, 430 MB a day, 26 a month at your price, less the cost of its sidecars."
            ),
        ),
        (
            OwnSidecars(number=1, pay=0, waiting_wins=True),
            "fetch.min.bytes",
            f"{waits}leave it as it is: its sidecar does not pay at your prices, see Net.",
        ),
        (OwnSidecars(number=1, pay=1), "gateway", f"P{gateway[1:]}."),
    ):
        sidecars = {("c", "librdkafka 2.16.0", 11): own}
        (found,) = decide(busy["fetch"], "", [busy], RATE, sidecars=sidecars)["to_do"]
        assert (found["action"], found["sentence"]) == (action, told)


def test_where_a_gateway_saves_little_less_waiting_is_told_beside_it() -> None:
    """The conclusion says that it costs nothing, so its settings have to be there."""
    busy = client(fetches(requests=10_000, saved=900_000), connections=2, software="kgo v1.22.2")

    assert to_do(busy, DailyRate(seconds=100.0))["sentence"] == (
        "If records may come up to 0.5 s later, raise kgo.FetchMinBytes to 65536, with "
        "kgo.FetchMaxWait=500ms: that would save 96.0 % (modelled) and costs nothing. If not, put it "
        "behind a gateway: that saves 90.0 %, 780 MB a day."
    )
    assert to_do(busy, RATE)["sentence"].endswith(
        " Or raise kgo.FetchMinBytes to 65536, with kgo.FetchMaxWait=500ms: that would save 96.0 % "
        "(modelled), and records come up to 0.5 s later."
    )


def test_with_a_price_each_capture_of_different_hosts_is_to_be_measured_alone() -> None:
    row = client(fetches(requests=10_000, saved=900_000), connections=2)
    own_sessions: ClientRow = {**client(fetches(), "native session"), "client_id": "d"}
    found = decide(row["fetch"], "", [row, own_sessions], RATE, different_hosts=HOSTS)["to_do"]

    assert [one["action"] for one in found] == ["measure alone", "own sessions"]
    assert found[0]["sentence"] == (
        "Measure each capture alone: if they are of different hosts, money may decide otherwise for each."
    )
    assert found[0]["advice_saves_bytes_per_day"] is None
    (found_alone, _) = decide(
        row["fetch"], "", [row, own_sessions], DailyRate(seconds=100.0), different_hosts=HOSTS
    )["to_do"]
    assert found_alone["action"] == "gateway"


def test_min_bytes_are_more_than_what_comes_while_a_fetch_waits() -> None:
    """200 kB of records come on a connection in each half second."""
    busy = client(fetches(requests=10_000, whole=60_000_000, records=40_000_000), "native session")

    assert "Raise fetch.min.bytes to 524288, with fetch.max.wait.ms=500" in to_do(busy)["sentence"]


def test_a_little_more_is_not_worth_a_wait() -> None:
    busy = client(fetches(requests=10_000, saved=900_000), connections=2)

    assert to_do(busy)["action"] == "gateway"


def test_how_often_a_client_fetches_is_told_for_the_time_of_its_connections() -> None:
    short = client(fetches(requests=1_000), "native session", seconds=10.0)
    across_a_gap = client(fetches(requests=10_000), "native session", connections=2, seconds=5_000.0)

    assert "on a connection instead of 100 would save 98.0 %" in to_do(short)["sentence"]
    assert "on a connection instead of 50 would save 96.0 %" in to_do(across_a_gap)["sentence"]


@pytest.mark.parametrize("reason", ["not a consumer", "unpaired", "fetch v3", "broker without sessions"])
def test_who_fetches_all_the_time_for_another_reason_is_not_told_to_wait(reason: str) -> None:
    """Clients that fetch all the time for one of these reasons are not advised to wait for more records.

    Followers of a broker must not wait. If data are missing, no advice is possible.
    """
    busy = client(fetches(requests=10_000), reason, version=3, connections=2)

    assert to_do(busy)["action"] != "fetch.min.bytes"


def test_fetch_min_bytes_alone_is_modelled_on_fetches_without_sessions() -> None:
    saving = client(fetches(requests=10_000, saved=900_000, records=50_000), "catching up", connections=2)
    own_sessions = client(fetches(requests=10_000), "native session", connections=2)
    replica = client(fetches(requests=10_000), "not a consumer", connections=2)
    slow = client(fetches(requests=200, saved=900_000))
    rows = [saving, own_sessions, replica, slow]

    # Of 10,000 fetches, 400 are left of two connections in 100 s, with the same records.
    assert by_fetch_min_bytes(rows, RATE)["saved_bytes"] == 912_000 + 960_000
    month = by_fetch_min_bytes([saving], RATE)["saved_per_month"]
    assert month == pytest.approx(912_000 / 1e9 * 2.0 / 100 * 30 * 86_400)
    assert by_fetch_min_bytes([saving], DailyRate(seconds=100.0))["saved_per_month"] is None


def test_fetch_min_bytes_stands_beside_the_saving_of_sessions() -> None:
    report = sample.report()
    text = "Without fetchgate: fetch.min.bytes in the clients would save 70.0 %, 6.05 USD a month"
    assert without_gateway(report) == f"{text} (at most 2 fetches a second on a connection)."
    money = report["modelled"]["money"]
    assert money is not None
    report["modelled"]["money"] = {**money, "saved_between_zones_per_month": 1.0}
    assert without_gateway(report).startswith(f"{text} if you pay for every byte (at most")
    report["modelled"]["money"] = None
    assert "would save 70.0 % (at most" in without_gateway(report)


@pytest.mark.parametrize(
    "change",
    [
        {"fetch": fetches(whole=600_000_000)},  # sessions save nothing: the advice for clients has it
        {"fetch": fetches(whole=9_000_000_000, saved=4_000_000_000)},  # it would save less than a tenth
        {"both_sides": [{"client_side": "a:1", "broker_side": "b:2", "connections": 1, "fetch_bytes": 9}]},
    ],
)
def test_fetch_min_bytes_is_not_compared_where_it_says_little(change: Any) -> None:
    report: Report = {**sample.report(), **change}
    assert without_gateway(report) == ""


def test_a_client_with_several_versions_is_named_once() -> None:
    report = sample.report()
    for rows in (report["by_client"], report["decision"]["to_do"]):
        for row in rows[:2]:
            row["client_id"] = "twice"
    assert 'a gateway wins for "twice" and (none). With' in conclusion(report)


def test_without_the_cost_of_sidecars_both_ways_are_told_with_what_decides_between_them() -> None:
    report = sample.report()
    report["modelled"]["net"] = None
    assert conclusion(report) == (
        'Conclusion for "billing-enricher" and "search-indexer": raise fetch.min.bytes if you can, and if '
        "records may come up to 0.5 s later: it saves 58.6 % and costs nothing. If not, use a gateway: it "
        "saves 91.3 %. For (none), only a gateway saves: 58.3 %. With a gateway, records come less than 1 ms "
        "later. To compare them by money, give --sidecar-cost."
    )
    money = report["modelled"]["money"]
    assert money is not None
    report["modelled"]["money"] = {**money, "currency": ""}
    assert conclusion(report).endswith("To compare them by money, give --currency and --sidecar-cost.")
    report["modelled"]["money"] = None
    assert conclusion(report).endswith(
        "To compare them by money, give --price-per-gb, --currency and --sidecar-cost."
    )


@pytest.mark.parametrize(
    ("quick", "told"),
    [
        (
            ["a"],
            (
                'Conclusion for "a": raise fetch.min.bytes if you can, and if records may come up to 0.5 s '
                "later: it saves 96.0 % and costs nothing. If not, use a gateway: it saves 90.0 %. For "
                '"b", only a gateway saves: 87.0 %. With'
            ),
        ),
        (
            ["a", "b"],
            (
                'Conclusion for "a" and "b": raise fetch.min.bytes if you can, and if records may come up to '
                "0.5 s later: it saves 96.0 % and costs nothing. If not, use a gateway: it saves 88.5 %. With"
            ),
        ),
        ([], 'Conclusion: for "a" and "b", only a gateway saves: 88.5 %. With'),
    ],
)
def test_fetch_min_bytes_is_concluded_only_for_clients_that_it_helps(quick: list[str], told: str) -> None:
    """Each set of clients has the figures of its own. Who fetches twice a second can't fetch less often."""
    report = sample.report()
    rows: list[ClientRow] = [
        {
            **client(fetches(requests=5_000 if name in quick else 200, saved=saved)),
            "client_id": name,
        }
        for name, saved in (("a", 900_000), ("b", 870_000))
    ]
    report["by_client"] = rows
    report["decision"] = decide(fetches(saved=1_770_000), "", rows, DailyRate(seconds=100.0))
    report["modelled"]["money"] = report["modelled"]["net"] = None
    assert conclusion(report).startswith(told)


def test_a_gateway_is_offered_only_where_a_sidecar_pays() -> None:
    report = sample.report()
    for row in report["decision"]["to_do"]:
        row["action"] = "fetch.min.bytes" if row["client_id"] == "billing-enricher" else "sidecar cost"
    wins = (
        "Conclusion: by what is left after the cost of sidecars, fetch.min.bytes wins for "
        '"billing-enricher". With fetch.min.bytes, records come up to 0.5 s later'
    )
    assert conclusion(report) == (
        f"{wins}, with a gateway less than 1 ms. If they must not, or if you can't change a client, choose a "
        "gateway where its sidecar pays (see What to do)."
    )
    net = report["modelled"]["net"]
    assert net is not None
    net["paying"]["addresses"] = []
    assert conclusion(report) == (
        f"{wins}. If they must not, or if you can't change a client, leave it as it is: no sidecar pays at "
        "your prices."
    )


def test_without_the_net_sum_of_different_hosts_no_way_wins() -> None:
    """Measured alone, the cost of its sidecar may decide otherwise for each of them."""
    report = sample.report()
    report["modelled"]["net"] = None
    report["decision"]["different_hosts"] = HOSTS
    assert conclusion(report) == ""
    assert "would save 70.0 % (at most" in without_gateway(report)
    report["modelled"]["money"] = None
    assert conclusion(report).endswith("With a gateway, records come less than 1 ms later.")


def test_few_fetches_a_second_are_told_with_a_decimal() -> None:
    found = to_do(client(fetches(requests=240), "native session"))

    assert "2 fetches a second on a connection instead of 2.4 would save" in found["sentence"]


def test_without_a_price_or_time_the_sentence_has_none() -> None:
    row = client(fetches(saved=500_000))

    assert to_do(row, DailyRate(seconds=100.0))["sentence"] == (
        "Put it behind a gateway: that saves 50.0 %, 430 MB a day."
    )
    assert to_do(row, DailyRate(seconds=0.0))["sentence"].startswith("Probably put it behind a gateway: that")


def test_the_largest_saving_comes_first() -> None:
    rows = [client(fetches(saved=saved)) for saved in (100_000, 300_000, 200_000)]
    days = [row["saved_bytes_per_day"] for row in decide(fetches(), "", rows, RATE)["to_do"]]

    assert days == [300_000 * 864, 200_000 * 864, 100_000 * 864]


@pytest.mark.parametrize(
    ("fetch", "passed", "reason"),
    [
        (fetches(saved=1), {"resting": 1_000_000}, ""),
        (fetches(whole=0), {}, ""),
        (fetches(), {"resting": 600_000, "one partition": 400_000}, "resting"),
        (fetches(eligible=5), {"resting": 100}, "sessions cost what they saved"),
        (fetches(), {}, ""),
    ],
)
def test_why_nothing_is_saved(fetch: FetchReport, passed: dict[str, Any], reason: str) -> None:
    found: dict[str, Passed] = {name: {"exchanges": 1, "bytes": count} for name, count in passed.items()}

    assert why(fetch, found) == reason
