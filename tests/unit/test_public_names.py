"""The public names: the page and the pinned list are those of the code, and a change of a name or a default is noticed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import holdfast
from scripts.public_names import page, python_names, server_names
from scripts.site.python_api import find_packages

ROOT = Path(__file__).parents[2]
CONTRIBUTORS_PAGES = {"architecture"}
"""Pages that name internal code."""


@pytest.mark.parametrize("path", page.FILES, ids=lambda path: path.name)
def test_public_names_are_pinned(path: Path) -> None:
    """If a difference is meant, `python -m scripts.public_names` writes the file; CHANGELOG.md says what users notice."""
    written, made = path.read_text(encoding="utf-8").splitlines(), page.FILES[path]().splitlines()
    different = [f"- {line}" for line in written if line not in made] + [
        f"+ {line}" for line in made if line not in written
    ]
    if written != made:  # pytest needs minutes to compare lists of this size
        pytest.fail("\n".join(["run `python -m scripts.public_names` if this is meant:", *different[:20]]))


def test_every_name_of_the_package_has_one_subject() -> None:
    """The page lists each name of `holdfast` once, with a description."""
    named = [name for names in page.SUBJECTS.values() for name in names]
    assert sorted(named) == sorted(holdfast.__all__)
    written = (ROOT / "docs" / "public-names.md").read_text(encoding="utf-8")
    assert all(re.search(rf"^\| `{name}` \| \S", written, re.MULTILINE) for name in named)


def test_every_public_package_has_a_page() -> None:
    """Packages with `__all__`, and all adapters."""
    assert page.PAGES.keys() == (find_packages().keys() - {"holdfast"}) | python_names.list_adapters().keys()


def test_headers_that_the_server_reads_are_listed() -> None:
    """The OpenAPI document describes every header that only Holdfast gives a meaning."""
    read = server_names.list_read_headers()
    assert {"x-session-match", "x-memory", "idempotency-key"} <= read
    assert read <= {name.lower() for name in server_names.list_headers()}


def test_variables_that_the_code_reads_are_listed() -> None:
    """Each variable that is read by its name is on the page."""
    sources = "\n".join(path.read_text(encoding="utf-8") for path in server_names.SOURCE.rglob("*.py"))
    read = set(re.findall(r'\b(?:env|environ)(?:\.get\(|\[)"([A-Z_]+)"', sources)) - {"PATH"}
    assert "HOLDFAST_CONFIG" in read
    assert read <= server_names.VARIABLES.keys()


def test_internal_members_exist_and_no_page_names_them() -> None:
    """What a page tells users to call is public."""
    classes = python_names.list_interfaces()
    guides = [one for one in (ROOT / "docs").glob("*.md") if one.stem not in CONTRIBUTORS_PAGES]
    text = "\n".join(one.read_text(encoding="utf-8") for one in [*guides, ROOT / "README.md"])
    for name, members in python_names.INTERNAL.items():
        everything = {*dir(classes[name]), *python_names.list_attributes(classes[name])}
        assert members <= everything, name
        if name in {"Holdfast", "SessionHandle"}:
            called = "hf" if name == "Holdfast" else "session"
            assert [one for one in members if re.search(rf"\b{called}\.{one}\b", text)] == []


def test_a_changed_signature_changes_the_pinned_text() -> None:
    """Names, kinds, order and defaults of parameters count; annotations and `self` do not."""

    class Before:
        def search(self, query: str, *, limit: int = 10) -> None: ...

    class After:
        def search(self, query: bytes, *, limit: int = 20) -> None: ...

    def show(cls: type) -> str:
        return python_names.format_signature(cls.search, bound=True)  # type: ignore[attr-defined]

    assert show(Before) == "(query, *, limit=10)"
    assert show(After) == "(query, *, limit=20)"


def test_no_default_is_printed_with_an_address() -> None:
    """Otherwise the pinned list would differ from run to run."""
    assert not re.search(r"0x[0-9a-f]{6}", page.make_pin())
