"""Rules for names and types of artifacts that need no store."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.artifacts.content import check_type, detect_type
from holdfast.domain.artifact import check_name, fold_name
from holdfast.errors import InvalidRequest

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20

# -- names ---------------------------------------------------------------------

BAD_NAMES = [
    "",
    "user:",
    ".",
    "..",
    "../a",
    "a/../b",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "C:\\a",
    "\\\\server\\share",
    "//server/share",
    "a:b",
    "app:a",
    "temp:a",
    "user:user:a",
    "user:../a",
    ".hidden",
    "a.",
    "a ",
    " a",
    "a\n",
    "a\r\nSet-Cookie: x",
    "a\0b",
    "a\tb",
    "a\u202egnp.exe",
    "a\u200bb",
    "\u2066a",
    "\ufeffa",
    "a\u2028b",
    "a\u00a0b",
    "a\uff0fb",
    "\u2215a",
    "CON",
    "con.txt",
    "nul",
    "Aux.tar.gz",
    "COM1",
    "lpt9.md",
    "com\u00b9",
    "CONIN$",
    "\ud800",
    "a*",
    "a?",
    '"a"',
    "<a>",
    "a|b",
    "a%2fb",
    "\u0301a",
    "a" * 256,
    "\u00e9" * 128,
    "\U0001f600",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_dangerous_names_are_rejected(name: str) -> None:
    """The message names the allowed characters and is printable."""
    with pytest.raises(InvalidRequest, match="letters, digits") as caught:
        check_name(name)
    assert caught.value.param == "name"
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "a" * 255,
        "user:" + "a" * 255,
        "Q3 (final), v2@home_+-.tar.gz",
        "r\u00e9sum\u00e9.pdf",
        "\u62a5\u544a.docx",
        "\u0939\u093f\u0928\u094d\u0926\u0940",
        "7",
        "console.txt",
        "a..b",
        "com10",
    ],
)
def test_valid_names_are_accepted(name: str) -> None:
    assert check_name(name) == name


@given(st.text(max_size=30))
def test_accepted_names_are_harmless(name: str) -> None:
    """An accepted name is not a path on any system and is normalized."""
    try:
        found = check_name(name)
    except InvalidRequest:
        return
    assert check_name(found) == found
    assert fold_name(fold_name(found)) == fold_name(found)
    plain = found.removeprefix("user:")
    assert not set(plain) & set('/\\:*?"<>|\0')
    assert plain.isprintable()
    assert Path(plain).name == plain


@given(st.text("aA\u00e9\u00c9e\u0301sS\u00df\u017f\u0130i\u0131I", min_size=1, max_size=6))
def test_folded_names_ignore_case_and_unicode_form(name: str) -> None:
    """Upper, lower and title case and both Unicode forms are equal."""
    for form in ("NFC", "NFD"):
        assert fold_name(unicodedata.normalize(form, name)) == fold_name(name)
    assert fold_name(name.casefold()) == fold_name(name)


# -- types ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "head", "declared", "found"),
    [
        ("a.png", PNG, None, "image/png"),
        ("a", PNG, None, "image/png"),
        ("a.txt", PNG, None, "image/png"),
        ("a.jpg", PNG, None, "image/png"),
        ("a.png", b"no image", None, "application/octet-stream"),
        ("a.txt", b"hi", None, "text/plain"),
        ("a.md", b"# hi", None, "text/markdown"),
        ("a.html", b"<p>", None, "text/html"),
        ("a.tar.gz", b"\x1f\x8b", None, "application/gzip"),
        ("a.docx", b"PK\x03\x04", None, "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
        ("a", b"", None, "application/octet-stream"),
        ("a", b"anything", "Text/Plain; charset=utf-8", "text/plain; charset=utf-8"),
        ("a", b"PK\x03\x04", "application/x-mine", "application/x-mine"),
        ("a", PNG, "application/octet-stream", "application/octet-stream"),
        ("a", b"\n%PDF-1.7", "application/pdf", "application/pdf"),
        ("a", b"RIFF\n\0\0\0WEBPVP8 ", "image/webp", "image/webp"),
    ],
)  # fmt: skip
def test_the_type_is_declared_or_detected(name: str, head: bytes, declared: str | None, found: str) -> None:
    """The declared type, or else the type of the name unless the content contradicts it."""
    assert detect_type(name, head, declared) == found


@pytest.mark.parametrize(
    "value",
    ["", "text", "text/", "/plain", "text/pl ain", "text/plain\r\nx: y", "text/plain; a", "é/x", "a/" + "b" * 255],
)
def test_invalid_types_are_rejected(value: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_type(value)
    assert caught.value.param == "mime_type"
