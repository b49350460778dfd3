"""Example 8: a database that several servers share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.gallery import Example
from tests.stores.servers import reach


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_two_servers_on_one_postgresql(store: str, tmp_path: Path) -> None:
    """Both answer the same session, and nothing is lost or doubled by the one that is killed."""
    example = Example("postgres_two_servers.py", tmp_path)
    output = example.run(store)
    example.check_output(output)
    (session_id,) = [line.split()[1].rstrip(":") for line in output.splitlines() if line.startswith("session ")]
    assert reach("postgres").in_place(store, "SELECT count(*) FROM sessions") == [(1,)]
    verified = example.shell(f"holdfast sessions verify {session_id}", HOLDFAST_STORE=store)
    assert "28 entries" in verified
