import pytest

from proxy.text.units import milliseconds, seconds, size, switch, word


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("0", 0),
        ("268435456", 268_435_456),
        ("268435456.0", 268_435_456),  # TOML's 2.68435456e8
        ("10m", 10 * 1024**2),
        ("64K", 64 * 1024),
        ("1g", 1024**3),
        ("256MiB", 256 * 1024**2),
        ("256 mib", 256 * 1024**2),
        ("2GiB", 2 * 1024**3),
        ("4KiB", 4096),
        ("1.5GB", 1_500_000_000),
        ("10MB", 10_000_000),
        ("10mb", 10_000_000),
        ("8kB", 8000),
        (" 100B ", 100),
        ("1.3GiB", 1_395_864_371),
    ],
)
def test_a_size_may_have_a_unit(text: str, bytes_: int) -> None:
    assert size(text) == bytes_


@pytest.mark.parametrize(
    "text",
    [
        "",
        "m",
        "-1",
        "1.5",
        "1e6",
        "10x",
        "10 m b",
        "1.m",
        "٣",
        "0x10",
        "1_000",
        "inf",
        "9" * 5000,
        "9" * 400 + "m",
    ],
)
def test_what_is_no_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size; give bytes, or a unit as in 10m"):
        size(text)


def test_a_size_has_a_lowest_value() -> None:
    assert size("0") == 0
    with pytest.raises(ValueError, match=r"'0m' must be at least 1 byte$"):
        size("0m", lowest=1)
    with pytest.raises(ValueError, match="'7' must be at least 8 bytes"):
        size("7", lowest=8)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0", 0),
        ("600", 600),
        ("0.5", 0.5),
        ("1e3", 1000),
        ("500ms", 0.5),
        ("30s", 30),
        ("1.5m", 90),
        ("1H", 3600),
    ],
)
def test_a_time_may_have_a_unit(text: str, found: float) -> None:
    assert seconds(text) == found


@pytest.mark.parametrize(
    "text", ["", "soon", "-1", "inf", "nan", "5d", "1m30s", "s", "10m b", "9" * 400 + "s"]
)
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time; give seconds, or a unit as in 500ms, 30s, 5m or 1h"):
        seconds(text)


def test_an_option_in_milliseconds_takes_the_same_units() -> None:
    texts = ("120000", "120000.0", "500ms", "2m", "0.5s", "1h")
    assert [milliseconds(text) for text in texts] == [120_000, 120_000, 500, 120_000, 500, 3_600_000]
    with pytest.raises(ValueError, match=r"'1\.5' is not a time; give milliseconds, or a unit"):
        milliseconds("1.5")
    for text in ("-1", "9" * 5000, "9" * 5000 + "h"):
        with pytest.raises(ValueError, match=f"'{text}' is not a time"):
            milliseconds(text)


def test_a_number_may_have_zeros_before_it() -> None:
    zeros = "0" * 5000
    assert (size(zeros + "1"), size(zeros), size(zeros + "2k")) == (1, 0, 2048)
    assert (milliseconds(zeros + "7"), milliseconds(zeros + "7s")) == (7, 7000)


@pytest.mark.parametrize("text", ["on", "true", "yes", "1", "On", "TRUE", " yes "])
def test_these_words_mean_on(text: str) -> None:
    assert switch(text)
    assert word(text) == "on"


@pytest.mark.parametrize("text", ["off", "false", "no", "0", "OFF", "False"])
def test_these_words_mean_off(text: str) -> None:
    assert not switch(text)
    assert word(text) == "off"


def test_other_words_are_no_switch() -> None:
    assert word("Auto") == "auto"
    for text in ("", "auto", "2", "o n"):
        with pytest.raises(ValueError, match="is not one of on, off"):
            switch(text)
