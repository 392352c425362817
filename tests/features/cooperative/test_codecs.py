"""Compression of batches: what comes back, and what is refused."""

import zlib
from contextlib import suppress

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from proxy.features.cooperative.codecs import (
    GZIP,
    LZ4,
    MOST_BYTES,
    SNAPPY,
    ZSTD,
    CodecError,
    compress,
    decompress,
)
from tests.features.cooperative.batch import at_most_allocated


@pytest.mark.parametrize(
    ("codec", "payload"),
    [
        (ZSTD, zstandard.ZstdCompressor().compress(bytes(1 << 28))),
        (GZIP, zlib.compress(bytes(1 << 28), wbits=31)),
        (LZ4, lz4.frame.compress(bytes(1 << 28))),
        (SNAPPY, b"\x80\x80\x80\x80\x01" + bytes(100)),
        (SNAPPY, b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + (105).to_bytes(4) + b"\x80\x80\x80\x80\x01" + bytes(100)),
    ],
)
def test_what_expands_to_too_much_is_refused(codec: int, payload: bytes) -> None:
    """Case C14: a few bytes that would decompress to 256 MiB are refused before they use much memory.

    The test accepts twice the size limit, because some codecs copy the last block when they shorten it.
    """
    with (
        at_most_allocated(2 * MOST_BYTES),
        pytest.raises(CodecError, match="it is too large after decompression"),
    ):
        decompress(codec, payload)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@given(data=st.binary(max_size=300))
def test_damaged_bytes_are_refused_and_nothing_else(codec: int, data: bytes) -> None:
    with suppress(CodecError):
        decompress(codec, data)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@given(data=st.binary(max_size=1000), times=st.integers(1, 500))
def test_what_is_compressed_comes_back(codec: int, data: bytes, times: int) -> None:
    assert decompress(codec, compress(codec, data * times)) == data * times
