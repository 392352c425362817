"""Pseudonyms in reports do not change, depend on a key, and replace all names."""

import json
import re
from copy import deepcopy

from hypothesis import given
from hypothesis import strategies as st

from replay.report import csv
from replay.report.anonymize import anonymize
from replay.report.model import Report
from tests.replay.report import sample

NAMES = [
    *(client[0] for client in sample.CLIENTS if client[0]),
    *sample.TOPICS,
    *(broker.rpartition(":")[0].strip("[]") for broker in sample.BROKERS),
    *(f"10.20.1.{place}" for place in range(1, 6)),
    "node-7.pcap03",
    "az-1",
]
TOLD: Report = {
    **sample.report(),
    "both_sides": [
        {
            "client_side": "10.20.1.5:19094",
            "broker_side": "10.20.0.11:9092",
            "connections": 3,
            "fetch_bytes": 5_000,
        }
    ],
    "filters": {
        "ports": [9092],
        "hosts": ["10.20.0.11"],
        "clients": ["billing-enricher"],
        "topics": ["orders"],
    },
    "floors": sample.floors(),
    "zones": sample.zones("billing-enricher", "az-1"),
}


def test_no_name_is_left_anywhere() -> None:
    text = json.dumps(anonymize(TOLD))
    assert all(name in json.dumps(TOLD) for name in NAMES)
    assert not [name for name in NAMES if name in text]


def test_the_same_name_is_the_same_pseudonym_wherever_it_stands_and_in_every_run() -> None:
    report = anonymize(TOLD)
    assert report["by_client"][0]["client_id"] == "client-bf7hkoak"
    assert report["by_topic"][1]["topic"] == report["filters"]["topics"][0] == "topic-fytikjom"
    assert report["by_broker"][0]["broker"] == report["slots"][0]["broker"] == "host-cn2ew4wv:9092"
    assert report["by_broker"][2]["broker"] == "host-aihkuqmo:9092"  # [fd00:20::13]
    assert report["filters"]["hosts"] == ["host-cn2ew4wv"]
    first = report["connections"][0]
    assert first["client_id"] == report["filters"]["clients"][0] == "client-bf7hkoak"
    assert first["connection"] == f"{first['client']} > host-cn2ew4wv:9092 #0"
    assert first["broker"] == "host-cn2ew4wv:9092"
    zones = report["zones"]
    assert zones["brokers"][0] == {
        "broker": "host-cn2ew4wv:9092",
        "node_id": 1,
        "rack": zones["pairs"][0]["from"],
    }
    assert zones["leaders"][1]["topic"] == zones["by_topic"][1]["topic"]
    assert zones["leaders"][0]["rack"] == zones["brokers"][0]["rack"]
    assert (zones["brokers"][1]["rack"], zones["clients"][0]["rack"]) == (None, None)
    assert zones["clients"][1]["rack"] == zones["pairs"][0]["to"] == "rack-bg24lv74"
    assert zones["by_client"][0]["client_id"] == "client-bf7hkoak"


def test_a_key_makes_other_pseudonyms() -> None:
    ours, theirs = anonymize(TOLD, b"ours"), anonymize(TOLD, b"theirs")
    names = [
        {row["client_id"] for row in report["by_client"] if row["client_id"]}
        for report in (anonymize(TOLD), ours, theirs)
    ]
    assert not names[0] & names[1]
    assert not names[1] & names[2]
    assert anonymize(TOLD, b"ours") == ours


def test_kinds_do_not_meet() -> None:
    plain = sample.report()
    report = anonymize(
        {
            **plain,
            "by_client": [{**plain["by_client"][0], "client_id": "events"}],
            "by_topic": [{**plain["by_topic"][0], "topic": "events"}],
        }
    )
    client, topic = report["by_client"][0]["client_id"], report["by_topic"][0]["topic"] or ""
    assert client.partition("-")[2] != topic.partition("-")[2]


def test_figures_ports_and_what_has_no_name_stay() -> None:
    before = deepcopy(TOLD)
    report = anonymize(TOLD)
    assert before == TOLD
    sample.assert_adds_up(report)
    for key in ("version", "policy", "time", "fetch", "over_time", "where", "readable"):
        assert report[key] == TOLD[key]
    net, told = report["modelled"]["net"], TOLD["modelled"]["net"]
    assert net is not None
    assert told is not None
    (host,) = net["paying"]["addresses"]
    assert re.fullmatch(r"host-\w{8}", host)
    paying = {**net["paying"], "addresses": told["paying"]["addresses"]}
    assert {**report["modelled"], "net": {**net, "paying": paying}} == TOLD["modelled"]
    assert report["by_client"][3]["client_id"] == ""
    assert report["by_topic"][-1]["topic"] is None
    assert [row["software"] for row in report["by_client"]] == [client[1] for client in sample.CLIENTS]
    assert csv.render(report).count("\r\n") == csv.render(TOLD).count("\r\n")


def test_problems_keep_their_words() -> None:
    first, second = anonymize(TOLD)["input"]["problems"]
    assert re.fullmatch(r"file-[a-z2-7]{8}", first["file"])
    assert first["problem"] == "the last record is cut after 1,204 of 1,514 bytes"
    assert second == {"file": "", "problem": "host-xbvzonjk:9092: 3 gaps, 48,112 bytes that the capture lost"}


def test_addresses_and_the_file_itself_in_a_problem() -> None:
    plain = sample.report()
    file = "s3://traces/db7.pcap"
    words = f"{file} not opened by fd00:20::13 at 12:30:05, nor 10.20.0.12"
    report = anonymize({**plain, "input": {**plain["input"], "problems": [{"file": file, "problem": words}]}})
    (problem,) = report["input"]["problems"]
    assert problem["problem"] == (
        f"{problem['file']} not opened by host-aihkuqmo at 12:30:05, nor host-xbvzonjk"
    )


@given(st.text(st.characters(), min_size=1))
def test_any_name_has_a_pseudonym(name: str) -> None:
    plain = sample.report()
    report = anonymize({**plain, "by_client": [{**plain["by_client"][0], "client_id": name}]})
    assert re.fullmatch(r"client-[a-z2-7]{8}", report["by_client"][0]["client_id"])
