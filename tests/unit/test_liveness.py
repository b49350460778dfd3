"""Only holders whose process has ended on this host are known to be dead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast import liveness
from holdfast.liveness import ProcessLock, is_alive, is_dead, make_holder
from tests.other_process import LINUX, other_process

pytestmark = LINUX


def test_a_killed_process_is_dead_and_a_running_one_is_not() -> None:
    with other_process() as process:
        assert not is_dead(process.holder)
        assert is_alive(process.holder)
        process.kill()
        assert is_dead(process.holder)
        assert not is_alive(process.holder)
        assert is_dead(f"{process.holder}-7"), "claims append a number to the holder"


def test_this_process_is_not_dead() -> None:
    first, second = make_holder(), make_holder()
    assert first != second
    assert first.split(".")[:2] == second.split(".")[:2]
    assert not is_dead(first)
    assert not is_alive(first), "only other processes are checked: this one knows its own turns"


def test_a_forked_child_has_its_own_lock() -> None:
    parent = make_holder()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, f"{make_holder()} {is_dead(parent)}".encode())
        finally:
            os._exit(0)  # whatever happens: it must not go on as a second test run
    os.waitpid(child, 0)
    holder, parent_looked_dead = os.read(reading, 1000).decode().split()
    os.close(reading)
    os.close(writing)
    assert parent_looked_dead == "False"
    assert holder.split(".")[:2] != parent.split(".")[:2]
    assert is_dead(holder)
    assert not is_dead(parent), "the child's end releases nothing of its parent's"


@pytest.mark.parametrize(
    "holder",
    ["", "6b0e5c6298fb4d978dbd45d5383e51fe-3", "move-1", f"{'0' * 16}.{'0' * 15}.x", "someone else's", "a.b.c", "\0"],
)
def test_holders_of_other_hosts_and_versions_are_neither_alive_nor_dead(holder: str) -> None:
    assert not is_dead(holder)
    assert not is_alive(holder)


def test_holders_in_another_lock_file_are_not_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example containers with their own `/dev/shm`, a removed file, or a restarted kernel."""
    with other_process() as process:
        process.kill()
        elsewhere = ProcessLock(tmp_path / "holdfast")
        monkeypatch.setattr(liveness, "_lock", elsewhere)
        assert not is_dead(process.holder)
        assert not is_dead(make_holder())
    elsewhere.close()


def test_a_kernel_restart_changes_the_place_of_a_lock_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = ProcessLock(tmp_path / "holdfast")
    (tmp_path / "boot").write_text("another boot\n")
    monkeypatch.setattr(liveness, "_BOOT_ID", tmp_path / "boot")
    after = ProcessLock(tmp_path / "holdfast")
    assert before.place != after.place
    assert after.is_locked(before.slot)
    before.close()
    after.close()


@pytest.mark.parametrize("kind", ["readable by others", "a link", "a file"])
def test_a_folder_that_is_not_private_is_rejected(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "holdfast"
    if kind == "readable by others":
        folder.mkdir()
        folder.chmod(0o755)
    elif kind == "a link":
        (tmp_path / "real").mkdir(0o700)
        folder.symlink_to(tmp_path / "real")
    else:
        folder.touch(0o600)
    with pytest.raises(OSError, match="not a private folder"):
        ProcessLock(folder)


def test_without_shared_memory_no_holder_is_considered_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "SHARED_MEMORY", tmp_path / "missing")
    monkeypatch.setattr(liveness, "_opened", False)
    monkeypatch.setattr(liveness, "_lock", None)
    assert "." not in make_holder()
    assert not is_dead(f"{'0' * 16}.{'0' * 15}.x")
