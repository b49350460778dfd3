"""`make english` finds each kind of text that is not plain English, and nothing in texts that are."""

from __future__ import annotations

import pytest

from scripts import english


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        ('def told() -> None:\n    """Report the result."""\n', {"participle"}),
        ('def report() -> None:\n    """What came of it."""\n', {"opening"}),
        ('def report() -> None:\n    """See report_all."""\n', {"see"}),
        ("# The caller is told of it.\n", {"word"}),
        ("x = 1  # as DESIGN.md says\n", {"document"}),
        (f'"""{"word " * (english.LONGEST + 1)}."""\n', {"long"}),
        (f'WORDS = """{"word " * (english.LONGEST + 1)}"""\n', set()),
        ('class A:\n    @property\n    def stored(self) -> bool:\n        """True if it is stored."""\n', set()),
        ('def report() -> None:\n    """Report the result. Retry after an error."""\n', set()),
        ('raise ValueError("the caller was told of it")\n', {"word"}),
        ('def proceed() -> None:\n    """Continue."""\n', set()),
    ],
)
def test_findings_in_a_module(source: str, kinds: set[str]) -> None:
    assert {one.kind for one in english.find_in_module("src/holdfast/reports.py", source)} == kinds


def test_a_module_that_is_named_by_an_activity_is_found() -> None:
    assert [one.kind for one in english.find_in_module("src/holdfast/telling.py", "")] == ["gerund"]


def test_names_in_tests_are_checked_without_their_prose() -> None:
    source = (
        'def told() -> None:\n    """What came of it."""\n\n\n@pytest.fixture\ndef opened() -> str:\n    return "x"\n'
    )
    assert [(one.kind, one.text) for one in english.find_names("tests/reports.py", source)] == [("participle", "told")]


def test_templates_are_checked_without_their_tags() -> None:
    template = '<p class="beside">{{ told }} {% if told of %}Plain words.</p>\n<p>It stands in the log.</p>'
    assert [one.place for one in english.find_in_template("page.html", template)] == ["page.html:2"]


def test_old_releases_in_the_changelog_are_not_checked() -> None:
    assert list(english.find_in_page("CHANGELOG.md", f"# Changes\n{english.FIRST_RELEASE}\n\nIt was told of.\n")) == []


def test_code_and_tables_of_a_page_are_not_checked() -> None:
    page = "# Title\n\nShort sentences.\n\n```python\nx = 'told of'\n```\n\n| a | b beside c |\n| --- | --- |\n"
    assert list(english.find_in_page("docs/page.md", page)) == []
    assert [one.kind for one in english.find_in_page("docs/page.md", "It is told of by whoever stands beside.")] == [
        "word"
    ] * 3
