"""The contract's suite, copied into another project: its own store, its own settings, and stores that are wrong."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
WRONG = '''
import asyncio
import itertools

from msgspec.structs import replace

from holdfast.stores.log import Append
from mydb import open_mydb as open_right

class Wrong:
    """Passes everything on, but for one thing."""

    def __init__(self, inner, first=None):
        self.inner, self.tenant = inner, inner.tenant
        self.first = first or self
        self.answers = []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def for_tenant(self, tenant):
        return type(self)(self.inner.for_tenant(tenant), self.first)

class DropsAnEntry(Wrong):
    async def append(self, ref, write):
        return await self.inner.append(ref, replace(write, entries=write.entries[:9]))

class IgnoresExpect(Wrong):
    async def append(self, ref, write):
        return await self.inner.append(ref, replace(write, expect=None if write.expect == 2 else write.expect))

class ShowsAnotherTenant(Wrong):
    def for_tenant(self, tenant):
        return type(self)(self.inner.for_tenant(tenant.lower()), self.first)

class ForgetsKeys(Wrong):
    async def append(self, ref, write):
        if write.idempotency_key == "k":
            write = replace(write, idempotency_key=f"k{next(numbers)}")
        return await self.inner.append(ref, write)

class WritesInTwoSteps(Wrong):
    async def append(self, ref, write):
        done = await self.inner.append(ref, replace(write, state_delta=None))
        if not write.state_delta:
            return done
        return await self.inner.append(ref, Append(state_delta=write.state_delta, timestamp=write.timestamp))

class LosesState(Wrong):
    """What is shared is read, changed, and written back."""

    async def append(self, ref, write):
        delta = dict(write.state_delta or {})
        if "user:count" in delta:
            held = await self.inner.state(ref.user_id)
            delta["user:count"] = held.values.get("count", 0) + 1
        return await self.inner.append(ref, replace(write, state_delta=delta))

class KeepsAFileOpen(Wrong):
    async def close(self):
        kept.append(open(__file__))
        await self.inner.close()

class AnswersLate(Wrong):
    """An answer that a caller gave up waiting for goes to the next one."""

    async def get(self, ref):
        self.first.answers.append(await self.inner.get(ref))
        await asyncio.sleep(0)
        return self.first.answers.pop(0)

kept = []
numbers = itertools.count()

def opener(name):
    async def opened(url, *, tenant):
        return globals()[name](await open_right(url, tenant=tenant))
    return opened

for name in [name for name, one in globals().items() if isinstance(one, type) and one is not Wrong]:
    globals()[f"open_{name}"] = opener(name)
'''


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
    code, said = run(tmp_path, "-k", "process or opening or kill", mydb=STORE, **modules)
    assert code == 0, said
    assert int(re.findall(r"(\d+) passed", said)[0]) >= 6
    assert "skipped" not in said


def test_a_missing_fixture_is_reported(tmp_path: Path) -> None:
    """Instead of a suite that passes because it tests nothing."""
    code, said = run(tmp_path, "--maxfail=1", conftest=PLUGIN, test_mydb=SUITE)
    assert code == 1
    assert "the contract's checks need a fixture: `url`" in said


FAILS = {
    "DropsAnEntry": "test_entries_are_read_by_range - assert [8] == [8, 9]",
    "IgnoresExpect": "test_a_stale_expect_writes_nothing - Failed: DID NOT RAISE",
    "ShowsAnotherTenant": "test_tenants_see_nothing_of_each_other",
    "ForgetsKeys": "test_a_key_writes_once",
    "KeepsAFileOpen": "test_a_new_session_has_the_given_fields - AssertionError: held by the store after it was closed",
    "AnswersLate": "test_a_cancelled_read_is_not_another_readers_answer",
    "LosesState": "test_twenty_sessions_of_a_user_lose_nothing",
    "WritesInTwoSteps": "test_a_write_cancelled_at_any_await_is_complete_or_absent[append]",
}
"""Stores of `WRONG`, and the check that finds each of them out, with what it says."""


@pytest.fixture(scope="module")
def found_out(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What that check said of each, all of them in one run."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\naddopts = --import-mode=importlib\n")
    for wrong in FAILS:
        (folder / wrong).mkdir()
        (folder / wrong / "test_mydb.py").write_text(SUITE)
        conftest = read_example("conftest").replace("mydb:open_mydb", f"wrong:open_{wrong}")
        (folder / wrong / "conftest.py").write_text(conftest.replace(PLUGINS, ""))
    checks = [f"{wrong}/test_mydb.py::{re.split('[ []', check)[0]}" for wrong, check in FAILS.items()]
    code, said = run(folder, *checks, mydb=STORE, wrong=WRONG, conftest=PLUGIN)
    assert code == 1, said
    failed = (line.split(" ", 1)[1] for line in said.splitlines() if line.startswith(("FAILED", "ERROR")))
    return dict(line.split("/test_mydb.py::", 1) for line in failed)


@pytest.mark.parametrize("wrong", FAILS)
def test_faulty_stores_fail_the_suite(wrong: str, found_out: dict[str, str]) -> None:
    """The suite fails it, and says which promise it broke, and what was there in place of what."""
    assert found_out[wrong].startswith(FAILS[wrong])


def test_scripted_upstreams_need_no_pytest(tmp_path: Path) -> None:
    (tmp_path / "pytest.py").write_text("raise ModuleNotFoundError('pytest')")
    program = "from holdfast.testing import AnthropicUpstream, Gate, Reply, ScriptedUpstream"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
