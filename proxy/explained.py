"""Values that users see, each with its meaning. The page of metrics and the report are made from them."""

from enum import StrEnum
from typing import Self


class Explained(StrEnum):
    """A word in a label or in a report, with its meaning and with what to do about it."""

    meaning: str
    remedy: str
    """Empty if there is nothing to do."""

    def __new__(cls, value: str, meaning: str = "", remedy: str = "") -> Self:  # look-ups have one value
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        member.remedy = remedy
        return member
