"""Links in README.md, docs/ and the pages next to them lead to existing files and anchors, as a code host resolves them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.site import links

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(page.name for page in ROOT.glob("*.md")), *(f"docs/{page.name}" for page in ROOT.glob("docs/*.md"))])
INDEX = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
COPIED = {"changelog", "security-policy"}
"""Pages of the site that are outside docs/ in the project."""


@pytest.mark.parametrize("page", PAGES)
def test_links_are_not_broken(page: str) -> None:
    """Every linked file exists and has the linked heading."""
    assert list(links.find_problems(ROOT, page)) == []


def test_links_are_found() -> None:
    """The pages have several hundred links, some with anchors."""
    found = {page: list(links.find_links((ROOT / page).read_text(encoding="utf-8"))) for page in PAGES}
    assert {"README.md", "SECURITY.md", "CHANGELOG.md", "docs/index.md", "docs/gateway.md"} <= found.keys()
    assert sum(map(len, found.values())) > 400
    assert any("#" in link.target for link in found["docs/gateway.md"])


def test_broken_links_are_found(tmp_path: Path) -> None:
    """Missing files, missing anchors and files outside of the project are reported; code and other hosts are not."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "b.md").write_text("# Two words, `three`!\n\n## Again\n\n## Again\n")
    (tmp_path / "docs" / "a.md").write_text(
        "# A\n[here](#a) [b](b.md#two-words-three) [again](b.md#again-1) [host](https://example.com/x.md) `[x](c.md)`\n"
        "```md\n[in a block](d.md)\n# No heading\n```\n"
        "[e](e.md) and [anchor](#no-heading)\n[b](b.md#again-2)\n[out](../../f.md)\n"
    )
    assert list(links.find_problems(tmp_path, "docs/a.md")) == [
        "docs/a.md:7: there is no e.md",
        "docs/a.md:7: docs/a.md has no heading #no-heading",
        "docs/a.md:8: docs/b.md has no heading #again-2",
        "docs/a.md:9: there is no ../../f.md",
    ]


def test_every_page_is_in_the_index() -> None:
    """Each page is once in a toctree and has a link for readers on a code host; toctrees name no missing pages."""
    pages = {page.removeprefix("docs/").removesuffix(".md") for page in PAGES if page.startswith("docs/")} - {"index"}
    trees = re.findall(r"```{toctree}\n(.*?)```", INDEX, re.DOTALL)
    named = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    written = [name for name in named if not name.startswith("reference/")]
    assert len(named) == len(set(named))
    assert set(written) == pages | COPIED
    assert pages <= {link.target.removesuffix(".md") for link in links.find_links(INDEX)}
