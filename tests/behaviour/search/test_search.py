"""Search: which messages are found, in which order, for whom, and when."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.behaviour.kit import World, assistant, calls, refused, result, through, user

DAY = 86_400_000
START = 1_700_000_000_000
LASTING = "sessions: {ttl: 90d}"
CALLER = through("library", "connect", "rest")
DESCRIPTIONS = ("transcript", "caption", "alt_text")
LINK = {"url": "https://example.org/picture.png"}
PICTURE = {"type": "image_url", "image_url": LINK}


def told(*turns: str, at: int = START) -> list[dict[str, Any]]:
    """Return what user and assistant say in turn, at a time."""
    made = [(user, assistant)[number % 2](text) for number, text in enumerate(turns)]
    return [{**one, "timestamp": at} for one in made]


async def find(hf: Any, query: str, **options: Any) -> list[str]:
    hits = await hf.search(query, **{"user": "ada", **options})
    return [f"{hit['session_id']}#{hit['seq']}" for hit in hits]


async def given(hf: Any, name: str, *turns: str, at: int = START, owner: str = "ada") -> Any:
    return await hf.given(name, *told(*turns, at=at), user=owner)


# -- which words ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "query"),
    [
        ("I sold two bicycles.", "bicycle"),
        ("My gate code is 4711.", "what is the GATE code?"),
        ("The order is ORD-4711-X.", "ord-4711-x"),
        ("The order is ORD-4711-X.", "4711"),
        ("My boss was late.", "manager"),
        ("Die Häuser am Hafen sind alt.", "Haus"),
        ("明天我们去看牙医。", "牙医"),
        ("Nos vemos en el aeropuerto.", "aeropuertos"),
        ("Look in src/harbour/tide_table.py.", "tide_table"),
    ],
)
async def test_words_are_found_in_all_their_forms(world: World, said: str, query: str) -> None:
    async with world.open() as hf:
        await given(hf, "s", said, "I see.")
        await given(hf, "t", "Something else entirely.", "Fine.")
        assert (await find(hf, query))[0] == "s#0"


@pytest.mark.parametrize(
    "query", ['"kelp', "kelp AND soup", "NEAR(kelp)", "kelp*", "^kelp", "kelp' OR 1=1 --", "{kelp}"]
)
async def test_a_query_is_no_syntax(world: World, query: str) -> None:
    async with world.open() as hf:
        await given(hf, "s", "kelp")
        await given(hf, "t", "nothing of the kind")
        assert (await find(hf, query))[:1] == ["s#0"]


@pytest.mark.parametrize("query", ["the", "of the and", "?!…", "🦀"])
async def test_words_without_content_find_nothing(world: World, query: str) -> None:
    async with world.open() as hf:
        await given(hf, "s", "the crab of the sea and the shore 🦀")
        assert await find(hf, query) == []


@CALLER
async def test_a_typing_error_is_corrected_if_no_word_is_known(world: World) -> None:
    async with world.open() as hf:
        await given(hf, "s", "The lighthouse is closed.", "Noted.")
        await given(hf, "t", "Kelp soup.", "Fine.")
        assert (await find(hf, "lighthoose"))[0] == "s#0"
        assert await find(hf, "lighthoose kelp") == await find(hf, "kelp")
        assert await find(hf, "lightheese") == []


async def test_a_hit_shows_the_words_and_what_is_around_it(world: World) -> None:
    async with world.open() as hf:
        await given(hf, "s", "My gate code is 4711.", "Noted: the gate.", "And kelp soup, please.", "With ginger.")
        hit = (await hf.search("gate code", user="ada", neighbours=1))[0]
        assert (hit["role"], hit["turn_id"], hit["snippet"], hit["position"]) == ("user", 0, "My gate code is 4711.", 1)
        assert [hit["snippet"][start:stop] for start, stop in hit["highlights"]] == ["gate", "code"]
        around = hit.get("neighbours") or hit
        assert [one["text"] for one in around["after"]] == ["Noted: the gate."]
        assert around["before"] == []
        hit = (await hf.search("ginger", user="ada", neighbours=2))[0]
        around = hit.get("neighbours") or hit
        assert [one["text"] for one in around["before"]] == ["Noted: the gate.", "And kelp soup, please."]
        await given(hf, "t", "東京の鍵は赤い。", "はい。")
        hit = (await hf.search("東京", user="ada"))[0]
        assert [hit["snippet"][start:stop] for start, stop in hit["highlights"]] == ["東京"]


async def test_parts_that_are_not_spoken_are_not_found(world: World) -> None:
    unspoken = {"type": "server_tool_use", "id": "1", "name": "web", "input": {"caption": "Kelp"}}
    parts = [unspoken, {"type": "text", "text": "With ginger."}]
    async with world.open() as hf:
        await hf.given("s", user("And?"), {"role": "assistant", "content": parts}, user="ada")
        assert (await find(hf, "kelp"), (await find(hf, "ginger"))[0]) == ([], "s#1")


@CALLER
async def test_neighbours_are_beyond_what_was_taken_back(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given(
            "s", user("Kelp is cut at low tide."), *[assistant(f"{at}") for at in range(40)], user="ada"
        )
        await session.append(user("And soup?"), retire_from=1)
        await hf.settle()
        for query, side, text in (("kelp", "after", "And soup?"), ("soup", "before", "Kelp is cut at low tide.")):
            hit = (await hf.search(query, user="ada", neighbours=1))[0]
            assert [one["text"] for one in (hit.get("neighbours") or hit)[side]] == [text]


@CALLER
async def test_results_of_tools_are_not_among_the_neighbours(world: World) -> None:
    async with world.open() as hf:
        rounds = [one for at in "ab" for one in (calls((at, "tide", {})), result(at, "low"))]
        await hf.given("s", user("Kelp is cut at low tide."), *rounds, assistant("I see."), user="ada")
        hit = (await hf.search("kelp", user="ada", neighbours=1))[0]
        around = hit.get("neighbours") or hit
        assert [(one["seq"], one["text"]) for one in around["after"]] == [(5, "I see.")]


@pytest.mark.parametrize("place", [0, 13, 19])
async def test_the_snippet_of_a_long_message_is_its_best_part(world: World, place: int) -> None:
    parts = [
        f"Paragraph {number} tells of the weather, of the wind and of the rain over the bay. " * 6
        for number in range(20)
    ]
    parts[place] = "The spare key of the boathouse hangs behind the blue lifebelt."
    async with world.open() as hf:
        await given(hf, "s", "\n\n".join(parts), "I see.")
        await given(hf, "t", "The weather is fine.", "Good.")
        hit = (await hf.search("Where is the boathouse key?", user="ada"))[0]
        assert hit["session_id"] == "s"
        assert "behind the blue lifebelt" in hit["snippet"]
        assert [hit["snippet"].startswith("…"), hit["snippet"].endswith("…")] == [place > 0, place < 19]
        assert [hit["snippet"][start:stop] for start, stop in hit["highlights"]] == ["key", "boathouse"]


async def test_the_first_of_equal_parts_is_shown(world: World) -> None:
    middle = "Extraordinarily unforeseeable circumstances " * 8
    async with world.open() as hf:
        await given(hf, "s", f"The boathouse is red. {middle}. The boathouse is old.", "I see.")
        snippet = (await hf.search("boathouse", user="ada"))[0]["snippet"]
        assert snippet.startswith("The boathouse is red.")


async def test_the_message_with_the_word_is_before_its_neighbours(world: World) -> None:
    async with world.open() as hf:
        await given(
            hf, "s", "Good morning.", "Good morning. What may I do?", "I sold the bicycle.", "That was a good idea."
        )
        assert (await find(hf, "bicycle"))[0] == "s#2"


# -- for whom and where --------------------------------------------------------------


async def test_nobody_finds_what_another_user_said(world: World) -> None:
    async with world.open() as hf:
        await given(hf, "s", "My gate code is 4711.")
        await given(hf, "s", "My gate code is 9999.", owner="bob")
        assert [hit["snippet"] for hit in await hf.search("gate code", user="ada")] == ["My gate code is 4711."]
        assert await find(hf, "gate code", user="eve") == []
        assert await find(hf, "gate code", user="default") == []


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ({"session_id": "a"}, {"a#0", "a#1"}),
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
async def test_filters_are_exact(world: World, filters: dict[str, Any], wanted: set[str]) -> None:
    async with world.open() as hf:
        await given(hf, "a", "kelp soup", "kelp it is")
        await given(hf, "b", "kelp again", "more kelp", at=START + DAY)
        assert set(await find(hf, "kelp", **filters)) == wanted


@through("rest")
@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ({"since": "2023-11-15"}, {"b#0"}),
        ({"since": "2023-11-15", "tz": "Asia/Tokyo"}, {"a#0", "b#0"}),
        ({"until": "2023-11-14T22:13:21+00:00"}, {"a#0"}),
        ({"level": "session"}, {"a#0", "b#0"}),
    ],
)
async def test_times_of_filters_may_be_dates(world: World, filters: dict[str, Any], wanted: set[str]) -> None:
    async with world.open() as hf:
        await given(hf, "a", "kelp soup")
        await given(hf, "b", "kelp again", at=START + DAY)
        assert set(await find(hf, "kelp", **filters)) == wanted


@CALLER
async def test_one_hit_of_each_session(world: World) -> None:
    async with world.open() as hf:
        await given(hf, "a", "kelp soup", "kelp it is", "kelp salad", "more kelp")
        await given(hf, "b", "kelp again", "fine")
        level: dict[str, Any] = {"level": "session"} if world.driver == "rest" else {"session_level": True}
        assert {one.partition("#")[0] for one in await find(hf, "kelp", **level)} == {"a", "b"}
        assert len(await find(hf, "kelp", **level)) == 2


async def test_results_of_tools_are_found_only_on_request(world: World) -> None:
    async with world.open() as hf:
        said = [
            user("When is the tide?"),
            calls(("c", "tide", {})),
            result("c", "springtide at 04:10"),
            assistant("Early."),
        ]
        await hf.given("s", *said, user="ada")
        assert await find(hf, "springtide") == []
        assert await find(hf, "springtide", role="tool") == ["s#2"]


@CALLER
async def test_messages_of_an_agent_are_found_by_its_name(world: World) -> None:
    async with world.open("agents: {plain: {llm: default}}", script=["Kelp grows to 60 m."]) as hf:
        session = await hf.create("s", user="ada", agent="plain")
        await session.send(user("How long is kelp?"))
        await hf.settle()
        assert await find(hf, "kelp", agent="plain") == ["s#1"]
        assert {hit["role"]: hit["name"] for hit in await hf.search("kelp", user="ada")} == {
            "user": None,
            "assistant": "plain",
        }


@CALLER
@pytest.mark.parametrize(
    ("message", "name"),
    [
        (user("kelp", name="mia"), "mia"),
        ({**user("kelp"), "metadata": {"user": "Mia"}}, "Mia"),
        ({**assistant("kelp"), "metadata": {"user": "Mia"}}, None),
    ],
)
async def test_a_hit_names_the_speaker(world: World, message: dict[str, Any], name: str | None) -> None:
    async with world.open() as hf:
        await hf.given("s", message, user="ada")
        await hf.settle()
        assert [hit["name"] for hit in await hf.search("kelp", user="ada")] == [name]


# -- pages ---------------------------------------------------------------------------


@CALLER
async def test_pages_have_each_hit_once(world: World) -> None:
    """The cursor of any hit is the way to the next page."""
    async with world.open() as hf:
        for number in range(9):
            await given(hf, f"s{number}", f"kelp soup number {number}", "Fine.")
        whole = await hf.search("kelp soup", user="ada", limit=50)
        found: list[Any] = []
        after = None
        while page := await hf.search("kelp soup", user="ada", limit=4, **({"after": after} if after else {})):
            found += page
            after = page[-1].get("cursor") or page[-1]["id"]
        assert [(one["session_id"], one["seq"]) for one in found] == [(one["session_id"], one["seq"]) for one in whole]
        assert [one["position"] for one in found] == list(range(1, len(whole) + 1))


@CALLER
async def test_a_page_does_not_have_what_was_written_after_the_first_one(world: World) -> None:
    async with world.open() as hf:
        await given(hf, "s", "kelp soup", "kelp", "kelp kelp")
        first = await hf.search("kelp soup", user="ada", limit=1)
        world.clock.now = START + 1000
        await given(hf, "t", "Kelp is, among many other things that grow in the sea, eaten.", at=START + 1000)
        after = first[-1].get("cursor") or first[-1]["id"]
        assert set(await find(hf, "kelp soup", limit=10, after=after)) - {"s#0"} == {"s#1", "s#2"}
        assert "t#0" in await find(hf, "kelp soup")
        for other in ({"role": "user"}, {"tz": "Asia/Tokyo"}):
            with refused("invalid_request", "after"):
                await find(hf, "kelp soup", after=after, **other)


# -- times ---------------------------------------------------------------------------


@CALLER
async def test_a_question_about_a_day_finds_what_was_said_then(world: World) -> None:
    async with world.open(LASTING) as hf:
        await given(hf, "old", "An old question?", "An old answer.")
        await given(hf, "s", "How deep is the harbour?", "Nine metres.", "And the river?", "Three.", at=START + 3 * DAY)
        await given(hf, "t", "Which rope is best?", "Hemp.", at=START + 3 * DAY + 60_000)
        world.clock.now = START + 4 * DAY
        asked = "What did I ask about yesterday?"
        assert await find(hf, asked) == ["t#0", "s#0", "s#2"]
        assert await find(hf, asked, role="assistant") == ["t#1", "s#1", "s#3"]
        assert {hit["score"] for hit in await hf.search(asked, user="ada")} == {0.0}
        assert set(await find(hf, "What did we talk about yesterday?")) >= {"t#1", "s#1"}


@CALLER
async def test_a_time_in_a_question_ranks_and_only_a_filter_excludes(world: World) -> None:
    async with world.open(LASTING) as hf:
        await given(hf, "old", "kelp soup and kelp salad")
        await given(hf, "s", "some kelp", at=START + 3 * DAY)
        world.clock.now = START + 4 * DAY
        asked = "what did I say about kelp yesterday"
        assert await find(hf, asked) == ["s#0", "old#0"]
        assert await find(hf, asked, time="filter") == ["s#0"]
        assert await find(hf, asked, time="off") == ["old#0", "s#0"]
        assert await find(hf, asked, since=START + 5 * DAY) == []


@CALLER
async def test_messages_about_a_time_are_before_others(world: World) -> None:
    async with world.open(LASTING) as hf:
        await given(hf, "a", "The dentist is in Harbour Street, and the dentist is kind.", "Good.")
        await given(hf, "b", "My dentist has time next Friday.", "Noted.")
        world.clock.now = START + 30 * DAY
        assert (await find(hf, "Which dentist do I see on 17 November?"))[0] == "b#0"
        assert (await find(hf, "Which dentist do I see?"))[0] == "a#0"


@CALLER
async def test_days_begin_in_the_time_zone_of_the_caller(world: World) -> None:
    """22:13 in London is the next morning in Tokyo."""
    async with world.open(LASTING) as hf:
        await given(hf, "s", "kelp soup")
        world.clock.now = START + 4 * 3_600_000
        assert await find(hf, "what did I ask yesterday?") == ["s#0"]
        assert await find(hf, "what did I ask yesterday?", tz="Asia/Tokyo") == []
        assert await find(hf, "what did I ask today?", tz="Asia/Tokyo") == ["s#0"]


def noon(month: int, day: int = 15) -> int:
    """Return noon of a day in milliseconds. Months are counted from January 2021."""
    return int(datetime(2021 + month // 12, month % 12 + 1, day, 12, tzinfo=UTC).timestamp() * 1000)


@CALLER
@pytest.mark.parametrize("month", range(24, 36), ids=lambda month: f"{month - 23:02}")
async def test_months_are_counted_back_from_every_month(world: World, month: int) -> None:
    """Each month before has one question, in its middle."""
    async with world.open("sessions: {ttl: 0}") as hf:
        await hf.given("s", *({**user(f"Question {at}?"), "timestamp": noon(at)} for at in range(month)), user="ada")
        world.clock.now = noon(month, day=14)
        for asked, back in {
            "last month": [1],
            "3 months ago": [3],
            "11 months ago": [11],
            "13 months ago": [13],
            "in the last 2 months": [2, 1],
            "in the last 12 months": [*range(12, 0, -1)],
        }.items():
            found = await find(hf, f"What did I ask {asked}?", time="filter", limit=50)
            assert sorted(found) == sorted(f"s#{month - count}" for count in back), asked


@CALLER
async def test_last_is_before_today_and_a_range_is_the_latest_one(world: World) -> None:
    """Each day has one question, and so has an earlier November."""
    days = {noon(10): "s#0"} | {noon(28, day): f"s#{day}" for day in range(1, 21)}
    async with world.open("sessions: {ttl: 0}") as hf:
        await hf.given("s", *({**user(f"Question {at}?"), "timestamp": at} for at in days), user="ada")
        for now, asked, wanted in (
            (noon(28, 20), "last weekend", [13, 14]),
            (noon(28, 20), "on the weekend", [20]),
            (noon(28, 17), "last weekend", [13, 14]),
            (noon(28, 17), "between Monday and Friday", [8, 9, 10, 11, 12]),
            (noon(28, 17), "between Friday and Monday", [12, 13, 14, 15]),
            (noon(22, 3), "last November", [0]),
        ):
            world.clock.now = now
            found = await find(hf, f"What did I ask {asked}?", time="filter", limit=50)
            assert sorted(found) == sorted(f"s#{day}" for day in wanted), asked


# -- what is there --------------------------------------------------------------------


@CALLER
async def test_a_message_is_found_at_once_and_not_after_it_is_gone(world: World) -> None:
    async with world.open() as hf:
        session = await given(hf, "s", "kelp one", "kelp two", "kelp three", "kelp four")
        assert set(await find(hf, "kelp")) == {"s#0", "s#1", "s#2", "s#3"}
        await session.erase(0)
        assert set(await find(hf, "kelp")) == {"s#1", "s#2", "s#3"}
        await session.rewind(0)
        assert await find(hf, "kelp") == ["s#1"]
        session = await session.move(user_id="bob")
        assert (await find(hf, "kelp"), await find(hf, "kelp", user="bob")) == ([], ["s#1"])
        await session.delete()
        assert await find(hf, "kelp", user="bob") == []
        await given(hf, "s", "dulse of today", owner="bob")
        assert await find(hf, "dulse", user="bob") == ["s#0"]
        assert await find(hf, "kelp", user="bob") == []


@CALLER
async def test_a_fork_adds_no_second_hit(world: World) -> None:
    async with world.open() as hf:
        session = await given(hf, "s", "kelp soup", "fine")
        fork = await session.fork(at_turn=0, id="f")
        await fork.append(user("dulse salad"))
        assert [hit["snippet"] for hit in await hf.search("kelp soup", user="ada")].count("kelp soup") == 1
        assert (await find(hf, "dulse"))[0] == "f#2"
        await fork.fork(id="g")
        assert (await find(hf, "dulse", session_id="g"))[0] == "g#2"


@through("library", "rest")
async def test_without_an_index_a_search_is_refused(world: World) -> None:
    async with world.open("storage: {index: {enabled: false}}") as hf:
        await given(hf, "s", "kelp soup")
        with refused("invalid_request", "no index here"):
            await find(hf, "kelp")


@through("library", "rest")
async def test_what_was_written_before_the_index_is_found(world: World) -> None:
    url = f"sqlite:///{world.folder}/s.db"
    async with world.open("storage: {index: {enabled: false}}", store=url) as hf:
        await given(hf, "s", "kelp soup", "fine")
    async with world.open(store=url) as hf:
        await hf.settle()
        assert (await find(hf, "kelp"))[0] == "s#0"


# -- arguments --------------------------------------------------------------------------


@CALLER
@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"query": " \n"}, {"query", "q"}),
        ({"query": "k" * 8_001}, {"query", "q"}),
        ({"user": ""}, {"user_id"}),
        ({"mode": "fuzzy"}, {"mode"}),
        ({"mode": "vector"}, {"mode"}),
        ({"limit": 0}, {"limit"}),
        ({"limit": 101}, {"limit"}),
        ({"neighbours": 11}, {"neighbours"}),
        ({"role": "system"}, {"role"}),
        ({"since": "yesterday"}, {"since"}),
        ({"since": 5, "until": 5}, {"until"}),
        ({"time": "on"}, {"time"}),
        ({"tz": "Atlantis/Harbour"}, {"tz"}),
        ({"tz": "../../etc/passwd"}, {"tz"}),
        ({"after": "abc"}, {"after"}),
    ],
)
async def test_wrong_arguments_are_named(world: World, wrong: dict[str, Any], param: set[str]) -> None:
    async with world.open() as hf:
        with refused("invalid_request") as caught:
            await hf.search(**{"query": "kelp", "user": "ada", **wrong})
        assert caught.value.param in param
        assert "kkkk" not in str(caught.value)


# -- the command ------------------------------------------------------------------------


@through("cli")
async def test_stored_text_cannot_control_the_terminal(world: World) -> None:
    evil = "gate \x1b[2J\x1b]0;owned\x07 code \u202e reversed\r\n  1.  forged #9  user"
    async with world.open() as hf:
        await given(hf, "s", evil, "Noted: the gate.")
        printed = (await hf.call("search", "gate", "code", "--user", "ada", "--neighbours", "1")).out
        assert "s #0  user" in printed
        assert "assistant: Noted: the gate." in printed
        assert not {"\x1b", "\x07", "\u202e"} & set(printed)
        assert "\n  1.  forged" not in printed
        nothing = await hf.run("search", "zebra", "--user", "ada")
        assert (nothing.code, nothing.out) == (0, "No matches in the sessions of user ada.\n")
        wrong = await hf.run("search", "kelp", "--user", "ada", "--tz", "Nowhere/Land")
        assert wrong.code != 0
        assert "no time zone 'Nowhere/Land'" in wrong.err


@pytest.mark.parametrize(
    "message",
    [
        assistant(None, audio={"id": "a1", "transcript": "The harbour is closed."}),
        assistant([{"type": "text", "text": "The harbour is closed."}]),
        *(user([{**PICTURE, name: "The harbour is closed."}]) for name in DESCRIPTIONS),
        *(
            user([{"type": "image_url", "image_url": {**LINK, name: "The harbour is closed."}}])
            for name in DESCRIPTIONS
        ),
    ],
    ids=[
        "what an audio reply said",
        "a part",
        *(f"{name} of a part" for name in DESCRIPTIONS),
        *(f"{name} in a part" for name in DESCRIPTIONS),
    ],
)
@CALLER
async def test_words_are_found_wherever_a_message_has_them(world: World, message: dict[str, Any]) -> None:
    async with world.open() as hf:
        await hf.given("s", user("What is new?"), message, user="ada")
        await hf.settle()
        assert (await find(hf, "harbour"))[:1] == ["s#1"]
