"""Transactions are played whole, or not at all."""

import pytest

from proxy.protocol.api import ApiKey
from replay.drive.transactions import UNBEGUN, UNENDED, UNWANTED, Part, left_out

INIT, ADD, PRODUCE, END = (
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.PRODUCE,
    ApiKey.END_TXN,
)


def parts(*keys: int, transaction: bytes = b"tx") -> list[Part]:
    return [Part(transaction, key, gives=key == INIT) for key in keys]


@pytest.mark.parametrize(
    ("keys", "reasons"),
    [
        ((INIT, ADD, PRODUCE, END), ["", "", "", ""]),
        ((ADD, PRODUCE, END, INIT, ADD, END), [UNBEGUN] * 3 + [""] * 3),
        ((INIT, ADD, END, ADD, PRODUCE), ["", "", "", UNENDED, UNENDED]),
        ((INIT, ADD, PRODUCE, INIT), ["", "", "", ""]),
        ((INIT,), [""]),
    ],
)
def test_a_transaction_is_played_from_its_producers_id_to_its_end(
    keys: list[int], reasons: list[str]
) -> None:
    assert left_out(parts(*keys), {}) == reasons


def test_a_producer_that_got_no_id_has_not_begun() -> None:
    refused = Part(b"tx", INIT, gives=False)

    assert left_out([refused, *parts(PRODUCE, END)], {}) == ["", UNBEGUN, UNBEGUN]


def test_nothing_is_played_if_a_part_of_it_is_not() -> None:
    wanted = parts(INIT, PRODUCE) + parts(INIT, PRODUCE, END, transaction=b"other")

    reason = UNWANTED.format("AddPartitionsToTxn,EndTxn")
    assert left_out(wanted, {b"tx": {ADD, END}}) == [reason, reason, "", "", ""]


def test_without_a_transactional_id_there_is_no_transaction() -> None:
    assert left_out(parts(PRODUCE, INIT, transaction=b""), {b"": {END}}) == ["", ""]
