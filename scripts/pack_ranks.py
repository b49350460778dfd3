"""Pack a .tiktoken file for src/holdfast/data: `python scripts/pack_ranks.py IN.tiktoken OUT.ranks`.

A .tiktoken file has one line per token, `base64(bytes) rank`, with ranks from 0 without gaps. So the rank is the position, and the
packed file only needs a length byte before each token's bytes. It uses zlib, because Pythons that were built without lzma's headers
lack lzma. Prints the hash that tokens.py expects.
"""

import base64
import hashlib
import sys
import zlib
from pathlib import Path


def pack(source: bytes) -> bytes:
    """Return the packed form of a .tiktoken file's bytes."""
    tokens = bytearray()
    for expected, line in enumerate(source.splitlines()):
        token, rank = line.split()
        raw = base64.b64decode(token)
        if int(rank) != expected or not 0 < len(raw) < 256:
            raise SystemExit(f"line {expected + 1} cannot be packed: {line!r}")
        tokens += bytes([len(raw)]) + raw
    return zlib.compress(bytes(tokens), 9)


def main() -> None:
    """Pack the first named file into the second."""
    source, target = (Path(argument) for argument in sys.argv[1:3])
    original = source.read_bytes()
    packed = pack(original)
    target.write_bytes(packed)
    print(f"{source.name}: sha256 {hashlib.sha256(original).hexdigest()}, {len(original)} bytes")
    print(f"{target.name}: sha256 {hashlib.sha256(packed).hexdigest()}, {len(packed)} bytes")


if __name__ == "__main__":
    main()
