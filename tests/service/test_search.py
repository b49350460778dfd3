"""Search: hits, times and arguments; whatever the index returns is checked against the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.domain.session import Session, SessionRef
from holdfast.errors import InvalidRequest
from holdfast.indexes.indexed_store import IndexedStore
from holdfast.limits import QUERY_CHARS, SEARCH_RESULTS
from holdfast.search.conversations import search_conversations
from holdfast.search.queries import SearchOptions, SearchResults
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession
from tests.clocks import START
from tests.service.search_kit import DAY, open_talks

# -- hits ----------------------------------------------------------------------


async def test_hit_has_text_session_time_and_speaker() -> None:
    """The text comes from the log, its words are highlighted, and the score lists its parts."""
    async with open_talks() as at:
        await at.add_messages(
            "harbour", "My gate code is 4711.", "Noted: the gate.", "Soup with kelp, please.", agent="plain"
        )
        (hit, *_) = (await at.hf.search("what is the gate code?", "ada")).hits
        assert (hit.session_id, hit.seq, hit.turn_id, hit.role, hit.timestamp) == ("harbour", 0, 0, "user", START)
        assert hit.snippet == "My gate code is 4711."
        assert [hit.snippet[start:stop] for start, stop in hit.highlights] == ["gate", "code"]
        assert {"own", "neighbours", "session", "keyword"} <= hit.parts.keys()
        assert hit.score > 0
        assert hit.position == 1
        assert (hit.before, hit.after) == ((), ())


async def test_neighbours_are_returned_on_request() -> None:
    """Messages before and after, in order."""
    async with open_talks() as at:
        await at.add_messages("s", "one", "two", "three", "the ferry leaves at nine", "five", "six")
        (hit, *_) = (await at.hf.search("ferry leaves", "ada", neighbours=2)).hits
        assert [one.text for one in hit.before] == ["two", "three"]
        assert [one.text for one in hit.after] == ["five", "six"]
        (hit, *_) = (await at.hf.search("ferry leaves", "ada", neighbours=10)).hits
        assert [one.seq for one in (*hit.before, *hit.after)] == [0, 1, 2, 4, 5]


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ({}, {"a#0", "a#1", "b#0", "b#1"}),
        ({"session_id": "a"}, {"a#0", "a#1"}),
        ({"session_id": "nowhere"}, set()),
        ({"role": "user"}, {"a#0", "b#0"}),
        ({"role": "assistant"}, {"a#1", "b#1"}),
        ({"role": "tool"}, set()),
        ({"agent": "nobody"}, set()),
        ({"since": START + 1}, {"b#0", "b#1"}),
        ({"until": START + 1}, {"a#0", "a#1"}),
        ({"since": START + DAY, "until": START + DAY + 1, "role": "user"}, {"b#0"}),
        ({"since": START + 2 * DAY}, set()),
    ],
)
async def test_filters_only_narrow_the_result(filters: dict[str, Any], wanted: set[str]) -> None:
    """Even if nothing is left."""
    async with open_talks() as at:
        await at.add_messages("a", "kelp soup", "kelp it is")
        at.clock.now += DAY
        await at.add_messages("b", "kelp again", "more kelp")
        assert set(await at.find("kelp", **filters)) == wanted


async def test_messages_of_an_agent_are_found_by_its_name() -> None:
    """The filter is by the agent that answered."""
    async with open_talks(lambda _: "Kelp grows to 60 m.") as at:
        session = await at.hf.session("s", user_id="ada", agent="plain")
        await session.send("How long is kelp?")
        await at.settled()
        assert await at.find("kelp", agent="plain") == ["s#1"]


@pytest.mark.parametrize(
    "query",
    ['"kelp', "kelp AND soup", "NEAR(kelp)", "kelp*", "^kelp", "title:kelp", "kelp' OR 1=1 --", "{kelp}", "kelp\x00"],
)
async def test_query_text_is_never_parsed_as_syntax(query: str) -> None:
    async with open_talks() as at:
        await at.add_messages("s", "kelp")
        await at.add_messages("t", "nothing of the kind", user="ada")
        assert (await at.find(query))[:1] == ["s#0"]


@pytest.mark.parametrize("query", ["the", "of the and", "?!…", "🦀"])
async def test_stop_words_find_nothing(query: str) -> None:
    """No filter is widened for them, and nothing is guessed."""
    async with open_talks() as at:
        await at.add_messages("s", "the crab of the sea and the shore 🦀")
        assert await at.find(query) == []


async def test_tool_results_are_found_only_on_request() -> None:
    async with open_talks() as at:
        call = {"id": "c", "type": "function", "function": {"name": "tide", "arguments": "{}"}}
        session = await at.hf.session("s", user_id="ada")
        await session.append(
            [
                {"role": "user", "content": "When is the tide?"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": "springtide at 04:10"},
                {"role": "assistant", "content": "Early."},
            ]
        )
        await at.settled()
        assert await at.find("springtide") == []
        assert await at.find("springtide", role="tool") == ["s#2"]
        (hit, *_) = (await at.hf.search("early", "ada", neighbours=2)).hits
        assert [one.text for one in hit.before] == ["When is the tide?"], "nor are they among neighbours"


async def test_results_can_be_encoded_as_json() -> None:
    """And decoded again."""
    async with open_talks() as at:
        await at.add_messages("s", "Soup, please.", "With kelp?", "No.")
        results = await at.hf.search("kelp", "ada", neighbours=1, limit=1)
        assert results.hits
        assert msgspec.json.decode(msgspec.json.encode(results), type=SearchResults) == results


# -- times ---------------------------------------------------------------------


async def test_what_did_i_ask_about_yesterday() -> None:
    """A question about a time alone returns what the user said then, newest first."""
    async with open_talks() as at:
        await at.add_messages("old", "An old question?", "An old answer.")
        at.clock.now += 3 * DAY
        await at.add_messages("s", "How deep is the harbour?", "Nine metres.", "And the river?", "Three.")
        at.clock.now += 60_000
        await at.add_messages("t", "Which rope is best?", "Hemp.")
        at.clock.now += DAY
        await at.add_messages("now", "Good morning.")
        results = await at.hf.search("What did I ask about yesterday?", "ada")
        assert [hit.id for hit in results.hits] == ["t#0", "s#0", "s#2"]
        assert {hit.score for hit in results.hits} == {0.0}
        day = (START + 3 * DAY) // DAY * DAY
        assert results.range == (day, day + DAY)
        assert set(await at.find("What did we talk about yesterday?")) >= {"t#1", "s#1"}
        assert await at.find("What did I ask about yesterday?", role="assistant") == ["t#1", "s#1", "s#3"]
        assert "old#0" not in await at.find("what did I say about the question yesterday", time="auto")


async def test_time_in_the_query_narrows_together_with_filters() -> None:
    """Both apply; if they do not overlap there are no hits."""
    async with open_talks() as at:
        await at.add_messages("s", "kelp soup")
        at.clock.now += DAY
        asked = "what did I say about kelp yesterday"
        assert await at.find(asked) == ["s#0"]
        assert await at.find(asked, since=START + 1) == []
        assert await at.find(asked, since=START + 5 * DAY) == []
        assert await at.find(asked, time="off") == ["s#0"]


async def test_time_in_the_query_ranks_first_and_only_a_filter_excludes() -> None:
    async with open_talks() as at:
        await at.add_messages("old", "kelp soup and kelp salad")
        at.clock.now += 3 * DAY
        await at.add_messages("s", "some kelp")
        at.clock.now += DAY
        asked = "what did I say about kelp yesterday"
        assert await at.find(asked) == ["s#0", "old#0"]
        assert await at.find(asked, time="filter") == ["s#0"]
        assert (await at.hf.search(asked, "ada")).range == (None, None), "nothing was left out"
        assert await at.find(asked, time="off") == ["old#0", "s#0"]


async def test_question_about_a_day_finds_messages_from_it_or_about_it() -> None:
    """Much else was said since, and it is newer."""
    async with open_talks() as at:
        at.clock.now += 3 * DAY  # a Friday
        await at.add_messages("then", "The ferry broke down.", "I see.")
        at.clock.now += 2 * DAY
        await at.add_messages("about", "On Friday we waited for two hours.", "How dull.")
        at.clock.now += 2 * DAY
        await at.add_messages("later", "Soup is ready.", "Enjoy it.")
        found = await at.find("What happened last Friday?")
        assert [hit.split("#")[0] for hit in found[:3]] == ["about", "then", "then"]
        assert "later#0" in found


async def test_filter_that_does_not_apply_is_noted() -> None:
    async with open_talks() as at:
        await at.add_messages("s", "kelp soup")
        assert (await at.hf.search("kelp", "ada", time="filter")).notes == (
            "not filtered by time: the query does not ask for messages from some time",
        )


async def test_messages_about_a_time_rank_above_others() -> None:
    """The appointment is three days after the message that names it."""
    async with open_talks() as at:
        await at.add_messages("a", "The dentist is in Harbour Street, and the dentist is kind.", "Good.")
        await at.add_messages("b", "My dentist has time next Friday.", "Noted.")
        at.clock.now += 30 * DAY
        assert (await at.find("Which dentist do I see on 17 November?"))[0] == "b#0"
        assert (await at.find("Which dentist do I see?"))[0] == "a#0"


async def test_snippet_of_a_long_message_shows_the_matching_chunk() -> None:
    paragraphs = [
        f"Paragraph {n} tells at length of the weather, of the wind and of the rain over the bay. " * 6
        for n in range(20)
    ]
    paragraphs[13] = "The spare key of the boathouse hangs behind the blue lifebelt."
    async with open_talks() as at:
        await at.add_messages("s", "\n\n".join(paragraphs), "I see.")
        await at.add_messages("t", "The weather is fine.", "Good.")
        first = (await at.hf.search("Where is the boathouse key?", "ada")).hits[0]
        assert first.id == "s#0"
        assert "behind the blue lifebelt" in first.snippet
        assert first.snippet.startswith("…")
        assert {first.snippet[start:stop].casefold() for start, stop in first.highlights} >= {"key", "boathouse"}


async def test_message_with_the_word_ranks_above_its_neighbours() -> None:
    """In a short session about something else, the text around the word is not relevant."""
    async with open_talks() as at:
        await at.add_messages(
            "s",
            "Good morning to you.",
            "Good morning. What may I do?",
            "I sold the bicycle.",
            "Well done, that was a good idea.",
        )
        assert (await at.find("bicycle"))[0] == "s#2"


async def test_days_follow_the_time_zone_of_the_caller() -> None:
    """22:13 in London is the next morning in Tokyo."""
    async with open_talks() as at:
        await at.add_messages("s", "kelp soup")
        at.clock.now += 4 * 3_600_000  # 02:13 of the 15th in London, 11:13 of the 15th in Tokyo
        assert await at.find("what did I ask yesterday?") == ["s#0"]
        assert await at.find("what did I ask yesterday?", tz="Asia/Tokyo") == []
        assert await at.find("what did I ask today?", tz="Asia/Tokyo") == ["s#0"]


# -- verification against the log ------------------------------------------------


async def test_hits_missing_from_the_log_are_replaced_by_further_ones() -> None:
    """Erased, retired or deleted without the index knowing, or in another session of the same id."""
    async with open_talks() as at:
        for name in "abcdefgh":
            await at.add_messages(name, f"kelp {name}", "fine")
        followed = at.hf.engine.life.store
        assert isinstance(followed, IndexedStore)
        behind, now = followed.inner, at.clock.now
        await behind.erase(at.ref("a"), 0)
        await behind.append(at.ref("b"), Append(timestamp=now, retire_from=0))
        for name in "cd":
            await behind.remove(at.ref(name))
        await behind.create(NewSession(id="d", user_id="ada", timestamp=now))
        assert at.hf.engine.index is not None
        assert (await at.hf.engine.index.index.status()).documents == 16, "nobody has told the index"
        assert set(await at.find("kelp", limit=4, role="user")) == {"e#0", "f#0", "g#0", "h#0"}


async def test_erased_message_is_not_found_immediately_afterwards() -> None:
    """Neither is a rewound or deleted one."""
    async with open_talks() as at:
        await at.add_messages("s", "kelp one", "kelp two", "kelp three", "kelp four")
        await at.hf.erase(at.ref("s"), 0)
        assert set(await at.find("kelp")) == {"s#1", "s#2", "s#3"}
        assert all("one" not in hit.snippet for hit in (await at.hf.search("kelp", "ada")).hits)
        await (await at.hf.session("s", user_id="ada")).rewind(0)
        assert await at.find("kelp") == ["s#1"]
        await at.hf.delete(at.ref("s"))
        assert await at.find("kelp") == []


async def test_neighbouring_hits_are_read_together(tmp_path: Path) -> None:
    """A session, and each run of its messages, is read once for any number of hits."""
    async with open_talks(url=f"sqlite:///{tmp_path}/chat.db") as at:
        await at.add_messages("s", *[f"kelp soup, day {number}" for number in range(8)])
        store, reads = at.hf.engine.store, list[str]()
        for name in ("get", "entries"):
            method = getattr(store, name)

            async def record_read(*args: Any, method: Any = method, name: str = name, **more: Any) -> Any:
                reads.append(name)
                return await method(*args, **more)

            setattr(store, name, record_read)
        assert len(await at.find("kelp soup", limit=8)) == 8
        assert sorted(reads) == ["entries", "get"]


async def test_search_for_a_prompt_reads_only_what_it_uses(tmp_path: Path) -> None:
    """There is no next page."""
    async with open_talks(url=f"sqlite:///{tmp_path}/chat.db") as at:
        for number in range(6):
            await at.add_messages(f"s{number}", "kelp soup")
        read: list[str] = []
        store = at.hf.engine.store
        get = store.get

        async def record_read(ref: SessionRef) -> Session:
            read.append(ref.id)
            return await get(ref)

        store.get = record_read  # type: ignore[method-assign]  # to be told what is read
        results = await search_conversations(at.hf.engine, "ada", "kelp soup", SearchOptions(limit=3, bare=True))
        assert [hit.session_id for hit in results.hits] == read
        assert (results.cursor, results.has_more, [hit.highlights for hit in results.hits]) == (None, False, [()] * 3)


async def test_recreated_session_shows_nothing_of_the_old_one() -> None:
    async with open_talks() as at:
        await at.add_messages("s", "kelp of old")
        await at.hf.delete(at.ref("s"))
        await at.add_messages("s", "dulse of today")
        assert await at.find("kelp") == []
        assert await at.find("dulse") == ["s#0"]


async def test_message_is_found_immediately() -> None:
    """A search waits briefly for pending index writes of this process."""
    async with open_talks() as at:
        session = await at.hf.session("s", user_id="ada")
        await session.append({"role": "user", "content": "kelp soup"})
        assert await at.find("kelp") == ["s#0"]


# -- arguments --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"query": ""}, "query"),
        ({"query": " \n"}, "query"),
        ({"query": "k" * (QUERY_CHARS + 1)}, "query"),
        ({"query": None}, "query"),
        ({"user_id": ""}, "user_id"),
        ({"user_id": None}, "user_id"),
        ({"user_id": "u" * 600}, "user_id"),
        ({"user_id": "\ud800"}, "user_id"),
        ({"mode": "fuzzy"}, "mode"),
        ({"limit": 0}, "limit"),
        ({"limit": SEARCH_RESULTS + 1}, "limit"),
        ({"limit": True}, "limit"),
        ({"neighbours": 11}, "neighbours"),
        ({"neighbours": -1}, "neighbours"),
        ({"role": "system"}, "role"),
        ({"session_id": ""}, "session_id"),
        ({"agent": 7}, "agent"),
        ({"since": "yesterday"}, "since"),
        ({"since": 5, "until": 5}, "until"),
        ({"time": "on"}, "time"),
        ({"tz": "Atlantis/Harbour"}, "tz"),
        ({"tz": "../../etc/passwd"}, "tz"),
        ({"tz": 1}, "tz"),
    ],
)
async def test_invalid_arguments_are_rejected_by_name(asked: dict[str, Any], param: str) -> None:
    """Before any look-up, and without quoting the query."""
    async with open_talks() as at:
        with pytest.raises(InvalidRequest) as refused:
            await at.hf.search(**{"query": "kelp", "user_id": "ada", **asked})
        assert refused.value.param == param
        assert "kkk" not in str(refused.value)


async def test_search_without_an_index_is_an_error() -> None:
    """Not an empty result."""
    async with open_talks(index=None) as at:
        with pytest.raises(InvalidRequest, match="no index here"):
            await at.find("kelp")
