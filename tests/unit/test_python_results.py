"""The `python` tool: artifact names of files, and results within the length limit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config.build import build_python_settings
from holdfast.config.loader import load
from holdfast.domain.artifact import check_name
from holdfast.errors import ConfigError, InvalidRequest
from holdfast.tools.python.files import make_artifact_name
from holdfast.tools.python.settings import PythonSettings
from holdfast.tools.python.tool import fit_result

PARTS = st.text(st.characters(codec=None, exclude_characters="/\0"), min_size=1, max_size=300)
"""Names in a folder, with surrogates for bytes that are no UTF-8."""
PATHS = st.lists(PARTS, min_size=1, max_size=4).map("/".join)


# -- names ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("out.csv", "out.csv"),
        ("data/2024/out.csv", "data,2024,out.csv"),
        ("Ünïcode ß.txt", "Ünïcode ß.txt"),
        (".hidden", "hidden-"),
        ("a\nb.txt", "a_b-"),
        ("con.txt", "con-"),
        ("user:all.txt", "user_all-"),
        ("a,b.txt", "a,b-"),
        ("plot-3.png", "plot-3-"),
        ("\udcff.png", "_-"),
        ("x" * 400 + ".json", "x" * 100),
    ],
)
def test_artifact_names_of_files(path: str, name: str) -> None:
    """The path if it is a valid name, otherwise what is left of it with its suffix."""
    called = make_artifact_name(path)
    assert called.startswith(name)
    assert check_name(called) == called
    assert called.endswith(path[path.rindex(".") :] if path.count(".") == 1 and not path.startswith(".") else "")


@given(PATHS, PATHS)
def test_different_paths_have_different_names(one: str, other: str) -> None:
    """Every path gives a valid name that is never the name of a plot."""
    names = make_artifact_name(one), make_artifact_name(other)
    for name in names:
        assert check_name(name) == name
    assert (names[0] == names[1]) == (one == other)


# -- results -------------------------------------------------------------------


TEXTS = st.text(max_size=40).flatmap(lambda text: st.integers(0, 2000).map(lambda number: text * number))


@given(TEXTS, TEXTS, TEXTS, TEXTS, st.integers(0, 2000), st.integers(8192, 65536))
def test_results_stay_within_the_limit(a: str, b: str, c: str, d: str, files: int, most: int) -> None:
    """Including escapes; short results are whole."""
    listed = [{"name": f"{at}.txt", "bytes": at, "version": 0} for at in range(files)]
    whole = {"status": "error", "stdout": a, "stderr": b, "result": c, "exception": d, "files": listed}
    found = fit_result(whole, most)
    assert len(msgspec.json.encode(found)) <= most
    assert found.get("more_files", 0) + len(found["files"]) == files
    if len(msgspec.json.encode(whole)) <= most:
        assert found == whole


# -- settings ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout", 0),
        ("timeout", "60"),
        ("memory", 1),
        ("memory", 1.5),
        ("interpreter", "a\0b"),
        ("unsandboxed", "yes"),
    ],
)
def test_invalid_settings_are_rejected(name: str, value: Any) -> None:
    """The error names the setting and the allowed values."""
    with pytest.raises(InvalidRequest) as caught:
        PythonSettings(**{name: value})
    assert caught.value.param == f"python.{name}"
    assert name in str(caught.value)


def test_the_tool_is_enabled_by_configuration() -> None:
    """It is off by default."""
    assert build_python_settings(load("", env={})) is None
    assert build_python_settings(load("python: {timeout: 5s}", env={})) is None
    text = "python: {enabled: true, timeout: 5s, memory: 256MiB, unsandboxed: true}"
    settings = PythonSettings(timeout=5, memory=256 << 20, unsandboxed=True)
    assert build_python_settings(load(text, env={})) == settings
    assert build_python_settings(load("python: {enabled: true}", env={})) == PythonSettings()
    with pytest.raises(ConfigError):
        load("python: {memory: 1MiB}", env={})
    with pytest.raises(ConfigError, match="a path must not contain a NUL character"):
        load('python: {interpreter: "a\\0b"}', env={})
