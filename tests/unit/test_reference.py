"""The generated pages of commands, routes, keys, strategies and names are those of the code."""

from __future__ import annotations

import pytest

from scripts.reference import DOCS, PAGES, make_pages


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return make_pages()


@pytest.mark.parametrize("name", PAGES)
def test_page_is_that_of_the_code(pages: dict[str, str], name: str) -> None:
    """If a difference is meant, `python -m scripts.reference` writes the page."""
    written, made = (DOCS / name).read_text(encoding="utf-8").splitlines(), pages[name].splitlines()
    different = [f"- {line}" for line in written if line not in made] + [
        f"+ {line}" for line in made if line not in written
    ]
    assert written == made, "\n".join(["run python -m scripts.reference", *different[:20]])
