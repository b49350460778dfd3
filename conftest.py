"""Run documentation examples as tests, and report which tests did not run.

Python blocks in README.md and docs/*.md and examples in docstrings run in order, with one namespace per file. A block may use `await`
and `async with` at its top level. `<!-- skip: next -->` before a block skips it.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import queue
import signal
import threading
import time
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE
from typing import TYPE_CHECKING, Any

import pytest
from sybil import Example, Sybil
from sybil.evaluators.python import pad
from sybil.parsers.markdown import CodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser

import holdfast

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.remote.connection import RemoteHoldfast


def run_block(example: Example) -> None:
    """Run a block, in a new event loop if it has `await` at its top level."""
    # Padded, so that a traceback shows the line of the document.
    source = pad(example.parsed, example.line + example.parsed.line_offset)
    code = compile(source, example.path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    namespace = example.namespace
    namespace.setdefault("__name__", "__main__")
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, namespace))  # noqa: S307  (our own documentation)
    else:
        exec(code, namespace)  # noqa: S102  (our own documentation)


@pytest.fixture
def in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the example in an empty folder, because examples write `chat.db` to the current one."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def embeddings() -> Iterator[str]:
    """Run an embeddings API in a thread; yield its base URL."""
    from tests.behaviour.kit.receivers import embedder

    async def run() -> None:
        async with embedder() as stub:
            urls.put(stub.url)
            await asyncio.to_thread(ended.wait)

    urls, ended = queue.Queue[str](), threading.Event()
    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        yield urls.get(timeout=30)
    finally:
        ended.set()
        thread.join()


@pytest.fixture(scope="session")
def gateway(embeddings: str) -> Iterator[str]:
    """Run a real server with the offline model and a model `embedder` in a thread; yield its base URL."""
    import uvicorn

    from holdfast.agents import Llm, Roster, offline
    from holdfast.holdfast import Holdfast
    from holdfast.models.openai import OpenAIModel
    from holdfast.server.app import make_app

    embedder = Llm(name="embedder", model="bge-m3", client=OpenAIModel(embeddings))
    roster = Roster({"default": offline(), "embedder": embedder})
    config = uvicorn.Config(make_app(Holdfast("sqlite://:memory:", roster=roster)), port=0, log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def example_client(gateway: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `OpenAI()`, `Anthropic()` and `holdfast.connect` in examples use the test gateway."""
    monkeypatch.setenv("OPENAI_BASE_URL", gateway)
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", gateway.removesuffix("/v1"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "unused")

    def connect(_: str, **options: Any) -> RemoteHoldfast:
        from holdfast.remote.connection import RemoteHoldfast

        return RemoteHoldfast(gateway.removesuffix("/v1"), **options)

    monkeypatch.setattr(holdfast, "connect", connect, raising=False)


pages = Sybil(
    parsers=[CodeBlockParser(language="python", evaluator=run_block), SkipParser()],
    patterns=["README.md", "docs/*.md"],
    fixtures=["in_empty_directory", "example_client"],
)
docstrings = Sybil(
    parsers=[DocTestParser(optionflags=ELLIPSIS | NORMALIZE_WHITESPACE)],
    # One pattern per depth, because `**` matches only one folder here.
    patterns=[f"src/{'*/' * depth}*.py" for depth in (1, 2, 3, 4)],
    fixtures=["in_empty_directory"],
)
examples_in = (pages + docstrings).pytest()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the examples of a file; skip Python files without examples, because parsing all of them takes seconds."""
    if file_path.suffix == ".py" and b">>>" not in file_path.read_bytes():
        return None
    collector: pytest.Collector | None = examples_in(file_path, parent)
    return collector


def pytest_configure(config: pytest.Config) -> None:
    """Restore the handler of Ctrl-C: workers ignore it, and programs that tests start would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("numprocesses", None):
        config.pluginmanager.register(UnfinishedRun(config.rootpath / ".pytest_cache" / "unfinished"))


class UnfinishedRun:
    """Lists the test files that remain when a run is aborted, so that `make test` can run them.

    The controller aborts a run when a worker ends with an internal error. The other workers' tests are lost then, although none failed.

    Args:
        path: the list, one file per line. It exists only after an aborted run in which no test failed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._left: set[str] = set()
        self._failed = False
        self._errors: list[str] = []
        path.unlink(missing_ok=True)

    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Record the collected tests, which are the same for every worker."""
        self._left = self._left or set(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remove the test from the list when it is done."""
        self._failed = self._failed or report.failed
        if report.when == "teardown":
            self._left.discard(report.nodeid)

    def pytest_internalerror(self, excrepr: object) -> None:
        """Keep the error: the first one shows the cause, but is printed long before the end."""
        self._errors.append(str(excrepr))

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Write the list and print the first error again at the end."""
        if not self._errors:
            return
        print("the run was aborted by:", *self._errors[0].splitlines()[-40:], sep="\n")  # noqa: T201
        if not self._failed:
            self._path.parent.mkdir(exist_ok=True)
            self._path.write_text("".join(sorted({f"{name.split('::')[0]}\n" for name in self._left})))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the checks per store, and a line per group of skipped tests: a skip must not look like a pass."""
    if line := format_stores_line(terminalreporter):
        terminalreporter.write_line(line)
    groups: dict[tuple[str, str], int] = {}
    for report in terminalreporter.getreports("skipped"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        group = "/".join(report.nodeid.split("::")[0].split("/")[:2])
        key = (group, reason.removeprefix("Skipped: "))
        groups[key] = groups.get(key, 0) + 1
    for (group, reason), count in sorted(groups.items()):
        terminalreporter.write_line(f"not run: {group}, {count} tests ({reason})", yellow=True)


def format_stores_line(terminalreporter: pytest.TerminalReporter) -> str:
    """Return the number of contract checks that passed on each store and the stores without a run; empty if none ran."""
    outcomes_by_store: dict[str, dict[str, list[str]]] = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.getreports(outcome):
            store = dict(getattr(report, "user_properties", ())).get("store")  # reports of modules have none
            if store is not None:
                reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
                outcomes_by_store.setdefault(str(store), {}).setdefault(outcome, []).append(
                    reason.removeprefix("Skipped: ")
                )
    ran = {store: outcomes for store, outcomes in outcomes_by_store.items() if outcomes.keys() - {"skipped"}}
    parts = [_format_store(store, outcomes) for store, outcomes in ran.items()]
    line = f"stores: {', '.join(parts)}" if parts else ""
    missing = [
        f"{store} ({outcomes['skipped'][0]})" for store, outcomes in outcomes_by_store.items() if store not in ran
    ]
    return "; ".join(filter(None, [line, f"not run: {', '.join(missing)}" if missing else ""]))


def _format_store(store: str, outcomes: dict[str, list[str]]) -> str:
    failed = len(outcomes.get("failed", [])) + len(outcomes.get("error", []))
    return f"{store} {len(outcomes.get('passed', []))}{f' ({failed} failed)' if failed else ''}"
