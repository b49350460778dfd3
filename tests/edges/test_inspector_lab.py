"""The strategy lab: runs over recordings and sessions, their progress and results, limits, and who may see them."""

from __future__ import annotations

import csv
import io
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from playwright.async_api import expect

from holdfast.accounting import Owner, charge_to
from holdfast.cli import commands
from holdfast.cli.replay import _COLUMNS
from holdfast.context.settings import BUILT_IN
from holdfast.domain.messages import Message, ToolCall
from holdfast.errors import TooLarge
from holdfast.replay import parse_specs, plan_runs
from holdfast.server.inspector import lab_jobs
from holdfast.server.inspector.lab import COLUMNS, MEANINGS, LabForm, make_pick, split_pick
from holdfast.server.inspector.lab_jobs import LabJobs, check_recordings
from holdfast.server.inspector.line_charts import Line, draw_lines
from holdfast.server.limits import LAB_BYTES, LAB_JOBS, LAB_JOBS_OF_PRINCIPAL, LAB_KEPT_SECONDS, LAB_RUNS, LAB_VALUES
from holdfast.server.permissions import Refused
from holdfast.wire.transcripts import Recording
from tests.edges.browser_kit import NARROW, WIDE, browse, check_page, needs_chromium, save_screenshot
from tests.edges.inspector_kit import HOSTILE, read_csrf, serve_filled
from tests.edges.server import Served, gateway
from tests.edges.test_inspector_frame import HTML, add_key, sign_in

LAB = "/inspect/lab"


def make_session(name: str, turns: int = 8) -> dict[str, Any]:
    """Return a recorded session in which each turn uses a value of an earlier one."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Please handle the orders of {name}."}]
    for number in range(turns):
        call = {
            "id": f"c{number}",
            "type": "function",
            "function": {"name": "get_order", "arguments": json.dumps({"id": f"{name}-{max(0, number - 3):04}"})},
        }
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": f"{name}-{number:04} " + "word " * 60},
        ]
    return {"id": name, "messages": messages}


RECORDINGS = "\n".join(json.dumps(make_session(name)) for name in ("alpha", "beta", "gamma"))


async def start(served: Served, **fields: Any) -> Any:
    """Send the form of the lab; return the response."""
    form = {
        "csrf": await read_csrf(served, LAB),
        "recordings": RECORDINGS,
        "strategy": ["digest"],
        "budgets": "1024",
        **fields,
    }
    return await served.http.post(f"{LAB}/run", data=form, headers=HTML)


async def finish(served: Served, response: Any) -> str:
    """Wait until the run of a response has ended; return its address."""
    assert response.status_code == 303, response.text
    path: str = response.headers["location"]
    await get_job(served, path).finished.wait()
    return path


def get_job(served: Served, path: str) -> lab_jobs.LabJob:
    app: Any = served.server.config.app
    job: lab_jobs.LabJob = app.state.inspector.lab.jobs[path.rpartition("/")[2]]
    return job


# -- in a browser ------------------------------------------------------------------


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(WIDE, False), (NARROW, True)])
async def test_file_is_replayed_with_progress_charts_and_comparison(width: int, dark: bool, tmp_path: Path) -> None:
    file = tmp_path / "recordings.jsonl"
    file.write_text(RECORDINGS)
    async with gateway([]) as (served, _), browse(served.url, width=width, dark=dark) as page:
        await page.goto(LAB)
        await check_page(page)
        await page.get_by_label("Fill from a file").set_input_files(file)
        await expect(page.get_by_label("One JSON value per line")).to_have_value(RECORDINGS)
        await page.get_by_label("Budgets").fill("300, 1024")
        await page.get_by_role("button", name="Run").click()
        await expect(page.get_by_role("heading", name="16 runs over 3 sessions")).to_be_visible()
        await expect(page.get_by_role("heading", name="Compare two runs")).to_be_visible()
        await expect(page.locator("figure.line-chart")).to_have_count(2)
        await expect(page.locator(".results + .scroll tbody tr")).to_have_count(16)
        await check_page(page)
        await page.get_by_label("First").select_option("300 none")
        await page.get_by_label("Second").select_option("300 digest")
        await page.get_by_role("button", name="Compare").click()
        await expect(page.get_by_role("region", name="Comparison")).to_contain_text("points")
        await expect(page.get_by_text("recall: the second is better in 3")).to_be_visible()
        await check_page(page)
        await page.goto(LAB)
        await expect(page.get_by_role("link", name="16 runs over 3 sessions")).to_be_visible()


@needs_chromium
async def test_progress_appears_live_and_the_run_can_be_cancelled() -> None:
    long = "\n".join(json.dumps(make_session(f"s{number}", turns=40)) for number in range(60))
    async with gateway([]) as (served, _), browse(served.url) as page:
        path = (await start(served, recordings=long, strategy=list(BUILT_IN), budgets="400,1024,4096")).headers[
            "location"
        ]
        await page.goto(path)
        await expect(page.get_by_role("progressbar")).to_be_visible()
        await expect(page.locator(".results + .scroll tbody tr").first).to_contain_text("400", timeout=60_000)
        await page.get_by_role("button", name="Cancel").click()
        await expect(page.get_by_role("status")).to_contain_text("You cancelled this run")
        await get_job(served, path).finished.wait()
        async with served.http.stream("GET", f"{path}/events") as events:
            assert "data: 1" in [line async for line in events.aiter_lines()]


@needs_chromium
async def test_lab_works_without_the_script_and_keeps_the_form_after_an_error() -> None:
    async with gateway([]) as (served, _), browse(served.url, script=False, statuses=(400,)) as page:
        await page.goto(LAB)
        await page.get_by_label("One JSON value per line").fill(RECORDINGS + "\n{broken")
        await page.get_by_label("More strategies").fill("digest@2048")
        await page.get_by_role("button", name="Run").click()
        await expect(page.get_by_role("alert")).to_contain_text("line 4: invalid JSON")
        await expect(page.get_by_label("More strategies")).to_have_value("digest@2048")
        await page.get_by_label("Skip lines").check()
        await page.get_by_role("button", name="Run").click()
        await expect(page.get_by_role("heading", name="25 runs over 3 sessions")).to_be_visible()
        await get_job(served, page.url).finished.wait()
        await page.reload()
        await expect(page.locator("figure.line-chart").first).to_be_visible()


@needs_chromium
async def test_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "large.jsonl"
    file.write_bytes(b"x" * (LAB_BYTES + 1))
    async with gateway([]) as (served, _), browse(served.url) as page:
        await page.goto(LAB)
        await page.get_by_label("Fill from a file").set_input_files(file)
        await expect(page.get_by_role("alert")).to_contain_text("at most 4.0 MiB are accepted")
        await expect(page.get_by_label("One JSON value per line")).to_have_value("")


@needs_chromium
async def test_long_names_of_strategies_fit_into_a_narrow_window() -> None:
    specs = "clear_tool_results:keep=2,clear_at_least=500+token_window:preserve_recent=3,target=0.5"
    async with gateway([]) as (served, _), browse(served.url, width=NARROW) as page:
        await page.goto(await finish(served, await start(served, specs=specs, budgets="256,512")))
        await page.get_by_label("First").select_option(index=1)
        await page.get_by_role("button", name="Compare").click()
        await expect(page.get_by_role("region", name="Comparison")).to_be_visible()
        await check_page(page)


@needs_chromium
async def test_screenshot_of_a_run() -> None:
    recordings = "\n".join(json.dumps(make_session(f"order{number}", turns=16)) for number in range(12))
    names = ["none", "buffer_window", "token_window", "digest", "salience"]
    async with gateway([]) as (served, _), browse(served.url) as page:
        response = await start(served, recordings=recordings, strategy=names, budgets="256,512,1024,2048")
        await page.goto(await finish(served, response))
        await expect(page.locator("figure.line-chart")).to_have_count(2)
        await save_screenshot(page, "inspector-lab-run")


# -- results -----------------------------------------------------------------------


async def test_downloads_are_what_the_command_prints(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text(RECORDINGS)
    options = ["--strategy", "digest,token_window", "--budget", "300,1024", "--json", "--per-session"]
    printed = json.loads(CliRunner().invoke(commands, ["replay", str(file), *options], prog_name="holdfast").output)
    async with gateway([]) as (served, _):
        path = await finish(served, await start(served, strategy=["digest", "token_window"], budgets="300,1024"))
        answer = await served.http.get(f"{path}/json?sessions=true")
        assert answer.headers["content-disposition"] == 'attachment; filename="replay.json"'
        found = answer.json()
        for row in (*found, *printed):
            row["build_ms"] = 0
        assert found == printed
        short = (await served.http.get(f"{path}/json")).json()
        assert "sessions" not in short[0]
        rows = list(csv.DictReader(io.StringIO((await served.http.get(f"{path}/csv")).text)))
        assert [(row["strategy"], row["budget"], float(row["recall"])) for row in rows] == [
            (row["strategy"], str(row["budget"]), row["recall"]) for row in short
        ]


def test_columns_have_the_names_of_the_command() -> None:
    assert {name: head for name, (head, _) in COLUMNS.items()} == {
        name: _COLUMNS[name][0].head.replace("\n", " ") for name in COLUMNS
    }


async def test_sessions_of_the_server_are_replayed() -> None:
    async with serve_filled() as served:
        page = await served.http.get(f"{LAB}?session_id=second&user_id=ada", headers=HTML)
        assert 'value="ada/second" checked' in page.text
        picked = ["default/s", "ada/second"]
        path = await finish(served, await start(served, recordings="", session=picked, budgets="700"))
        [row] = (await served.http.get(f"{path}/json?sessions=true")).json()
        assert [one["id"] for one in row["sessions"]] == ["s", "second"]
        assert row["calls"] == 11


async def test_large_sessions_of_the_server_are_refused() -> None:
    async with gateway([]) as (served, _):
        messages = [{"role": "user", "content": "x" * 2_200_000}]
        for _ in range(2):
            assert (await served.http.post("/v1/sessions", json={"id": "s"})).status_code in (201, 409)
            answer = await served.http.post("/v1/sessions/s/messages", json={"messages": messages})
            assert answer.status_code == 200, answer.text
        refused = await start(served, recordings="", session=["default/s"])
        assert refused.status_code == 413
        assert "the picked sessions have more than 4 MiB" in refused.text


async def test_recordings_without_a_call_say_so() -> None:
    recording = json.dumps({"id": "x", "messages": [{"role": "user", "content": "only"}]})
    async with gateway([]) as (served, _):
        page = await served.http.get(await finish(served, await start(served, recordings=recording)), headers=HTML)
        assert "No call was measured" in page.text
        assert "<table" not in page.text


async def test_chained_sessions_are_one_session() -> None:
    async with gateway([]) as (served, _):
        path = await finish(served, await start(served, chain="on"))
        [row] = (await served.http.get(f"{path}/json?sessions=true")).json()
        assert [one["id"] for one in row["sessions"]] == ["chain"]


async def test_hostile_ids_are_shown_as_text() -> None:
    recording = json.dumps({**make_session("alpha"), "id": HOSTILE})
    async with gateway([]) as (served, _):
        path = await finish(served, await start(served, recordings=recording))
        page = await served.http.get(path, headers=HTML)
        assert "<script>document" not in page.text
        answer = await start(served, recordings=f"{HOSTILE}</textarea><script>document.title='owned'</script>")
        assert answer.status_code == 400
        assert "<script>document" not in answer.text


# -- mistakes and limits -----------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "mistake"),
    [
        ({"recordings": "{broken"}, "line 1: invalid JSON"),
        ({"recordings": '{"id": 1}'}, "line 1: the object has neither messages nor a role"),
        ({"recordings": "[" * 100_000}, "line 1: "),
        ({"recordings": ""}, "there are no recordings"),
        ({"strategy": []}, "no strategy is chosen"),
        ({"strategy": ["forget"]}, "unknown strategy"),
        ({"specs": "digest:speed=3"}, "unknown key"),
        ({"specs": '"\\"' * 3_000}, "more than 4,000 characters"),
        ({"budgets": "many"}, "is not a number of tokens"),
        ({"budgets": " ,, "}, "no budget is given"),
        (
            {"budgets": ",".join(map(str, range(1, 101)))},
            f"100 runs (strategies times budgets) were requested; at most {LAB_RUNS}",
        ),
        ({"recordings": "x" * (LAB_BYTES + 1)}, "the lab accepts 4 MiB"),
        ({"session": ["default/nothing"]}, "no session"),
        ({"session": ["default/s"] * 2 + [f"default/{number}" for number in range(600)]}, "at most 500"),
        ({"session": ["%ff", ""]}, ""),
    ],
)
async def test_mistakes_in_the_form_are_reported(fields: dict[str, Any], mistake: str) -> None:
    async with gateway([]) as (served, _):
        answer = await start(served, **fields)
        assert answer.status_code in (400, 404, 413)
        assert mistake in answer.text.replace("&#39;", "'").replace("&#34;", '"')
        assert "Strategies and budgets" in answer.text


async def test_form_that_is_too_large_is_refused() -> None:
    async with gateway([]) as (served, _):
        answer = await start(served, recordings="x" * 9 * 1024 * 1024)
        assert answer.status_code == 413
        assert "the form is larger than 8 MiB" in answer.text


def make_recording(name: str, values: int) -> Recording:
    call = ToolCall(id="a", name="f", arguments=json.dumps([f"value{number}" for number in range(values)]))
    return Recording(name, (Message(role="user", content="Hi"), Message(role="assistant", tool_calls=(call,))))


@pytest.mark.parametrize(
    ("sessions", "mistake"),
    [
        ([make_recording("a", 1)] * 501, "501 sessions"),
        ([Recording("a", (Message(role="user", content="x"),) * 20_001)], "20,001 messages"),
        ([make_recording("a", LAB_VALUES + 1)], "a: a message calls tools with more than 200 argument values"),
    ],
)
def test_recordings_are_limited(sessions: list[Recording], mistake: str) -> None:
    check_recordings([make_recording("a", LAB_VALUES)] * 500)
    with pytest.raises(TooLarge, match=mistake):
        check_recordings(sessions)


RUNS = plan_runs(parse_specs(["digest"]), [1024])


async def test_caller_has_one_run_at_a_time_and_old_results_are_dropped() -> None:
    jobs = LabJobs()
    with charge_to(Owner("t", "ada")):
        first = jobs.start([make_recording("a", 3)], RUNS, now=0)
        with pytest.raises(Refused, match="another run of yours"):
            jobs.start([make_recording("a", 3)], RUNS, now=0)
        await first.finished.wait()
        assert first.state == "done"
        for _ in range(LAB_JOBS_OF_PRINCIPAL):
            await jobs.start([make_recording("a", 3)], RUNS, now=1).finished.wait()
        assert len(jobs.list_own(1)) == LAB_JOBS_OF_PRINCIPAL
        with pytest.raises(Refused, match="no such run"):
            jobs.get(first.id, 1)
        kept = jobs.list_own(1)[0]
        jobs.get(kept.id, 1_000)
        assert jobs.list_own(LAB_KEPT_SECONDS * 1000 + 500) == [kept]
        assert jobs.list_own(LAB_KEPT_SECONDS * 1000 + 1_001) == []


async def test_server_keeps_a_bounded_number_of_runs() -> None:
    jobs = LabJobs()
    for number in range(LAB_JOBS + 3):
        with charge_to(Owner("small" if number == 0 else "large", f"user{number}")):
            await jobs.start([make_recording("a", 3)], RUNS, now=0).finished.wait()
    assert len(jobs.jobs) == LAB_JOBS
    assert [job.owner.name for job in jobs.jobs.values()][:2] == ["user0", "user4"]


async def test_only_some_runs_are_in_progress_at_the_same_time() -> None:
    jobs, started = LabJobs(), []
    for number in range(4):
        with charge_to(Owner("small" if number == 3 else "large", f"user{number}")):
            started.append(jobs.start([make_recording("a", 3)], RUNS, now=0))
        if number == 2:
            with charge_to(Owner("large", "ada")), pytest.raises(Refused, match="3 runs of others"):
                jobs.start([make_recording("a", 3)], RUNS, now=0)
    with charge_to(Owner("other", "ada")), pytest.raises(Refused, match="4 runs of others"):
        jobs.start([make_recording("a", 3)], RUNS, now=0)
    for job in started:
        await job.finished.wait()


async def test_run_that_takes_too_long_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_jobs, "LAB_PIECE_SECONDS", 0.0)
    monkeypatch.setattr(lab_jobs, "LAB_RUN_SECONDS", 0.0)
    job = LabJobs().start([make_recording("a", 3)] * 50, RUNS, now=0)
    await job.finished.wait()
    assert job.state == "stopped"
    assert job.done < job.total


async def test_run_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(lab_jobs, "play_session", fail)
    async with gateway([]) as (served, _):
        path = await finish(served, await start(served))
        page = await served.http.get(path, headers=HTML)
        assert "The run failed: internal error" in page.text
        assert "secret detail" not in page.text


# -- who may do what ---------------------------------------------------------------


async def test_run_is_visible_to_its_owner_only() -> None:
    async with gateway([]) as (served, _):
        keys = [await add_key(served, "read", user_id=name, seed=seed) for seed, name in enumerate(("ada", "bob"), 1)]
        await sign_in(served, keys[0])
        path = await finish(served, await start(served))
        assert (await served.http.get(path, headers=HTML)).status_code == 200
        assert path in (await served.http.get(LAB, headers=HTML)).text
        await sign_in(served, keys[1])
        for address in (path, f"{path}/json", f"{path}/csv", f"{path}/events"):
            assert (await served.http.get(address, headers=HTML)).status_code == 404, address
        csrf = await read_csrf(served, LAB)
        assert (await served.http.post(f"{path}/cancel", data={"csrf": csrf}, headers=HTML)).status_code == 404
        assert path not in (await served.http.get(LAB, headers=HTML)).text


async def test_key_of_one_user_cannot_replay_sessions_of_another() -> None:
    async with serve_filled() as served:
        await sign_in(served, await add_key(served, "read", user_id="ada"))
        page = await served.http.get(LAB, headers=HTML)
        assert "second" in page.text
        assert 'value="default/s"' not in page.text
        answer = await start(served, recordings="", session=["default/s"])
        assert answer.status_code == 404
        assert (await served.http.get(f"{LAB}?session_id=s&user_id=default", headers=HTML)).status_code == 404


async def test_form_of_another_page_is_refused() -> None:
    async with gateway([]) as (served, _):
        for path in (f"{LAB}/run", f"{LAB}/x/cancel"):
            assert (await served.http.post(path, data={"csrf": "0" * 64}, headers=HTML)).status_code == 403


# -- parts -------------------------------------------------------------------------


@pytest.mark.parametrize(("user", "session"), [("ada", "s"), ("a/b", "c/d %2F"), ("ü", "\u202e")])
def test_picked_session_is_read_back(user: str, session: str) -> None:
    assert split_pick(make_pick(user, session)) == (user, session)


def test_strategy_with_its_own_budget_needs_no_other() -> None:
    assert list(LabForm(strategies=[], specs="digest@2048\nnone@1", budgets="").plan()) == [
        ("digest", 2048),
        ("none", 1),
    ]


def test_lines_have_gaps_for_missing_values_and_escaped_names() -> None:
    lines = [Line("a<b", [(1, 0.5), (2, None), (4, 0.7)]), Line("one point", [(1, 0.0)])]
    drawn = draw_lines(lines, label="Recall", x_label="budget", format_y="{:.2f}".format, y_top=1.0)
    assert drawn.count("<circle") == 2
    assert re.search(r'd="M[\d. ]+M[\d. ]+"', drawn)
    assert "a&lt;b, budget 4: 0.70" in drawn
    assert "<b" not in drawn
    assert "style=" not in drawn


def test_chart_of_no_points_is_empty() -> None:
    assert "<circle" not in draw_lines([], label="Cost", x_label="budget", format_y=str)


@pytest.mark.parametrize(
    ("points", "note"),
    [
        ([[1.0, 1.0], [1.0, 1.0], [0.2, 0.9]], "These lines have the same values and overlap: a, b."),
        ([[1.0, 0.5], [1.0, 1.0]], "Lines overlap where their values are equal."),
        ([[1.0, None], [0.9, None]], ""),
    ],
)
def test_chart_names_lines_that_lie_on_each_other(points: list[list[float | None]], note: str) -> None:
    lines = [Line(name, [*zip((1024, 4096), ys, strict=True)]) for name, ys in zip("abc", points, strict=False)]
    drawn = draw_lines(lines, label="Recall", x_label="budget", format_y=str, y_top=1.0)
    assert re.findall(r'<p class="soft">([^<]*)</p>', drawn) == ([note] if note else [])


def test_each_column_of_the_results_is_explained() -> None:
    assert list(MEANINGS) == list(COLUMNS)


async def test_pages_of_a_session_link_to_the_lab_and_the_playground() -> None:
    """The lab shows the sessions of the server first and opens them, as long as no recording is given."""
    async with gateway(lambda _: "ok") as (served, _):
        await served.chat("Hello", "a b", user_id="ada")
        html = (await served.http.get("/inspect/sessions/a%20b?user_id=ada", headers=HTML)).text
        found = {path: re.search(rf'href="({path}\?[^"]+)"', html) for path in (LAB, "/inspect/playground")}
        lab = found[LAB]
        assert lab is not None
        page = (await served.http.get(unescape(lab[1]), headers=HTML)).text
        assert re.search(r'<input type="checkbox" name="session" value="ada/a%20b" checked>', page)
        assert page.index("<details open>") < page.index('id="recordings"')
        talk = found["/inspect/playground"]
        assert talk is not None
        assert "Hello" in (await served.http.get(unescape(talk[1]), headers=HTML)).text
