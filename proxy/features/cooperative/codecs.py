"""Compression of record batches (KIP-98, attributes bits 0 to 2), with a limit on the decompressed size.

A producer could send a small batch that expands to gigabytes. So decompression stops at the limit, before
more memory is used.
"""

import zlib
from collections.abc import Callable
from typing import Final

import cramjam
import lz4.frame
import zstandard

from proxy.protocol.primitives import Buffer

MOST_BYTES: Final = 64 << 20
"""The largest decompressed size of a batch, in bytes."""
_MOST_TIMES: Final = 200
_ALWAYS: Final = 1 << 20
"""The decompressed size that is always allowed, in bytes: a small batch of equal records expands a lot."""
GZIP, SNAPPY, LZ4, ZSTD = range(1, 5)
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL + (1).to_bytes(4) + (1).to_bytes(4)
"""What precedes Snappy chunks of Kafka's Java client: magic, version, and the lowest compatible version."""
_XERIAL_CHUNK: Final = 1 << 15


class CodecError(ValueError):
    """The bytes can't be decompressed, or the decompressed size exceeds the limit."""


def decompress(codec: int, payload: Buffer) -> bytes:
    """Decompress the records of a batch, with the codec in its attributes: 1 to 4.

    Raises:
        CodecError: the codec is unknown, the bytes are damaged, or the result is too large. Results up to 1
            MiB are always allowed. Above that, the limit is 200 times the compressed size, but at most 64
            MiB.
    """
    most = min(MOST_BYTES, max(_ALWAYS, _MOST_TIMES * len(payload)))
    try:
        return _DECOMPRESS[codec](payload, most)
    except KeyError:
        raise CodecError(f"codec {codec} is unknown") from None
    except (zlib.error, RuntimeError, zstandard.ZstdError, cramjam.DecompressionError, EOFError) as error:
        raise CodecError(f"{_NAMES[codec]} does not decompress: {error}") from None


def compress(codec: int, payload: bytes) -> bytes:
    """Compress records with the codec of this number, from 1 to 4."""
    return _COMPRESS[codec](payload)


def _gunzip(payload: Buffer, most: int) -> bytes:
    inflate = zlib.decompressobj(wbits=31)
    out = inflate.decompress(payload, most + 1)
    return _whole(out, most, ended=inflate.eof)


def _gzip(payload: bytes) -> bytes:
    deflate = zlib.compressobj(level=1, wbits=31)
    return deflate.compress(payload) + deflate.flush()


def _unlz4(payload: Buffer, most: int) -> bytes:
    frame = lz4.frame.LZ4FrameDecompressor()
    out: bytes = frame.decompress(payload, max_length=most + 1)
    return _whole(out, most, ended=frame.eof)


def _lz4(payload: bytes) -> bytes:
    # Java's client can't read LZ4 frames with linked blocks (KafkaLZ4BlockInputStream).
    frame: bytes = lz4.frame.compress(payload, block_linked=False, store_size=False)
    return frame


def _unzstd(payload: Buffer, most: int) -> bytes:
    # An incomplete frame gives fewer bytes. The code that reads the records finds the error.
    frame = zstandard.ZstdDecompressor(max_window_size=MOST_BYTES).stream_reader(payload)
    return _whole(frame.read(most + 1), most, ended=True)


def _zstd(payload: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(payload)


def _unsnappy(payload: Buffer, most: int) -> bytes:
    if payload[: len(_XERIAL)] != _XERIAL:
        return _unsnappy_raw(payload, most)
    at, parts = len(_XERIAL_HEADER), []
    while at < len(payload):
        size = int.from_bytes(payload[at : at + 4])
        at += 4
        if at + size > len(payload):
            raise EOFError("cut off")
        part = _unsnappy_raw(payload[at : at + size], most)
        at, most = at + size, most - len(part)
        parts.append(part)
    return b"".join(parts)


def _unsnappy_raw(payload: Buffer, most: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(payload) > most:
        raise CodecError(_TOO_MUCH)
    return bytes(cramjam.snappy.decompress_raw(payload))


def _snappy(payload: bytes) -> bytes:
    parts = [_XERIAL_HEADER]
    for at in range(0, len(payload), _XERIAL_CHUNK):
        chunk = bytes(cramjam.snappy.compress_raw(payload[at : at + _XERIAL_CHUNK]))
        parts += [len(chunk).to_bytes(4), chunk]
    return b"".join(parts)


def _whole(out: bytes, most: int, *, ended: bool) -> bytes:
    if len(out) > most:
        raise CodecError(_TOO_MUCH)
    if not ended:
        raise EOFError("cut off")
    return out


_TOO_MUCH: Final = "it is too large after decompression"
_NAMES: Final = {GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}
_DECOMPRESS: Final[dict[int, Callable[[Buffer, int], bytes]]] = {
    GZIP: _gunzip,
    SNAPPY: _unsnappy,
    LZ4: _unlz4,
    ZSTD: _unzstd,
}
_COMPRESS: Final[dict[int, Callable[[bytes], bytes]]] = {GZIP: _gzip, SNAPPY: _snappy, LZ4: _lz4, ZSTD: _zstd}
