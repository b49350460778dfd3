"""The pages of the reference, which are made from the code, have all of it: each route, command, option and public name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
from starlette.routing import Route

from holdfast import Holdfast
from holdfast.cli import commands
from holdfast.server.app import ROUTES, make_app
from holdfast.server.permissions import REST
from holdfast.server.routes import Endpoint
from scripts.site import commands as command_pages
from scripts.site import python_api, rest, staging
from scripts.site.markdown import escape_prose, format_table

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
INDEX = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


def sections(page: str) -> dict[str, str]:
    """What stands below each heading that is code, up to the next heading."""
    pieces = re.split(r"^#{2,6} (.+)$", page, flags=re.MULTILINE)
    found = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    return {name.strip("`"): text for name, text in found.items() if name.startswith("`")}


# -- REST ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """What the app says of itself."""
    return rest.load_document()


@pytest.fixture(scope="module")
def rest_pages() -> dict[str, str]:
    """The two pages of it."""
    return rest.make_pages()


def test_every_route_is_there(rest_pages: dict[str, str]) -> None:
    """Those that the app answers, and no other."""
    routed = {
        route.path
        for route in make_app(Holdfast("sqlite://:memory:")).routes
        if isinstance(route, Route) and isinstance(route.endpoint, Endpoint) and route.path != REST
    }
    wanted = {f"{route.method} {route.path}" for route in ROUTES}
    assert len(wanted) > 60
    assert {one.partition(" ")[2] for one in wanted} == routed
    assert sections(rest_pages[rest.PAGE]).keys() == wanted


def test_a_route_is_described_whole(document: dict[str, Any], rest_pages: dict[str, str]) -> None:
    """Each parameter, body, status and error, and who may; nothing of it is said of another one's route."""
    told = sections(rest_pages[rest.PAGE])
    parameters = bodies = 0
    for path, item in document["paths"].items():
        for method, one in item.items():
            section = told[f"{method.upper()} {path}"]
            assert "**Allowed for:**" in section
            assert ("everyone, without a key" in section) == (one["security"] == [])
            for parameter in one["parameters"]:
                assert f"| `{parameter['name']}` | {parameter['in']}" in section
                parameters += 1
            for status in one["responses"]:
                assert f"| `{status}` |" in section
            assert ("**Body:**" in section) == ("requestBody" in one)
            bodies += "requestBody" in one
    assert (parameters > 100, bodies > 20) == (True, True)


def test_every_object_is_there(document: dict[str, Any], rest_pages: dict[str, str]) -> None:
    """With each of its fields, and a place that links lead to."""
    page = rest_pages[rest.OBJECTS]
    told, schemas = sections(page), document["components"]["schemas"]
    assert len(schemas) > 80
    assert told.keys() == schemas.keys()
    for name, schema in schemas.items():
        assert f"({rest.make_anchor(name)})=" in page
        for field in schema.get("properties", {}):
            assert f"| `{field}` |" in told[name]
    aimed = set(re.findall(r"\]\(#(object-[^)]+)\)", "".join(rest_pages.values())))
    assert len(aimed) > 40
    assert aimed <= {rest.make_anchor(name) for name in schemas}


# -- the command line ----------------------------------------------------------


def below(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """A command, and all below it, by how they are called."""
    yield path, command
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from below(one, f"{path} {name}")


def test_every_command_and_option_is_there() -> None:
    """Each below the heading of its own command, with what it says of itself."""
    (page,) = command_pages.make_pages().values()
    told = sections(page)
    wanted = dict(below(commands, "holdfast"))
    assert len(wanted) > 50
    assert told.keys() == wanted.keys()
    options = 0
    for path, command in wanted.items():
        assert escape_prose((command.help or "").split("\n\n")[0]) in told[path]
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, (path, parameter.name)
                assert escape_prose(parameter.help) in told[path].replace(r"\|", "|")
                options += 1
                for name in parameter.opts:
                    assert re.search(rf"`[^`]*(?<![\w-]){re.escape(name)}\b", told[path]), (path, name)
            else:
                assert parameter.make_metavar(click.Context(command)) in told[path].replace(r"\|", "|")
    assert options > 250


# -- Python --------------------------------------------------------------------


def declared() -> Iterator[str]:
    """The packages whose source has `__all__`."""
    for path in SOURCE.glob("holdfast/**/__init__.py"):
        names = [
            target.id
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        ]
        if "__all__" in names:
            yield ".".join(path.parent.relative_to(SOURCE).parts)


def test_every_package_is_there() -> None:
    """A page each, in the list, and the public ones that everybody uses among them."""
    wanted = set(declared())
    assert {"holdfast", "holdfast.errors", "holdfast.secrets", "holdfast.stores", "holdfast.testing"} <= wanted
    assert python_api.find_packages().keys() == wanted
    pages = python_api.make_pages()
    assert pages.keys() == {python_api.INDEX, *(f"{python_api.FOLDER}/{name}.rst" for name in wanted)}
    assert all(f":doc:`{name} <{name}>`" in pages[python_api.INDEX] for name in wanted)


@pytest.mark.parametrize("package", sorted(declared()))
def test_every_public_name_is_there(package: str) -> None:
    """Described on the package's page, or by a link to where the same thing is described."""
    pages, homes = python_api.make_pages(), python_api.find_homes()
    page = pages[f"{python_api.FOLDER}/{package}.rst"]
    module = import_module(package)
    assert module.__all__
    for name in module.__all__:
        full = f"{package}.{name}"
        home = homes[full]
        if name.startswith(python_api.CHECK):
            assert f"``{name}``" in page
        elif home == full:
            assert re.search(rf"^\.\. auto\w+:: {re.escape(full)}$", page, re.MULTILINE)
        else:
            assert f":py:obj:`{home}`" in page
            there, _, short = home.rpartition(".")
            assert getattr(import_module(there), short) is getattr(module, name)
            assert f":: {home}\n" in pages[f"{python_api.FOLDER}/{there}.rst"]


# -- the site's sources ----------------------------------------------------------


def test_all_that_the_index_names_is_staged(tmp_path: Path) -> None:
    """Pages of people, and pages that are made; links between them are those of the site; a second time nothing is written anew."""
    staging.stage(tmp_path)
    trees = re.findall(r"```{toctree}\n(.*?)```", INDEX, re.DOTALL)
    named = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    assert len(named) > 40
    for name in named:
        assert [path for path in (tmp_path / f"{name}.md", tmp_path / f"{name}.rst") if path.exists()], name
    security = (tmp_path / "security-policy.md").read_text(encoding="utf-8")
    assert "](secrets.md)" in security
    assert "docs/" not in "".join(re.findall(r"\]\(([^)]+)\)", security))
    assert "](security-policy.md)" in (tmp_path / "security.md").read_text(encoding="utf-8")

    (tmp_path / "left.md").write_text("of a page that is no more")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.md")}
    staging.stage(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.md")} == {
        path: at for path, at in before.items() if path.name != "left.md"
    }


def test_words_mean_nothing_to_markdown() -> None:
    """But for code; a cell ends where it should."""
    assert escape_prose("a *b* `c*d` <e> {f} [g](h) i_j") == r"a \*b\* `c*d` \<e\> \{f\} \[g\](h) i\_j"
    assert format_table(("a", "b"), [("x | y", "`p|q`\nz")])[-2] == r"| x \| y | `p\|q` z |"
    assert format_table(("a",), []) == []


def test_docstrings_mean_nothing_to_sphinx() -> None:
    """The same in reStructuredText: code is set apart from the word that it stands in."""
    assert python_api.to_rst("`a` and `b`s, *c*, d_ |e|") == r"``a`` and ``b``\ s, \*c\*, d\_ \|e\|"
    assert python_api.to_rst("x`a`y and ` b`") == r"x\ ``a``\ y and \` b\`"
    assert python_api.to_rst("one ` alone") == r"one \` alone"
