"""The generated reference pages contain every route, command, option and public name."""

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
from holdfast.server.access import PAGES
from holdfast.server.app import ROUTES, make_app
from holdfast.server.permissions import REST
from holdfast.server.routes import Endpoint
from scripts.site import commands as command_pages
from scripts.site import python_api, rest, source_folder
from scripts.site.markdown import escape_prose, format_table

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
INDEX = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


def sections(page: str) -> dict[str, str]:
    """Return the text below each heading that is code, up to the next heading."""
    pieces = re.split(r"^#{2,6} (.+)$", page, flags=re.MULTILINE)
    found = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    return {name.strip("`"): text for name, text in found.items() if name.startswith("`")}


# -- REST ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The OpenAPI document of the app."""
    return rest.load_document()


@pytest.fixture(scope="module")
def rest_pages() -> dict[str, str]:
    """The two pages made from the document."""
    return rest.make_pages()


def test_every_route_is_documented(rest_pages: dict[str, str]) -> None:
    """The page has the routes that the app answers, and no others."""
    routed = {
        route.path
        for route in make_app(Holdfast("sqlite://:memory:")).routes
        if isinstance(route, Route)
        and isinstance(route.endpoint, Endpoint)
        and route.path != REST
        and not route.path.startswith(PAGES)
    }
    wanted = {f"{route.method} {route.path}" for route in ROUTES}
    assert len(wanted) > 60
    assert {one.partition(" ")[2] for one in wanted} == routed
    assert sections(rest_pages[rest.PAGE]).keys() == wanted


def test_a_route_is_described_completely(document: dict[str, Any], rest_pages: dict[str, str]) -> None:
    """Each parameter, body, status, error and permission is in the section of its own route."""
    described = sections(rest_pages[rest.PAGE])
    parameters = bodies = 0
    for path, item in document["paths"].items():
        for method, one in item.items():
            section = described[f"{method.upper()} {path}"]
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


def test_every_object_is_documented(document: dict[str, Any], rest_pages: dict[str, str]) -> None:
    """Each object has all of its fields and an anchor."""
    page = rest_pages[rest.OBJECTS]
    described, schemas = sections(page), document["components"]["schemas"]
    assert len(schemas) > 80
    assert described.keys() == schemas.keys()
    for name, schema in schemas.items():
        assert f"({rest.make_anchor(name)})=" in page
        for field in schema.get("properties", {}):
            assert f"| `{field}` |" in described[name]
    aimed = set(re.findall(r"\]\(#(object-[^)]+)\)", "".join(rest_pages.values())))
    assert len(aimed) > 40
    assert aimed <= {rest.make_anchor(name) for name in schemas}


# -- the command line ----------------------------------------------------------


def list_commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield a command and all of its subcommands with their full names."""
    yield path, command
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            if not one.hidden:
                yield from list_commands(one, f"{path} {name}")


def test_every_command_and_option_is_documented() -> None:
    """Each option is below the heading of its command, with its help text."""
    (page,) = command_pages.make_pages().values()
    described = sections(page)
    wanted = dict(list_commands(commands, "holdfast"))
    assert len(wanted) > 50
    assert described.keys() == wanted.keys()
    options = 0
    for path, command in wanted.items():
        assert escape_prose((command.help or "").split("\n\n")[0]) in described[path]
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, (path, parameter.name)
                assert escape_prose(parameter.help) in described[path].replace(r"\|", "|")
                options += 1
                for name in parameter.opts:
                    assert re.search(rf"`[^`]*(?<![\w-]){re.escape(name)}\b", described[path]), (path, name)
            else:
                assert parameter.make_metavar(click.Context(command)) in described[path].replace(r"\|", "|")
    assert options > 250


# -- Python --------------------------------------------------------------------


def list_public_packages() -> Iterator[str]:
    """Yield the packages whose source defines `__all__`."""
    for path in SOURCE.glob("holdfast/**/__init__.py"):
        names = [
            target.id
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        ]
        if "__all__" in names and "adapters" not in path.parts:  # their frameworks are not installed here
            yield ".".join(path.parent.relative_to(SOURCE).parts)


def test_every_package_is_documented() -> None:
    """Each package has a page and an entry in the index, including the packages that most users import."""
    wanted = set(list_public_packages())
    assert {"holdfast", "holdfast.errors", "holdfast.secrets", "holdfast.stores", "holdfast.testing"} <= wanted
    assert python_api.find_packages().keys() == wanted
    pages = python_api.make_pages()
    assert pages.keys() == {python_api.INDEX, *(f"{python_api.FOLDER}/{name}.rst" for name in wanted)}
    assert all(f":doc:`{name} <{name}>`" in pages[python_api.INDEX] for name in wanted)


@pytest.mark.parametrize("package", sorted(list_public_packages()))
def test_every_public_name_is_documented(package: str) -> None:
    """Each name is described on the package's page, or linked to the page that describes it."""
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


def test_all_pages_in_the_index_are_staged(tmp_path: Path) -> None:
    """Written and generated pages are staged with links of the site; staging again writes nothing."""
    source_folder.stage(tmp_path)
    trees = re.findall(r"```{toctree}\n(.*?)```", INDEX, re.DOTALL)
    named = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    assert len(named) > 40
    for name in named:
        assert [path for path in (tmp_path / f"{name}.md", tmp_path / f"{name}.rst") if path.exists()], name
    security = (tmp_path / "security-policy.md").read_text(encoding="utf-8")
    assert "](secrets.md)" in security
    assert "docs/" not in "".join(re.findall(r"\]\(([^)]+)\)", security))
    assert "](security-policy.md)" in (tmp_path / "security.md").read_text(encoding="utf-8")

    (tmp_path / "left.md").write_text("of a deleted page")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.md")}
    source_folder.stage(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.md")} == {
        path: at for path, at in before.items() if path.name != "left.md"
    }


def test_prose_is_escaped_for_markdown() -> None:
    """Code is not escaped, except for pipes in table cells."""
    assert escape_prose("a *b* `c*d` <e> {f} [g](h) i_j") == r"a \*b\* `c*d` \<e\> \{f\} \[g\](h) i\_j"
    assert format_table(("a", "b"), [("x | y", "`p|q`\nz")])[-2] == r"| x \| y | `p\|q` z |"
    assert format_table(("a",), []) == []


def test_docstrings_are_escaped_for_sphinx() -> None:
    """Code is not escaped, and is separated from a word that it is attached to."""
    assert python_api.to_rst("`a` and `b`s, *c*, d_ |e|") == r"``a`` and ``b``\ s, \*c\*, d\_ \|e\|"
    assert python_api.to_rst("x`a`y and ` b`") == r"x\ ``a``\ y and \` b\`"
    assert python_api.to_rst("one ` alone") == r"one \` alone"
