"""Links in README.md, docs/ and the pages beside them lead somewhere: files and anchors, as a code host has them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.site import links

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(page.name for page in ROOT.glob("*.md")), *(f"docs/{page.name}" for page in ROOT.glob("docs/*.md"))])
INDEX = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
MADE = {"changelog", "security-policy"}
"""Pages of the site that lie elsewhere in the project."""


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """Every file is there, and has the heading that is named."""
    assert list(links.find_problems(ROOT, page)) == []


def test_there_are_links_to_follow() -> None:
    """Of all pages, and most of them; README.md's lead into docs/."""
    found = {page: list(links.find_links((ROOT / page).read_text(encoding="utf-8"))) for page in PAGES}
    assert {"README.md", "SECURITY.md", "CHANGELOG.md", "docs/index.md", "docs/gateway.md"} <= found.keys()
    assert sum(map(len, found.values())) > 400
    assert any("#" in link.target for link in found["docs/gateway.md"])


def test_what_leads_nowhere_is_found(tmp_path: Path) -> None:
    """A file, an anchor here and elsewhere, what lies outside of the project; not what is code, and not other hosts."""
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
    """Once in its tree, and by a link for who reads it on a code host; the tree names nothing that is not there."""
    pages = {page.removeprefix("docs/").removesuffix(".md") for page in PAGES if page.startswith("docs/")} - {"index"}
    trees = re.findall(r"```{toctree}\n(.*?)```", INDEX, re.DOTALL)
    named = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    written = [name for name in named if not name.startswith("reference/")]
    assert len(named) == len(set(named))
    assert set(written) == pages | MADE
    assert pages <= {link.target.removesuffix(".md") for link in links.find_links(INDEX)}
