"""What pages of the inspector show of a session, a list, a search and the server: figures, marks, pages, and live events."""

from __future__ import annotations

import asyncio
import html
import json
import re
import shlex
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from holdfast.testing import Reply
from tests.behaviour.kit import Served, assistant, calls, gateway, result, texts, user
from tests.behaviour.kit.inspector import HTML, add_key, look, serve_filled, sign_in, sign_in_as
from tests.behaviour.kit.inspector_pages import S
from tests.behaviour.kit.seams import fast_updates

LIST: Final = "/inspect/sessions"
HOUR: Final = 3_600_000


def listed(page: str) -> list[str]:
    """Return the ids in the rows of the list, in order."""
    values = re.findall(r'name="session" value="([^"]+)"', page)
    return [json.loads(html.unescape(value))[1] for value in values]


def cells(page: str, session: str) -> list[str]:
    """Return the texts of the cells in a session's row."""
    row = next(row for row in re.findall(r"<tr data-item>(.*?)</tr>", page, re.DOTALL) if f">{session}<" in row)
    found = re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)
    return [" ".join(html.unescape(re.sub(r"<[^>]+>", " ", cell)).split()) for cell in found]


def shown(page: str) -> list[int]:
    """Return the numbers of the messages on a page."""
    return [int(seq) for seq in re.findall(r'id="m-(\d+)"', page)]


def make_turns(count: int) -> list[Any]:
    """Return turns of four messages."""
    made: list[Any] = []
    for number in range(count):
        made += [
            user(f"Question {number}"),
            calls((f"c{number}", "look_up", {"number": number})),
            result(f"c{number}", json.dumps({"found": number})),
            assistant(f"Answer {number}"),
        ]
    return made


async def listing(served: Served, query: str = "") -> list[str]:
    return listed((await look(served, LIST + query)).html)


# -- the list ------------------------------------------------------------------


async def test_a_row_describes_a_session() -> None:
    usage = {"prompt_tokens": 200, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 50}}
    async with gateway(lambda _: Reply(text="Yes.", usage=usage), "agents: {support: {llm: default}}") as served:
        await served.rest.create("s", user="ada", agent="support", ttl=HOUR)
        for said in ("\n Where is order 17?\nIt was due on Tuesday.", "And now?"):
            await served.chat(said, user="ada")
        tokens = str((await served.rest.session("s", "ada").info())["tokens"])
        assert cells((await look(served, LIST)).html, "s") == [
            "",
            f"Where is order 17? s active 2 turns, {tokens} tokens",
            "ada support",
            "active",
            "2023-11-14 22:13",
            "2",
            tokens,
            "400",
            "200",
            "25 %",
            "0",
            "2023-11-14 23:13",
        ]


async def test_a_session_that_was_one_too_many_is_shown_as_expired(tmp_path: Path) -> None:
    async with gateway((), "sessions: {max_sessions: 1}", store=f"sqlite:///{tmp_path}/chat.db") as served:
        for name in ("old", "new"):
            served.clock.now += HOUR
            await served.rest.given(name, *make_turns(1))
        page = (await look(served, LIST)).html
        assert [cells(page, name)[3] for name in ("old", "new")] == ["expired", "active"]


async def test_the_list_tells_states_apart_filters_and_sorts(tmp_path: Path) -> None:
    async with gateway((), "agents: {support: {llm: default}}", store=f"sqlite:///{tmp_path}/chat.db") as served:
        await served.rest.given("old", *make_turns(3), user="ada")
        await served.rest.session("old", "ada").update(ttl=1000)
        served.clock.now += 3 * HOUR  # past midnight
        await served.rest.given("done", *make_turns(1), user="ada", agent="support")
        await served.rest.session("done", "ada").close()
        await served.rest.given("idle", *make_turns(2), user="bob")
        running = await served.native.session("running")
        async with running.turn("Hello"):
            page = (await look(served, LIST)).html
            states = {name: cells(page, name)[3] for name in listed(page)}
        assert states == {"old": "expired", "done": "closed", "running": "busy", "idle": "active"}
        for sort in ("", "&sort=turns"):
            assert await listing(served, f"?user_id=ada&agent=support{sort}") == ["done"]
        assert await listing(served, "?status=closed&user_id=ada&since=2023-11-15&q=") == ["done"]
        assert await listing(served, "?until=2023-11-15") == ["old"]
        assert (await listing(served, "?sort=turns"))[:2] == ["old", "idle"]
        assert await listing(served, "?sort=tokens&order=asc") == ["running", "done", "idle", "old"]
        assert "since must be" in (await look(served, f"{LIST}?since=soon", 400)).text


async def test_a_search_marks_words_and_names_the_users_that_it_covered() -> None:
    async with gateway(lambda _: "Noted.") as served:
        await served.chat("The kelp <b>forest</b> is cold", "one", user="ada")
        await served.chat("My kelp salad was good", "two", user="bob")
        page = await look(served, f"{LIST}?q=kelp+forest")
        assert "<mark>kelp</mark> &lt;b&gt;<mark>forest</mark>&lt;/b&gt;" in page.html
        assert f'href="{LIST}/one?user_id=ada&amp;at=0#m-0"' in page.html
        assert "All users were searched" in page.text
        assert "forest" not in (await look(served, f"{LIST}?q=kelp&user_id=bob")).text
        for number in range(5):
            await served.chat("More kelp", "more", user=f"u{number}")
        assert "the 5 of 7 users who were active last" in (await look(served, f"{LIST}?q=kelp")).text
        assert "No message found" in (await look(served, f"{LIST}?q=zebra&user_id=ada")).text


async def test_without_an_index_the_search_says_how_to_turn_it_on() -> None:
    async with gateway((), "storage: {index: {enabled: false}}") as served:
        assert "index: {enabled: true}" in (await look(served, f"{LIST}?q=kelp")).text


# -- a session -----------------------------------------------------------------


async def test_pages_of_a_session_cover_the_log_once_and_begin_with_turns() -> None:
    async with gateway() as served:
        await served.rest.given("s", *make_turns(120))
        url, seen = S, list[int]()
        while url:
            page = (await look(served, url)).html
            seqs = shown(page)
            assert len(seqs) <= 100
            assert seqs[0] % 4 == 0
            seen = seqs + seen
            older = re.search(r'href="([^"]+)" rel="prev"', page)
            url = html.unescape(older[1]) if older else ""
        assert seen == list(range(480))
        before = shown((await look(served, f"{S}?at=77")).html)
        await served.rest.session("s").append(*make_turns(60))
        assert shown((await look(served, f"{S}?at=77")).html) == before
        assert "There is no message 9999" in (await look(served, f"{S}?at=9999")).text
        assert "data-live" in (await look(served, S)).html
        assert "data-live" not in (await look(served, f"{S}?at=0")).html


async def test_a_very_long_turn_is_divided_and_says_so() -> None:
    async with gateway() as served:
        await served.rest.given("s", user("Go"), *(assistant(f"Step {number}") for number in range(299)))
        page = await look(served, f"{S}?at=150")
        assert 150 in shown(page.html)
        assert len(shown(page.html)) <= 100
        assert "continues on another page" in page.text


async def test_a_session_of_any_id_and_user_has_pages_and_links_to_them() -> None:
    name, owner = 'a/b ü?#&\u202e"<b>', "x&y/ö"
    async with gateway(["ok"]) as served:
        await served.chat("Hello", name, user=owner)
        url = f"/inspect/sessions/{quote(name, safe='')}?user_id={quote(owner, safe='')}"
        page = await look(served, url)
        assert "Hello" in page.text
        assert "U+202E" in page.text
        links = re.findall(r'href="(/inspect/sessions/[^"]+)"', page.html)
        assert len(links) > 8
        for link in links:
            await look(served, html.unescape(link).partition("#")[0])


async def test_marks_of_messages_are_shown_and_what_is_long_or_hidden_is_folded() -> None:
    async with gateway() as served:
        await served.rest.create("s", system_messages="Be brief.")
        thought = {"type": "thinking", "thinking": "I should greet.", "signature": "x"}
        session = served.rest.session("s")
        await session.append(
            user("One", metadata={"user": "bob"}, pinned=True),
            assistant("Two", importance=0.7, metadata={"interrupted": True}),
            {"role": "note", "origin": {"step": "handover"}},
            user("Three"),
            assistant([thought, {"type": "text", "text": "Hi"}]),
        )
        await session.annotate(3, refused_by=["provider-x"])
        await session.erase(1)
        await session.rewind(0)
        page = await look(served, S)
        for mark in (">bob<", ">pinned<", ">erased<", "handover"):
            assert mark in page.html, mark
        assert "replaced by a rewind" in page.text
        for folded in ("Be brief.", "I should greet."):
            before = page.html.partition(folded)[0]
            assert before.count("<details") > before.count("</details>"), folded
        assert "refused by provider-x" in (await look(served, f"{S}?at=3")).text


async def test_a_search_in_a_session_leads_to_the_message_and_to_older_ones() -> None:
    async with gateway() as served:
        await served.rest.given("s", *make_turns(50))
        url, found = f"{S}?q=ANSWER", list[int]()
        while url:
            page = (await look(served, url)).html
            assert "<mark>Answer</mark>" in page
            found += [int(seq) for seq in re.findall(r'#m-(\d+)">#', page.partition("</section>")[0])]
            more = re.search(r'href="([^"]+)">Search older', page)
            url = html.unescape(more[1]) if more else ""
        assert found == list(range(199, 0, -4))
        assert "0 messages with" in (await look(served, f"{S}?q=nothing")).text
        await look(served, f"{S}?q={'x' * 201}", 400)


async def test_copied_commands_repeat_the_conversation_in_a_copy_and_contain_no_key() -> None:
    async with serve_filled() as served:
        page = (await look(served, f"{S}/messages/9")).html
        found = re.search(r'<pre id="commands">(.*?)</pre>', page, re.DOTALL)
        assert found is not None
        for command in html.unescape(found[1]).split("\n\n"):
            name, url, _, _, _, body = shlex.split(command.replace("\\\n", ""))
            answer = await served.http.post(url, content=body, headers={"content-type": "application/json"})
            assert (name, answer.is_success) == ("curl", True), answer.text
        copy = texts(await served.rest.session("s-from-9").messages())
        assert copy[:10] == texts(await served.rest.session("s").messages())[:10]
        key = await add_key(served)
        await sign_in(served, key)
        page = (await look(served, f"{S}/messages/0")).html
        assert "X-Holdfast-Key: $HOLDFAST_KEY" in page
        assert key not in page


async def test_deep_and_invisible_texts_are_shown() -> None:
    async with gateway() as served:
        await served.rest.create("s")
        for depth in (100, 950, 10_000):
            call = calls((f"d{depth}", "f", None))
            call["tool_calls"][0]["function"]["arguments"] = "[" * depth + "]" * depth
            await served.rest.session("s").append(call, result(f"d{depth}", '{"a":' * depth + "1" + "}" * depth))
        await served.rest.session("s").append(user("\u2067" * 50_000))
        page = await look(served, S)
        assert "nested too deeply" in page.text
        assert "\u2067" not in page.html
        assert page.html.count("U+2067") == 100


async def test_events_count_what_the_page_does_not_show_and_end_with_the_session() -> None:
    async with gateway() as served:
        await served.rest.given("s", *make_turns(4))
        with fast_updates():
            async with served.http.stream("GET", f"{S}/events?since=13") as response:
                assert response.headers["content-type"].startswith("text/event-stream")
                events = (line async for line in response.aiter_lines() if line.startswith("data"))
                assert await anext(events) == "data: 3"
                await served.rest.session("s").append(*make_turns(1))
                assert await anext(events) == "data: 4"
                await served.rest.session("s").delete()
                async with asyncio.timeout(10):
                    assert [event async for event in events] == []
        assert (await served.http.get(f"{S}/events", headers=HTML)).status_code == 404


# -- memories ------------------------------------------------------------------


async def test_a_user_does_not_see_in_which_sessions_of_others_a_memory_of_the_app_was_recalled() -> None:
    async with gateway() as served:
        made = await served.rest.remember("The office closes at nine", app=True)
        await served.native.memories.recall("when does the office close?", session="of-bob", user_id="bob")
        await served.native.memories.settled()
        where = f"/inspect/memories/{made['id']}"
        assert "of-bob" in (await look(served, where)).text
        await sign_in_as(served, "read", user_id="ada")
        page = await look(served, where)
        assert "different question" in page.text
        assert "of-bob" not in page.html


# -- the server ----------------------------------------------------------------


async def test_figures_follow_the_chosen_range_and_health_names_a_model_that_fails() -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 100}}
    async with gateway([Reply(text="Yes.", usage=usage)] * 3 + [Reply(status=503, error="down")]) as served:
        await served.chat("One")
        served.clock.now += 26 * HOUR
        for said in ("Two", "Three", "Four"):
            await served.chat(said)
        page = await look(served, "/")
        for words in ("Turns 3", "100 % of prompt tokens read", "Failed turns 1", "Sessions 1", "not answering"):
            assert words in page.text, words
        assert "Turns 4" in (await look(served, "/?range=month")).text
        assert "in memory: lost when the server stops" in page.text


async def test_a_key_of_one_user_sees_its_sessions_only() -> None:
    async with gateway() as served:
        await served.rest.given("mine", user("Mine"), user="ada")
        await served.rest.given("theirs", user("Theirs"), user="bob")
        await served.rest.remember("Ada likes tea", user="ada")
        await sign_in_as(served, "admin", user_id="ada")
        overview = await look(served, "/")
        assert "Mine" in overview.text
        assert "Charts over time need a key without a user" in overview.text
        assert "Theirs" not in overview.text
        assert await listing(served) == ["mine"]
        await look(served, f"{LIST}?user_id=bob", 404)
        await look(served, f"{LIST}/theirs", 404)
        assert "Ada likes tea" in (await look(served, "/inspect/memories")).text


async def test_retention_previews_each_rule_and_changes_nothing() -> None:
    async with serve_filled("sessions: {ttl: 1h, max_sessions: 50}\nstorage: {sessions: {retention: 30d}}") as served:
        served.clock.now += 2 * HOUR
        for _ in range(2):
            page = await look(served, "/inspect/retention")
            assert "Idle sessions end after 1h 2 sessions would be" in page.text
            assert "Active sessions, at most 50 nothing to do" in page.text
            assert "Closed sessions are deleted after 30d" in page.text


async def test_agents_show_their_settings_and_no_secret() -> None:
    agents = """agents:
  concierge: {instruction: Be kind., context: {budget: 8000}, memory: {enabled: true}, sub_agents: [planner]}
  planner: {instruction: Plan.}"""
    async with gateway((), agents) as served:
        listed = await look(served, "/inspect/agents")
        assert "concierge" in listed.text
        page = await look(served, "/inspect/agents/concierge")
        for words in ("Be kind.", "8000", "planner", "workspaces are disabled"):
            assert words in page.text, words
        assert "sk-upstream" not in listed.html + page.html
        await sign_in_as(served, "admin", user_id="ada")
        assert "Be kind." not in (await look(served, "/inspect/agents/concierge")).text


@pytest.mark.parametrize("others", ['a={"b": 1}', 'a="b', "a[b]=c", "expires=1", "holdfast_session=planted"])
async def test_a_sign_in_survives_other_cookies(others: str) -> None:
    async with gateway() as served:
        key = await add_key(served)
        await sign_in(served, key)
        [(name, token)] = dict(served.http.cookies).items()
        served.http.cookies.clear()
        cookies = {"cookie": f"{others}; {name}={token}"}
        assert (await served.http.get("/", headers={**HTML, **cookies})).status_code == 200
        headers = {"cookie": f"{name}={token}"}
        assert (await served.http.get("/v1/sessions", headers=headers)).status_code == 401
