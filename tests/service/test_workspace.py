"""An agent's workspace: what is committed and what is not, what nobody in it can make git do, and what outlives a crash."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import (
    GitMissing,
    InvalidRequest,
    SecretBlocked,
    TooLarge,
    WorkspaceUnavailable,
    WorkspaceUnusable,
)
from holdfast.limits import WORKSPACE_SUBJECT_CHARS
from holdfast.secrets import Guard, make_redactor
from holdfast.secrets.patterns import Pattern
from holdfast.workspace import Workspace, Workspaces, WorkspaceSettings
from holdfast.workspace.program import Git
from tests.amounts import examples
from tests.clocks import START, TickingClock
from tests.made_up import KEY
from tests.service.workspace_kit import LARGE, content, everything, files, git, sound, subjects


@pytest.fixture
def kept(tmp_path: Path) -> Workspaces:
    return Workspaces(tmp_path / "deep" / "workspaces", TickingClock())


@pytest.fixture
async def one(kept: Workspaces) -> Workspace:
    """A workspace that was opened."""
    workspace = kept.workspace("default", "writer")
    await workspace.open()
    return workspace


# -- a new one -----------------------------------------------------------------------


async def test_a_new_one_has_two_files_and_one_commit(one: Workspace) -> None:
    [commit] = (await one.history()).commits
    assert (commit.subject, commit.body) == ("workspace init", "Auto-generated bootstrap commit.")
    assert (commit.author, commit.timestamp_unix) == ("Holdfast <holdfast@localhost>", START // 1000 + 1)
    assert commit.short_oid == commit.oid[:7]
    assert (one.folder / ".gitignore").read_text() == "transcripts/\nmedia/\n*.tmp\n*.swp\n.DS_Store\n"
    assert "*.md text eol=lf\n" in (one.folder / ".gitattributes").read_text()
    assert files(one) == {".gitignore", ".gitattributes"}
    assert git(one.folder, "branch", "--show-current") == "main\n"
    assert git(one.folder, "status", "--porcelain") == ""
    assert git(one.folder, "log", "-1", "--format=%an %ae %cn %ce %ad", "--date=raw").split() == [
        *("Holdfast", "holdfast@localhost") * 2,
        *(str(START // 1000 + 1), "+0000"),
    ]
    assert (one.folder.stat().st_mode & 0o777, (one.folder / ".gitignore").stat().st_mode & 0o777) == (0o700, 0o600)
    sound(one)


async def test_opening_it_again_changes_nothing(one: Workspace, kept: Workspaces) -> None:
    before = git(one.folder, "rev-parse", "HEAD")
    await one.open()
    await Workspaces(kept.root, TickingClock()).workspace("default", "writer").open()
    assert git(one.folder, "rev-parse", "HEAD") == before


async def test_what_is_not_there_has_no_history_and_is_not_made_by_a_look(kept: Workspaces) -> None:
    workspace = kept.workspace("default", "nobody")
    assert (await workspace.history(include_diff=True)).commits == []
    assert not kept.root.exists()


async def test_ignore_and_attributes_files_that_are_there_stay(kept: Workspaces) -> None:
    workspace = kept.workspace("default", "w")
    workspace.folder.mkdir(parents=True)
    (workspace.folder / ".gitignore").write_text("mine\n")
    await workspace.open()
    assert (workspace.folder / ".gitignore").read_text() == "mine\n"
    assert git(workspace.folder, "show", "HEAD:.gitignore") == "mine\n"


async def test_a_repository_of_the_folder_itself_is_opened_as_it_is(kept: Workspaces) -> None:
    workspace = kept.workspace("default", "w")
    workspace.folder.mkdir(parents=True)
    git(workspace.folder, "init", "-q", "-b", "own/branch")
    (workspace.folder / "a").write_text("1")
    git(workspace.folder, "add", ".")
    git(workspace.folder, *("-c", "user.name=U", "-c", "user.email=u@example.org", "commit", "-q", "-m", "theirs"))
    git(workspace.folder, "pack-refs", "--all")
    (workspace.folder / "b").write_text("2")
    assert await workspace.commit("ours")
    assert await subjects(workspace) == ["ours", "theirs"]
    assert files(workspace) == {"a", "b"}
    assert git(workspace.folder, "branch", "--show-current") == "own/branch\n"
    sound(workspace)


async def test_an_empty_repository_gets_its_first_commit(kept: Workspaces) -> None:
    workspace = kept.workspace("default", "w")
    workspace.folder.mkdir(parents=True)
    git(workspace.folder, "init", "-q", "-b", "main")
    assert await workspace.commit("nothing") is None
    (workspace.folder / "b").write_text("2")
    assert await workspace.commit("first")
    assert await subjects(workspace) == ["first"]


async def test_it_never_commits_to_a_repository_around_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    workspace = Workspaces(tmp_path / "ws", TickingClock()).workspace("default", "w")
    await workspace.write("MEMORY.md", "x")
    assert await workspace.commit("mine")
    assert git(workspace.folder, "rev-parse", "--show-toplevel").strip() == str(workspace.folder)
    assert git(tmp_path, "for-each-ref") == ""


@pytest.mark.parametrize("how", ["file", "link", "objects", "refs"])
async def test_a_repository_that_lies_elsewhere_is_refused(one: Workspace, tmp_path: Path, how: str) -> None:
    other = tmp_path / "other"
    git(tmp_path, "init", "-q", "-b", "main", str(other))
    place = one.folder / ".git" / {"file": "", "link": "", "objects": "objects", "refs": "refs"}[how]
    place.rename(tmp_path / "away")
    if how == "file":
        place.write_text(f"gitdir: {other / '.git'}\n")
    else:
        place.symlink_to(other / ".git" / ("" if how == "link" else how))
    await one.write("MEMORY.md", "x")
    with pytest.raises(WorkspaceUnusable, match="lies in the workspace, and nowhere else"):
        await one.commit("elsewhere")
    assert git(other, "for-each-ref") == ""
    assert not list((other / ".git" / "objects").glob("??"))


@pytest.mark.parametrize(
    "how", ["branches", "packed branches", "objects of one kind", "alternates", "a branch that is a pipe"]
)
async def test_parts_of_another_repository_are_neither_read_nor_moved(
    one: Workspace, kept: Workspaces, how: str
) -> None:
    """Whoever can write to `.git` would otherwise see, and change, what another agent or tenant has."""
    other = kept.workspace("acme", "victim")
    for text in ("forgotten", "theirs"):
        await other.write("MEMORY.md", text)
        await other.commit(text)
    before = git(other.folder, "rev-parse", "HEAD")
    own, theirs = one.folder / ".git", other.folder / ".git"
    if how == "branches":
        (own / "refs" / "heads" / "x").symlink_to(theirs / "refs" / "heads")
        (own / "HEAD").write_text("ref: refs/heads/x/main\n")
    elif how == "packed branches":
        git(other.folder, "pack-refs", "--all")
        (own / "packed-refs").symlink_to(theirs / "packed-refs")
    elif how == "objects of one kind":
        missing = next(place for place in (theirs / "objects").iterdir() if not (own / "objects" / place.name).exists())
        (own / "objects" / missing.name).symlink_to(missing)
    elif how == "alternates":
        (own / "objects" / "info").mkdir(exist_ok=True)
        (own / "objects" / "info" / "alternates").write_text(f"{theirs / 'objects'}\n")
        (own / "refs" / "heads" / "main").write_text(before)
    else:
        (own / "refs" / "heads" / "main").unlink()
        os.mkfifo(own / "refs" / "heads" / "main")
    await one.write("a.md", "x")
    for work in (one.commit("x"), one.history(include_diff=True)):
        with pytest.raises(WorkspaceUnusable, match="lies in the workspace, and nowhere else"):
            await work
    assert git(other.folder, "rev-parse", "HEAD") == before


async def test_one_at_no_branch_is_refused(one: Workspace) -> None:
    git(one.folder, "checkout", "-q", "--detach")
    await one.write("MEMORY.md", "x")
    with pytest.raises(WorkspaceUnusable, match="git switch"):
        await one.commit("x")


async def test_one_whose_objects_are_named_otherwise_is_refused(kept: Workspaces) -> None:
    workspace = kept.workspace("default", "w")
    workspace.folder.mkdir(parents=True)
    git(workspace.folder, "init", "-q", "--object-format=sha256")
    with pytest.raises(WorkspaceUnusable, match=r"extensions\.objectformat = 'sha256'"):
        await workspace.commit("x")


# -- whose it is ---------------------------------------------------------------------

HOSTILE = (
    "..",
    ".",
    ".git",
    "a/b",
    "../../etc",
    "/etc",
    "a\\b",
    "A",
    "con",
    "x" * 500,
    "nl\n",
    "\0",
    "~",
    "@t",
    "ü",
    "-",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_stays_below_the_root(kept: Workspaces, name: str) -> None:
    for tenant, agent in (("default", name), (name, "a"), (name, name)):
        folder = kept.workspace(tenant, agent).folder
        assert kept.root in folder.parents
        assert all(part not in ("..", ".", ".git") and len(part) < 256 for part in folder.relative_to(kept.root).parts)
        assert folder == folder.resolve()


names = st.sampled_from([*HOSTILE, "default", "a", "@a", "agent", "tenant"]) | st.text(min_size=1, max_size=20)


@given(st.sets(st.tuples(names, names), max_size=8))
@settings(max_examples=examples(100), deadline=None)
def test_no_two_share_a_folder_whatever_they_are_called(pairs: set[tuple[str, str]]) -> None:
    """Also where the file system does not tell capitals apart; and none lies in another one's."""
    kept = SHARED
    pairs = {pair for pair in pairs if all(_unicode(name) for name in pair)}
    folders = {Path(str(kept.workspace(*pair).folder).lower()) for pair in pairs}
    assert len(folders) == len(pairs)
    assert not any(one in other.parents for one in folders for other in folders)


SHARED = Workspaces("/nowhere", TickingClock())


def _unicode(name: str) -> bool:
    try:
        return 0 < len(name.encode()) <= 512
    except UnicodeEncodeError:
        return False


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "agent must have 1 to 512 bytes"),
        ("x" * 513, "agent must have 1 to 512 bytes"),
        ("\ud800", "agent has a lone surrogate"),
    ],
    ids=["empty", "too long", "no Unicode"],
)
def test_what_is_no_name_is_refused(kept: Workspaces, name: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        kept.workspace("default", name)


def test_no_agent_is_the_workspace_default(kept: Workspaces) -> None:
    assert kept.workspace("default", None) is kept.workspace("default", "default")
    assert kept.workspace("default", None).folder == kept.root / "default"
    assert kept.workspace("acme", "writer").folder == kept.root / "@acme" / "writer"


@pytest.mark.parametrize("given_", [{"path": ""}, {"path": "a\0"}, {"on_secret": "redact"}])
def test_settings_that_cannot_be_are_refused(given_: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        WorkspaceSettings(**given_)


# -- commits -------------------------------------------------------------------------


async def test_what_changes_is_committed_and_what_does_not_is_not(one: Workspace) -> None:
    (one.folder / "a").write_text("1")
    (one.folder / "deep" / "er").mkdir(parents=True)
    (one.folder / "deep" / "er" / "b").write_text("2")
    first = await one.commit("a", "the body\nof it")
    assert first is not None
    assert await one.commit("again") is None
    (one.folder / "deep" / "er" / "b").unlink()
    (one.folder / "a").chmod(0o755)
    assert await one.commit("b")
    history = await one.history()
    assert [commit.subject for commit in history.commits] == ["b", "a", "workspace init"]
    assert history.commits[1] == first
    assert first.body == "the body\nof it"
    assert files(one) == {".gitignore", ".gitattributes", "a"}
    assert git(one.folder, "ls-tree", "HEAD", "a").startswith("100755 ")
    assert git(one.folder, "status", "--porcelain") == ""
    sound(one)


async def test_a_file_and_a_folder_change_places(one: Workspace) -> None:
    (one.folder / "x").write_text("1")
    (one.folder / "y").mkdir()
    (one.folder / "y" / "z").write_text("2")
    await one.commit("a")
    (one.folder / "x").unlink()
    (one.folder / "x").mkdir()
    (one.folder / "x" / "w").write_text("3")
    (one.folder / "y" / "z").unlink()
    (one.folder / "y").rmdir()
    (one.folder / "y").write_text("4")
    await one.commit("b")
    assert files(one) == {".gitignore", ".gitattributes", "x/w", "y"}
    sound(one)


async def test_what_is_ignored_is_not_committed_and_what_was_committed_is_followed(one: Workspace) -> None:
    for name in ("transcripts/s.jsonl", "media/p.png", "a.tmp", "deep/b.swp", ".DS_Store", "notes.md"):
        (one.folder / name).parent.mkdir(exist_ok=True)
        (one.folder / name).write_text("x")
    await one.commit("a")
    assert files(one) == {".gitignore", ".gitattributes", "notes.md"}
    (one.folder / ".gitignore").write_text("notes.md\n*.tmp\n*.swp\n.DS_Store\nmedia\ntranscripts\n")
    (one.folder / "notes.md").write_text("y")
    await one.commit("b")
    assert git(one.folder, "show", "HEAD:notes.md") == "y"
    (one.folder / ".git" / "info").mkdir()
    (one.folder / ".git" / "info" / "exclude").write_text("private\n")
    (one.folder / "private").write_text("x")
    assert await one.commit("c") is None


async def test_lines_of_texts_end_as_the_attributes_say(one: Workspace) -> None:
    (one.folder / "a.md").write_bytes(b"1\r\n2\n3\r\n")
    (one.folder / "b.bin").write_bytes(b"1\r\n")
    await one.commit("a")
    assert git(one.folder, "show", "HEAD:a.md") == "1\n2\n3\n"
    assert git(one.folder, "show", "HEAD:b.bin") == "1\r\n"
    assert git(one.folder, "status", "--porcelain") == ""
    assert await one.commit("b") is None


async def test_a_large_file_is_left_out_and_named_and_the_rest_is_committed(one: Workspace) -> None:
    (one.folder / "large.bin").write_bytes(LARGE)
    (one.folder / "just.bin").write_bytes(LARGE[1:])
    outcome = await one.attempt("a", "why")
    assert outcome.commit is not None
    assert [left.name for left in outcome.left_out] == ["large.bin"]
    assert outcome.commit.body.startswith("why\n\nLeft out:\n- large.bin: it has 1,048,577 bytes")
    assert git(one.folder, "log", "-1", "--format=%b").strip() == outcome.commit.body
    assert files(one) == {".gitignore", ".gitattributes", "just.bin"}
    outcome = await one.attempt("b")
    assert (outcome.commit, len(outcome.left_out)) == (None, 1)


async def test_a_file_that_outgrows_the_limit_keeps_its_last_version(one: Workspace) -> None:
    """It is not recorded as deleted; a deleted one is."""
    for name in ("grows", "goes"):
        (one.folder / name).write_text("small")
    await one.commit("a")
    (one.folder / "grows").write_bytes(LARGE)
    (one.folder / "goes").unlink()
    outcome = await one.attempt("b")
    assert [left.name for left in outcome.left_out] == ["grows"]
    assert git(one.folder, "show", "HEAD:grows") == "small"
    assert "goes" not in files(one)
    (one.folder / "grows").write_text("small again")
    await one.commit("c")
    assert git(one.folder, "show", "HEAD:grows") == "small again"


async def test_links_are_committed_as_links_and_lead_nowhere(one: Workspace, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text(KEY)
    (one.folder / "dir").mkdir()
    (one.folder / "dir" / "f").write_text("inside")
    await one.commit("a")
    (one.folder / "dir" / "f").unlink()
    (one.folder / "dir").rmdir()
    (one.folder / "dir").symlink_to(outside)
    (one.folder / "file").symlink_to(outside / "f")
    (one.folder / "loop").symlink_to("loop")
    (one.folder / "round").symlink_to(".")
    os.mkfifo(one.folder / "pipe")
    await one.commit("b")
    assert files(one) == {".gitignore", ".gitattributes", "dir", "file", "loop", "round"}
    assert git(one.folder, "show", "HEAD:file") == str(outside / "f")
    assert git(one.folder, "ls-tree", "HEAD", "dir").startswith("120000 ")
    sound(one)


async def test_a_tracked_file_that_is_ignored_behind_a_link_is_not_read(one: Workspace, tmp_path: Path) -> None:
    (one.folder / "dir").mkdir()
    (one.folder / "dir" / "f").write_text("inside")
    await one.commit("a")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_text("outside")
    (one.folder / "dir").rename(one.folder / "gone.tmp")
    (one.folder / "dir").symlink_to(tmp_path / "outside")
    (one.folder / ".gitignore").write_text("dir\n*.tmp\n")
    await one.commit("b")
    assert files(one) == {".gitignore", ".gitattributes"}


NAMES = [
    b"-rf",
    b"--all",
    b'q"uo\\te',
    b"nl\nx",
    b"tab\t",
    b" ",
    b"a b",
    b"\xff\xfe",
    "ü".encode(),
    b":(top)x",
    b"*",
    b"[a]",
]


async def test_names_of_any_bytes_are_committed_as_they_are(one: Workspace) -> None:
    for name in NAMES:
        (one.folder / os.fsdecode(name)).write_text("x")
    await one.commit("a")
    assert {os.fsencode(name) for name in files(one)} == {b".gitignore", b".gitattributes", *NAMES}
    assert git(one.folder, "status", "--porcelain") == ""
    assert await one.commit("b") is None
    sound(one)


async def test_names_that_a_git_elsewhere_would_take_for_its_own_are_left_out(one: Workspace) -> None:
    for name in (".GIT", "git~1", ".git ", ".g\u200cit", "a\\.git", ".git\\b"):
        (one.folder / name).mkdir()
        (one.folder / name / "config").write_text("x")
    git(one.folder, "init", "-q", "within")
    (one.folder / "within" / "f").write_text("x")
    for name in (".gitmodules", ".GitModules ", "gitmod~1"):
        (one.folder / name).symlink_to("x")
    (one.folder / "ok").write_text("x")
    outcome = await one.attempt("a")
    assert files(one) == {".gitignore", ".gitattributes", "ok"}
    assert "within/" in {left.name for left in outcome.left_out}
    assert len(outcome.left_out) == 10
    sound(one)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["a", "b", "c/a", "c/b", "c/d/e", "d.md"]),
            st.binary(max_size=12) | st.just(LARGE),
            max_size=5,
        ),
        max_size=4,
    )
)
@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
async def test_what_is_committed_is_what_is_there(versions: list[dict[str, bytes]]) -> None:
    """Whatever came before it: the newest commit has every small file as it is, and of a large one the last small version."""
    with tempfile.TemporaryDirectory() as root:
        workspace = Workspaces(root, TickingClock()).workspace("default", "w")
        await workspace.open()
        expected: dict[str, bytes] = {}
        for version in versions:
            for path in workspace.folder.rglob("*"):
                if (
                    path.is_file()
                    and ".git" not in path.parts[-2:]
                    and not str(path).startswith(f"{workspace.folder}/.git")
                ):
                    path.unlink()
            for name, data in version.items():
                (workspace.folder / name).parent.mkdir(parents=True, exist_ok=True)
                (workspace.folder / name).write_bytes(data)
            small = {
                name: data.replace(b"\r\n", b"\n") if name.endswith(".md") and b"\0" not in data else data
                for name, data in version.items()
                if data != LARGE
            }
            stays = {name: data for name, data in expected.items() if version.get(name) == LARGE}
            made = await workspace.commit("x")
            assert (made is not None) == (expected != {**stays, **small})
            expected = {**stays, **small}
        there = files(workspace) - {".gitignore", ".gitattributes"}
        got = {name: content(workspace, name) for name in there}
        assert got == expected


async def test_a_thousand_files(one: Workspace) -> None:
    for number in range(1000):
        (one.folder / f"{number}.md").write_text(f"{number}\n")
    await one.commit("many")
    assert len(files(one)) == 1002
    (one.folder / "500.md").unlink()
    (one.folder / "501.md").write_text("other")
    await one.commit("fewer")
    assert git(one.folder, "show", "--format=", "--name-status", "HEAD") == "D\t500.md\nM\t501.md\n"
    sound(one)


async def test_too_many_files_are_refused(one: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.workspace.repository.WORKSPACE_FILES", 5)
    for number in range(5):
        (one.folder / str(number)).write_text("x")
    with pytest.raises(TooLarge, match="has 7 files that are not ignored; at most 5"):
        await one.commit("x")
    monkeypatch.setattr("holdfast.workspace.repository.WORKSPACE_FILES", 7)
    monkeypatch.setattr("holdfast.workspace.files.WORKSPACE_COMMIT_BYTES", 4)
    with pytest.raises(TooLarge):
        await one.commit("x")
    assert await subjects(one) == ["workspace init"]


# -- what is said of them ------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_", "subject"),
    [
        ("  two\nlines\t here ", "two lines here"),
        ("a\x1b[31mb\x00c\u2028d\u202ee", "a [31mb c d e"),
        ("x" * 500, "x" * WORKSPACE_SUBJECT_CHARS),
        ("\ud800", "?"),
        ("# no comment", "# no comment"),
    ],
)
async def test_a_subject_is_one_line(one: Workspace, given_: str, subject: str) -> None:
    (one.folder / "a").write_text("1")
    made = await one.commit(given_, "b\x00\x1b\r\nc\n\n\n")
    assert made is not None
    assert (made.subject, made.body) == (subject, "b\nc")
    assert (await one.history(1)).commits == [made]


async def test_a_commit_without_a_subject_is_refused(one: Workspace) -> None:
    with pytest.raises(InvalidRequest, match="needs a subject"):
        await one.commit(" \n\x00")


async def test_a_checkpoint_says_when_and_where(one: Workspace) -> None:
    (one.folder / "a").write_text("1")
    made = (await one.checkpoint(None, session_id="s\nagent=evil", user_id="ada")).commit
    assert made is not None
    assert made.subject == "checkpoint: manual"
    assert made.body == "manual checkpoint at 2023-11-14T22:13:22Z\nsession=s agent=evil\nagent=writer\nuser=ada"
    assert (await one.checkpoint("again")).commit is None
    (one.folder / "a").write_text("2")
    made = (await one.checkpoint("before\nthe move")).commit
    assert made is not None
    assert (made.subject, made.body.count("\n")) == ("checkpoint: before the move", 1)


# -- secrets -------------------------------------------------------------------------


async def test_a_secret_blocks_the_commit_and_says_where_but_not_which(one: Workspace) -> None:
    (one.folder / "ok").write_text("1")
    (one.folder / "deep").mkdir()
    (one.folder / "deep" / "notes.md").write_text(f"first\r\nthe key {KEY}\n")
    with pytest.raises(SecretBlocked, match=r"deep/notes\.md, line 2 \(rule aws_access_key\)") as caught:
        await one.commit("x")
    assert KEY not in str(caught.value)
    assert await subjects(one) == ["workspace init"]
    assert git(one.folder, "status", "--porcelain") == "?? deep/\n?? ok\n"
    assert KEY.encode() not in everything(one)
    (one.folder / "deep" / "notes.md").write_text("first\n")
    assert await one.commit("x")


@pytest.mark.parametrize(
    "data",
    [
        b"\0\1\2 " + KEY.encode() + b" \xff",
        KEY.encode("utf-16"),
        KEY.encode("utf-16-le"),
        KEY.encode("utf-16-be"),
        b"\xff" + KEY.encode(),
        f"\ufeff{KEY}".encode(),
    ],
)
async def test_a_byte_that_is_no_text_hides_no_secret(one: Workspace, data: bytes) -> None:
    (one.folder / "a.bin").write_bytes(data)
    with pytest.raises(SecretBlocked):
        await one.commit("x")


async def test_only_what_would_change_is_looked_at(one: Workspace) -> None:
    """A secret that somebody else has committed is there already; one in an ignored or left out file goes nowhere."""
    (one.folder / "theirs").write_text(KEY)
    git(one.folder, "add", "theirs")
    git(one.folder, *("-c", "user.name=U", "-c", "user.email=u@example.org", "commit", "-q", "-m", "theirs"))
    (one.folder / "a.tmp").write_text(KEY)
    (one.folder / "large").write_bytes(KEY.encode() + b"\n" + LARGE)
    (one.folder / "new").write_text("x")
    assert await one.commit("x")


@pytest.mark.parametrize("place", ["name", "link", "subject", "body", "left out"])
async def test_a_secret_stands_nowhere_else_either(one: Workspace, place: str) -> None:
    if place == "name":
        (one.folder / KEY).write_text("x")
    elif place == "link":
        (one.folder / "link").symlink_to(KEY)
    elif place == "left out":
        (one.folder / f"{KEY}").write_bytes(LARGE)
    (one.folder / "new").write_text("x")
    subject, body = (KEY if place == part else "x" for part in ("subject", "body"))
    if place == "left out":
        made = await one.commit(subject, body)
        assert made is not None
        assert "a file whose name is a secret" in made.body
    else:
        with pytest.raises(SecretBlocked) as caught:
            await one.commit(subject, body)
        assert KEY not in str(caught.value)
    assert KEY.encode() not in everything(one)


async def test_what_the_guard_knows_is_a_secret_too(tmp_path: Path) -> None:
    """Whichever part of it knows it; what it does elsewhere does not matter here."""
    own = make_redactor(patterns=[Pattern(regex="canary-[0-9]+", label="canary")], rules=())
    for number, guard in enumerate((Guard(own), Guard(None, own, "warn"))):
        workspace = Workspaces(tmp_path / str(number), TickingClock(), guard).workspace("default", "w")
        for secret in ("canary-77", KEY):
            await workspace.write("MEMORY.md", f"x\n{secret}")
            with pytest.raises(SecretBlocked, match=r"MEMORY\.md, line 2"):
                await workspace.commit("x")


async def test_where_secrets_are_only_told_of_they_are_committed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workspace = Workspaces(tmp_path, TickingClock(), on_secret="warn").workspace("default", "w")
    await workspace.write("MEMORY.md", KEY)
    assert await workspace.commit("x")
    [record] = caplog.records
    assert record.__dict__["fields"] == {"agent": "w", "rule": "aws_access_key", "place": "MEMORY.md, line 1"}
    assert KEY not in caplog.text


# -- what nobody can make git do -----------------------------------------------------


async def test_no_configuration_runs_anything(one: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the user, the system, the environment, the repository, its attributes and its hooks."""
    ran = tmp_path / "ran"
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    script.chmod(0o755)
    evil = "".join(
        f"[{section}]\n\t{key} = {script}\n"
        for section, key in (
            ('filter "evil"', "clean"),
            ('filter "evil"', "smudge"),
            ('filter "evil"', "process"),
            ('diff "evil"', "textconv"),
            ('diff "evil"', "command"),
            ("diff", "external"),
            ("core", "fsmonitor"),
            ("core", "editor"),
            ("core", "pager"),
            ("core", "sshCommand"),
            ("core", "alternateRefsCommand"),
            ("gpg", "program"),
        )
    )
    evil += (
        f"[commit]\n\tgpgSign = true\n[core]\n\thooksPath = {tmp_path / 'hooks'}\n\tworktree = /\n[gc]\n\tauto = 1\n"
    )
    home = tmp_path / "home"
    (home / ".config" / "git").mkdir(parents=True)
    for place in (home / ".gitconfig", home / ".config" / "git" / "config"):
        place.write_text(evil)
    with (one.folder / ".git" / "config").open("a") as config:
        config.write(f"{evil}[include]\n\tpath = {home / '.gitconfig'}\n")
    (home / ".config" / "git" / "ignore").write_text("*.md\n")
    for folder in (one.folder / ".git" / "hooks", tmp_path / "hooks"):
        folder.mkdir()
        for hook in ("pre-commit", "post-commit", "reference-transaction", "post-index-change", "pre-auto-gc"):
            (folder / hook).symlink_to(script)
    for name, value in {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "GIT_DIR": str(tmp_path / "elsewhere"),
        "GIT_WORK_TREE": str(tmp_path),
        "GIT_INDEX_FILE": str(tmp_path / "index"),
        "GIT_CONFIG_GLOBAL": str(home / ".gitconfig"),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.fsmonitor",
        "GIT_CONFIG_VALUE_0": str(script),
        "GIT_EXTERNAL_DIFF": str(script),
        "GIT_AUTHOR_NAME": "Mallory",
        "GIT_AUTHOR_DATE": "1 +0000",
        "GIT_TRACE": str(tmp_path / "trace"),
        "GIT_EXEC_PATH": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    (one.folder / ".gitattributes").write_text(
        "* filter=evil diff=evil merge=evil -text working-tree-encoding=UTF-16\n"
    )
    (one.folder / "a.md").write_text("mine\n")
    first = await one.commit("a")
    (one.folder / "a.md").write_text("mine too\n")
    second = await one.commit("b")
    assert first is not None
    assert second is not None
    history = await one.history(include_diff=True)
    assert [commit.author for commit in history.commits] == ["Holdfast <holdfast@localhost>"] * 3
    assert history.diff is not None
    assert "+mine too" in history.diff
    await one.purge()
    assert not ran.exists()
    assert not (tmp_path / "trace").exists()
    assert not (tmp_path / "elsewhere").exists()
    assert (one.folder / "a.md").read_text() == "mine too\n"
    monkeypatch.undo()
    git(one.folder, "status")
    assert ran.exists(), "the traps are real"
    assert git(Path("/"), f"--git-dir={one.folder / '.git'}", "cat-file", "-p", "HEAD:a.md") == "mine too\n"


async def test_a_git_in_the_workspace_is_not_the_one_that_runs(
    one: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one.folder / "git").write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    (one.folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}.")
    assert await one.commit("x")
    assert not (tmp_path / "ran").exists()


# -- there is no git -----------------------------------------------------------------


async def test_without_git_the_error_says_what_to_install(kept: Workspaces, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = kept.workspace("default", "w")
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        with pytest.raises(GitMissing, match=r"none on the PATH: install git 2\.25"):
            await workspace.commit("x")
        await workspace.write("MEMORY.md", "kept")
        assert await workspace.read("MEMORY.md") == "kept"
    assert await workspace.commit("x"), "it may be installed while the process runs"


@pytest.mark.parametrize(("said", "match"), [("git version 2.24.9", "is git 2.24"), ("no", "does not say")])
async def test_an_old_git_is_refused(
    kept: Workspaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, match: str
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text(f"#!/bin/sh\necho {said}\n")
    (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(GitMissing, match=match):
        await kept.workspace("default", "w").open()


async def test_a_git_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text(
        f'#!/bin/sh\n[ "$1" = version ] && echo git version 2.40.1 && exit\necho $$ > {tmp_path}/pid\nexec sleep 600\n'
    )
    (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    workspace = Workspaces(tmp_path / "ws", TickingClock(), git=Git(seconds=0.3)).workspace("default", "w")
    with pytest.raises(WorkspaceUnavailable, match=r"took more than 0\.3 s"):
        await workspace.commit("x")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    workspace = Workspaces(tmp_path / "file", TickingClock()).workspace("default", "w")
    for work in (workspace.commit("x"), workspace.write("a.md", "x"), workspace.purge()):
        with pytest.raises(WorkspaceUnavailable, match="cannot be made"):
            await work
