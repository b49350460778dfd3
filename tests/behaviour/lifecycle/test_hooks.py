"""Hooks: functions, webhooks and transcripts that get a session when it ends."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Transcripts, Webhook
from holdfast.errors import HookFailed, InvalidRequest
from tests.behaviour.kit import World, assistant, calls, receiver, refused, result, texts, through, user

STORES = pytest.mark.parametrize("store", ["memory", "file"])
HOUR = 3_600_000
HERE = ("library", "connect", "rest")


class Listener:
    """A hook that remembers its calls, and fails as often as it shall."""

    def __init__(self, failing: int = 0, error: BaseException | None = None) -> None:
        self.failing, self.error = failing, error or RuntimeError("no")
        self.heard: list[Any] = []
        self.ids: list[str] = []

    async def __call__(self, session: Any, reason: str) -> None:
        self.ids.append(session.delivery_id)
        if self.failing:
            self.failing -= 1
            raise self.error
        self.heard.append((session.id, reason, [entry.message.text async for entry in session.entries()]))


# -- functions -------------------------------------------------------------------------


@through(*HERE)
@STORES
@pytest.mark.parametrize("reason", ["ttl", "cap", "close", "delete"])
async def test_an_end_is_reported_once_with_the_whole_session(world: World, store: str, reason: str) -> None:
    listener = Listener()
    async with world.open("sessions: {ttl: 1h, max_sessions: 2}", store=store) as hf:
        world.native.on_expire(listener, name="listener")
        session = await hf.given("s", user("One."), assistant("Two."))
        if reason == "ttl":
            world.clock.now += HOUR
        elif reason == "cap":
            for name in ("t", "u"):
                world.clock.now += 1000
                await hf.given(name, user("Three."))
        elif reason == "close":
            await session.close()
        else:
            await session.delete()
        for _ in range(2):
            await world.native.sweep()
        assert listener.heard == [("s", reason, ["One.", "Two."])]


@through("library")
async def test_a_write_to_an_expired_session_reports_its_end_first(world: World) -> None:
    listener = Listener()
    async with world.open("sessions: {ttl: 1s}") as hf:
        hf.native.on_expire(listener, name="listener")
        await hf.given("s", user("Old."))
        world.clock.now += 1000
        await hf.given("s", user("New."))
        await hf.native.sweep()
        assert listener.heard == [("s", "ttl", ["Old."])]


@through("library")
@STORES
async def test_a_hook_that_fails_is_called_again_later(world: World, store: str) -> None:
    listener, other = Listener(failing=4), Listener()
    async with world.open(store=store) as hf:
        hf.native.on_expire(listener, name="listener")
        hf.native.on_expire(other, name="other")
        session = await hf.given("s", user("One."))
        await session.close()
        await hf.native.sweep()
        assert (listener.heard, len(other.heard)) == ([], 1)
        for tried, pause in enumerate((1_000, 5_000, 30_000, 120_000), 1):
            world.clock.now += pause - 1
            await hf.native.sweep()
            assert len(listener.ids) == tried
            world.clock.now += 1 + pause // 5
            await hf.native.sweep()
        world.clock.now += 24 * HOUR
        await hf.native.sweep()
        assert listener.heard == [("s", "close", ["One."])]
        assert (len(listener.ids), len(set(listener.ids)), len(other.heard)) == (5, 1, 1)


@through("library")
async def test_a_hook_says_when_it_wants_to_be_called_again(world: World) -> None:
    listener = Listener(failing=1, error=HookFailed("busy", retry_after=600))
    async with world.open(store="file") as hf:
        hf.native.on_expire(listener, name="listener")
        await (await hf.given("s", user("One."))).close()
        for pause, heard in ((0, 0), (599_000, 0), (2_000, 1)):
            world.clock.now += pause
            await hf.native.sweep()
            assert len(listener.heard) == heard


@through("library")
async def test_after_a_week_a_hook_is_given_up(world: World) -> None:
    listener = Listener(failing=1000)
    async with world.open(store="file") as hf:
        hf.native.on_expire(listener, name="listener")
        await (await hf.given("s", user("One."))).close()
        for _ in range(400):
            world.clock.now += HOUR
            await hf.native.sweep()
        tried = len(listener.ids)
        world.clock.now += 24 * HOUR
        await hf.native.sweep()
        assert 50 <= tried == len(listener.ids)


@through("library")
async def test_another_process_takes_over_calls_that_are_due(world: World) -> None:
    failing, listener = Listener(failing=1000), Listener()
    async with world.open(store="file") as hf:
        hf.native.on_expire(failing, name="listener")
        await (await hf.given("s", user("One."))).delete()
        await hf.native.sweep()
        with refused("session_not_found"):
            await hf.session("s").info()
        url = hf.url
    async with world.open(store=url) as hf:
        hf.native.on_expire(listener, name="listener")
        world.clock.now += HOUR
        await hf.native.sweep()
        assert listener.heard == [("s", "delete", ["One."])]


@through("library")
@pytest.mark.parametrize("gone", ["hook", "session", "name"])
async def test_an_end_whose_hook_or_session_is_gone_is_dropped(world: World, gone: str) -> None:
    """Another process deletes the session, and one with its name may follow; or no process has had the hook for a week."""
    listener = Listener(failing=1)
    async with world.open(store="file") as hf:
        hf.native.on_expire(listener, name="listener")
        await (await hf.given("s", user("One."))).close()
        await hf.native.sweep()
        assert len(listener.ids) == 1
        url = hf.url
    async with world.open(store=url) as hf:
        if gone == "hook":
            hf.native.on_expire(Listener(), name="other")
        else:
            await hf.session("s").delete()
        if gone == "name":
            await hf.given("s", user("Two."))
        for _ in range(2):
            world.clock.now += 8 * 24 * HOUR * (gone == "hook")
            await hf.native.sweep()
    async with world.open(store=url) as hf:
        hf.native.on_expire(listener, name="listener")
        world.clock.now += HOUR
        await hf.native.sweep()
        assert (listener.heard, len(listener.ids)) == ([], 1)


@through("library")
async def test_a_hook_is_called_for_its_reasons_only(world: World) -> None:
    every, some, plain = Listener(), Listener(), []

    def count(session: Any, reason: str) -> None:
        plain.append((session.id, reason))

    async with world.open("sessions: {ttl: 1s}", store="file") as hf:
        hf.native.on_expire(every, name="every")
        hf.native.on_expire(some, name="some", reasons=["ttl"])
        hf.native.on_expire(count)
        await (await hf.given("closed", user("One."))).close()
        await hf.given("old", user("One."))
        world.clock.now += 1000
        await hf.native.sweep()
        assert [one[:2] for one in some.heard] == [("old", "ttl")]
        assert sorted(one[:2] for one in every.heard) == [("closed", "close"), ("old", "ttl")] == sorted(plain)
        with pytest.raises(InvalidRequest, match="reasons"):
            hf.native.on_expire(count, name="x", reasons=["nap"])
        with pytest.raises(InvalidRequest, match="every"):
            hf.native.on_expire(count, name="every")


@through("library")
async def test_at_a_clean_end_of_the_process_a_hook_may_be_called(world: World) -> None:
    listener = Listener()
    async with world.open(store="file") as hf:
        hf.native.on_expire(listener, name="listener", reasons=["shutdown"])
        await hf.given("s", user("One."))
        await hf.given("expired", user("Two."), ttl=1000)
        world.clock.now += 1000
        url = hf.url
    assert listener.heard == [("s", "shutdown", ["One."])]
    async with world.open(store=url) as hf:
        assert (await hf.session("s").info())["status"] == "active"


# -- webhooks --------------------------------------------------------------------------

SECRET = "whsec_" + base64.b64encode(b"a key of thirty-two bytes, about").decode()


def webhooks(*urls: str, more: str = "") -> str:
    return "hooks: {webhooks: [" + ", ".join(f"{{url: '{url}', secret: '{SECRET}'{more}}}" for url in urls) + "]}"


@through(*HERE)
async def test_the_end_of_a_session_is_posted_and_signed(world: World) -> None:
    async with receiver() as served, world.open(webhooks(served.url), "agents: {helper: {}}", store="file") as hf:
        metadata = {"channel": "room-7", "labels": {"team": "blue"}, "private": 1}
        session = await hf.create("s", user="ada", agent="helper", metadata=metadata)
        await session.append(user("Wo? 北京"), calls(("c", "find", {})), result("c", "Here."), assistant("Da."))
        start = world.clock.now
        world.clock.now += 60_000
        await session.close()
        await world.native.sweep()
        (body,), (headers,) = served.bodies, served.headers
    notice = json.loads(body)
    assert {name: notice[name] for name in ("productId", "eventType", "sid")} == {
        "productId": 17,
        "eventType": 103,
        "sid": "s",
    }
    payload = notice["payload"]
    assert [(one["role"], one["content"]) for one in payload.pop("contents")] == [
        ("user", "Wo? 北京"),
        ("assistant", "Da."),
    ]
    assert payload == {
        "agent_id": "s", "name": "helper", "channel": "room-7", "labels": {"team": "blue"}, "session_id": "s",
        "user_id": "ada", "reason": "close", "start_ts": start // 1000, "stop_ts": start // 1000 + 60,
    }  # fmt: skip
    assert headers["agora-signature-v2"] == hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    assert headers["agora-signature"] == hmac.new(SECRET.encode(), body, hashlib.sha1).hexdigest()
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert headers["webhook-id"] == notice["noticeId"]


@through("library")
async def test_a_webhook_gets_no_secret_that_was_stored_before_there_was_a_rule(world: World) -> None:
    key = "sk-ant-api03-" + "x7Kq" * 12
    async with world.open(store="file") as hf:
        log = [user(f"Use {key}."), *(user(str(number)) for number in range(2000))]
        await hf.given("s", *log, metadata={"channel": key, "labels": {"key": key}})
        url = hf.url
    async with receiver() as served:
        async with world.open(webhooks(served.url), "redaction: {enabled: true}", store=url) as hf:
            await hf.session("s").close()
            await hf.native.sweep()
        assert key not in str(served.bodies)
        assert [row["content"] for row in served.payloads[0]["contents"][1:]] == texts(log[1:])


@through("library")
@pytest.mark.parametrize("status", [300, 302, 404, 429, 500])
async def test_a_notice_that_was_not_taken_is_posted_again(world: World, status: int) -> None:
    async with receiver(status, status) as served, world.open(webhooks(served.url), store="file") as hf:
        await (await hf.given("s", user("One."))).close()
        for pause in (0, 1_000, 5_000, 30_000):
            world.clock.now += pause
            await hf.native.sweep()
        ids = [json.loads(body)["noticeId"] for body in served.bodies]
        assert (len(ids), len(set(ids))) == (3, 1)


@through("library")
async def test_a_receiver_that_is_gone_gets_nothing_more(world: World) -> None:
    async with receiver(410) as served, world.open(webhooks(served.url), store="file") as hf:
        for name in ("s", "t"):
            await (await hf.given(name, user("One."))).close()
            await hf.native.sweep()
        world.clock.now += HOUR
        await hf.native.sweep()
        assert len(served.bodies) == 1


@through("library")
async def test_a_webhook_posts_the_events_that_it_names(world: World) -> None:
    async with (
        receiver() as one, receiver() as two,
        world.open(webhooks(one.url, two.url, more=", events: [delete]"), store="file") as hf,
    ):  # fmt: skip
        await (await hf.given("s", user("One."))).close()
        await (await hf.given("t", user("One."))).delete()
        await hf.native.sweep()
        assert [payload["reason"] for payload in one.payloads] == ["delete"]
        assert [payload["session_id"] for payload in two.payloads] == ["t"]


def take(session: Any, reason: str) -> None:
    """Take an end."""


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (5, {}, "must be a function, not int"),
        (lambda: None, {"name": "h"}, "must accept two arguments"),
        (lambda session, reason: None, {}, "no stable name"),
        (take, {"name": "\ud800"}, "1 to 512 bytes of valid Unicode"),
        (take, {"reasons": "ttl"}, "reasons must be a list, not str"),
        (take, {"reasons": ["death"]}, "death"),
        (take, {"name": "h0"}, "a hook named 'h0' is registered already"),
        (take, {}, "there are 64 hooks already, which is the limit"),
    ],
)
def test_a_wrong_hook_is_refused(function: Any, options: dict[str, Any], words: str) -> None:
    hf = holdfast.Holdfast()
    for at in range(64):
        hf.on_expire(functools.partial(take), name=f"h{at}")
    with pytest.raises(InvalidRequest, match=words):
        hf.on_expire(function, **options)


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("ftp://x/", "s"),
        ("not a url", "s"),
        ("http://[", "s"),
        *(("https://x/", one) for one in ("", "whsec_", "whsec_!!!", "whsec_äöü")),
    ],
)
def test_a_wrong_webhook_is_refused(url: str, secret: str) -> None:
    """The error does not quote the secret."""
    with pytest.raises(InvalidRequest) as caught:
        Webhook(url, secret)
    assert "!!!" not in str(caught.value)


# -- transcripts -----------------------------------------------------------------------


def read(path: Path) -> list[Any]:
    """Return the lines of a transcript in short: the id of the header, and texts; retired ones are in parentheses."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [f"[{one['id']}]" if one.get("type") == "session" else f"({one['content']})" if "retired_by" in one else one["content"] for one in lines]  # fmt: skip


def transcripts_in(world: World) -> str:
    return f"hooks: {{transcripts_dir: {json.dumps(str(world.folder / 't'))}}}"


@through("library", "rest")
async def test_a_transcript_follows_its_session(world: World) -> None:
    path = world.folder / "t/s.jsonl"
    async with world.open(transcripts_in(world), store="file") as hf:
        session = await hf.given("s", user("One."), assistant("Two."), user("Three."))
        await session.replace(2, user("Drei."))
        await session.fork(0, id="f")
        await hf.settle()
        assert read(path.with_name("f.jsonl")) == ["[f]", "One.", "Two."]
        await session.close()
        await world.native.sweep()
        assert read(path) == ["[s]", "One.", "Two.", "(Three.)", "Drei."]
        assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        await session.erase(0)
        await session.append(assistant("Four."))
        await session.close()
        await world.native.sweep()
        assert "One." not in path.read_text()
        assert read(path)[-1] == "Four."
        receipt = await session.delete()
        await world.native.sweep()
        assert not path.exists()
        assert receipt["transcripts"] == 1


@through("library")
async def test_names_of_transcripts_are_safe_and_unique(world: World) -> None:
    transcripts = Transcripts(str(world.folder / "t"))
    async with world.open(hooks=[transcripts]) as hf:
        for name, owner in (("../Etc", "ada"), ("S", "default"), ("s", "default"), ("x" * 200, "default")):
            session = await hf.given(name, user("One."), user=owner)
            await session.close()
        await hf.native.sweep()
        names = sorted(path.name for path in (world.folder / "t").iterdir())
        assert len({name.lower() for name in names}) == 4
        assert all("/" not in name and not name.startswith(".") for name in names)
        assert Path(transcripts.path("default", "default", "s")).name == "s.jsonl"
        assert await transcripts.forget("default", "default", "s") == 1
        assert await transcripts.forget_user("other", "ada") == 0
        assert await transcripts.forget_user("default", "ada") == 1
        assert await transcripts.forget_user("default", "nobody") == 0


@through("library")
async def test_a_later_session_of_the_name_gets_a_file_of_its_own(world: World) -> None:
    async with world.open(transcripts_in(world), "sessions: {ttl: 1s}") as hf:
        await hf.given("s", user("Old."))
        world.clock.now += 1000
        await hf.native.sweep()
        await (await hf.given("s", user("New."))).close()
        await hf.native.sweep()
        found = {path.name.partition("@")[0]: read(path) for path in (world.folder / "t").iterdir()}
        assert sorted(found) == ["s", "s.jsonl"] or sorted(found) == ["s.jsonl"]
        assert ["[s]", "Old."] in found.values()


@through("cli")
async def test_sessions_are_restored_from_transcripts(world: World) -> None:
    maker = World("library", world.folder / "first")
    maker.folder.mkdir()
    async with maker.open(transcripts_in(maker), store="file") as hf:
        session = await hf.given("s", user("One."), assistant("Two."), user("Three."))
        await session.replace(2, user("Drei."))
        await session.change_state(a=1)
        await session.close()
        await hf.native.sweep()
    async with world.open(store="file") as cli:
        await cli.call("sessions", "import", str(maker.folder / "t/s.jsonl"))
        restored = cli.session("s")
        assert texts(await restored.messages()) == ["One.", "Two.", "Drei."]
        assert (await restored.state()) == {"a": 1}


@through("cli")
@pytest.mark.parametrize("edited", [(2,), (3, 2), (1, 0), (3, 4, 2), (3, 4, 5, 2, 0)])
async def test_the_transcript_of_an_open_session_equals_its_log(world: World, edited: tuple[int, ...]) -> None:
    """Also after a message was edited that comes before an earlier edit: the file is corrected that far back."""
    maker = World("library", world.folder / "first")
    maker.folder.mkdir()
    path = maker.folder / "t/s.jsonl"
    async with maker.open(transcripts_in(maker), store="file") as hf:
        session = await hf.given("s", user("One."), assistant("Two."), user("Three."), assistant("Four."))
        for seq in edited:
            await hf.settle()
            await session.replace(seq, user("Edited.") if seq in {0, 2} else assistant("Edited."))
        await hf.settle()
        log = (await session.export(retired=True))["messages"]
        assert [line.get("retired_by") for line in map(json.loads, path.read_text().splitlines()[1:])] == [
            row.get("retired_by") for row in log
        ]
        async with world.open(store="file") as cli:
            await cli.call("sessions", "import", str(path))
            assert (await cli.session("s").export(retired=True))["messages"] == log


@through("library")
async def test_of_a_history_that_is_too_long_a_webhook_gets_the_newest_messages(world: World) -> None:
    """A notice holds 16 MiB."""
    async with receiver() as served, world.open(webhooks(served.url), store="file") as hf:
        session = await hf.given("s")
        for number in range(18):
            await session.append(user(f"{number} " + "x" * 1_000_000))
        await session.close()
        await world.native.sweep()
        contents = json.loads(served.bodies[-1])["payload"]["contents"]
        shown = [message["content"].partition(" ")[0] for message in contents]
        assert shown == [str(number) for number in range(18 - len(shown), 18)]
        assert 14 <= len(shown) < 18
