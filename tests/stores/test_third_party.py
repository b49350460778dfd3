"""The contract's suite, copied into another project, with its own store and its own settings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

CONTRACT = Path(__file__).parents[1] / "contract"
PAGE = Path(__file__).parents[2] / "docs" / "stores.md"
STORE = '''
from holdfast.stores import open_store

async def open_mydb(url, *, tenant):
    """A store that Holdfast does not know by its URL."""
    return await open_store(url.replace("mydb://", "sqlite:///"), tenant=tenant)
'''
SUITE = "from holdfast_contract import *\n"
PLUGINS = 'pytest_plugins = ["holdfast_contract.plugin"]\n'
FEW = """
from hypothesis import settings
settings.register_profile("few", max_examples=10)
settings.load_profile("few")
"""
PLUGIN = f"import pytest\n{PLUGINS}{FEW}"


def run(folder: Path, *arguments: str, **files: str) -> tuple[int, str]:
    """Run pytest in a project of those modules and a copy of the contract; return its exit code and output."""
    shutil.copytree(CONTRACT, folder / "holdfast_contract", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    # Nothing of this project's settings: there is no other file than those.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}
    environment["COLUMNS"] = "500"
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-rfEs", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout + done.stderr


def read_example(name: str) -> str:
    """The example of a module in the documentation."""
    (found,) = re.findall(rf"```python\n(# {name}\.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    return str(found)


def test_a_store_of_its_own_opened_by_a_url(tmp_path: Path) -> None:
    """As the documentation has it: processes of their own find it too."""
    modules = {name: read_example(name) for name in ("conftest", "test_mydb")}
    code, said = run(tmp_path, "-k", "two_processes or opened_twice or opened_many", mydb=STORE, **modules)
    assert code == 0, said
    assert int(re.findall(r"(\d+) passed", said)[0]) >= 3
    assert "skipped" not in said


def test_a_missing_fixture_is_reported(tmp_path: Path) -> None:
    """Instead of a suite that passes because it tests nothing."""
    code, said = run(tmp_path, "--maxfail=1", conftest=PLUGIN, test_mydb=SUITE)
    assert code == 1
    assert "the contract's checks need a fixture: `url`" in said


def test_scripted_upstreams_need_no_pytest(tmp_path: Path) -> None:
    (tmp_path / "pytest.py").write_text("raise ModuleNotFoundError('pytest')")
    program = "from holdfast.testing import AnthropicUpstream, Gate, Reply, ScriptedUpstream"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
