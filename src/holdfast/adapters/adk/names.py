"""Encode names of ADK's artifacts as names that Holdfast allows, and decode them."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

USER: Final = "user:"
_PLAIN: Final = "._-(),@ "
_ESCAPED: Final = re.compile(r"(?:\+[0-9a-f]{2})+")
_DEVICE: Final = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])\s*(\..*)?", re.IGNORECASE)


def encode_name(name: str) -> str:
    """Encode a name so that Holdfast allows it. Different names stay different.

    Letters, digits and most marks do not change. Other characters become `+` and two hexadecimal digits for each byte of their UTF-8:
    `user:reports/a.pdf` becomes `user:reports+2fa.pdf`.
    """
    prefix, rest = (USER, name.removeprefix(USER)) if name.startswith(USER) else ("", name)
    encoded = "".join(sign if _is_plain(sign) else _escape(sign) for sign in rest)
    if unicodedata.normalize("NFC", encoded) != encoded:
        encoded = "".join(sign if sign.isascii() else _escape(sign) for sign in encoded)
    if encoded.startswith((".", " ")) or _DEVICE.fullmatch(encoded):
        encoded = _escape(encoded[0]) + encoded[1:]
    if encoded.endswith((".", " ")):
        encoded = encoded[:-1] + _escape(encoded[-1])
    return prefix + encoded


def decode_name(name: str) -> str:
    """Decode a name that `encode_name` returned."""
    return _ESCAPED.sub(lambda found: _unescape(found[0]), name)


def _is_plain(sign: str) -> bool:
    return sign in _PLAIN or unicodedata.category(sign)[0] in "LN"


def _escape(sign: str) -> str:
    return "".join(f"+{byte:02x}" for byte in sign.encode(errors="surrogatepass"))


def _unescape(text: str) -> str:
    try:
        return bytes.fromhex(text.replace("+", "")).decode(errors="surrogatepass")
    except UnicodeDecodeError:  # another program named the artifact
        return text
