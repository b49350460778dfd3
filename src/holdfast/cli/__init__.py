"""The command line: `holdfast serve | replay | chat | sessions | state | transcripts | keys | migrate | backup | doctor | config | …`.

frame     the outermost command: errors as one line, exit codes, colour
terminal  what reaches a terminal: cleaned text, JSON, tables, progress bars
stores    which store a command works on, and which session is meant
serve, replay, chat, sessions, state, keys, verify, migrate, backup (restore), doctor, config   a file a command
transfer (export), importing, removal (delete, prune), turns (fork, rewind)   further commands of sessions
search      what was said in a user's sessions      memories  what is remembered across them      index  what search uses
transcripts  the files that a server writes      finding  what stands in one, and where      workspace  what agents commit
evaluate   how well things are found   embeddings  the local model's weights   figures     the tables of replay   talk   what chat does with a session   fullness   how full a budget is
transcript  a session as text      lines  sessions out of JSON lines      checks     what doctor looks at

Nothing slow is imported before a command needs it: `holdfast --help` answers at once.
"""

from __future__ import annotations

import io
import sys
from typing import Any

from holdfast._version import __version__
from holdfast.cli import (
    backup,
    chat,
    config,
    doctor,
    embeddings,
    evaluate,
    index,
    keys,
    memories,
    migrate,
    replay,
    search,
    serve,
    sessions,
    state,
    transcripts,
    workspace,
)
from holdfast.cli.frame import QUIT, Frame

PROGRAM = "holdfast"

commands = Frame(
    name=PROGRAM,
    version=__version__,
    help="Session memory for LLM agents: keep the whole log, send the model a bounded working set.",
    commands=[
        serve.serve,
        replay.replay,
        chat.chat,
        sessions.sessions,
        search.search,
        memories.memories,
        state.state,
        transcripts.transcripts,
        workspace.workspace,
        embeddings.embeddings,
        evaluate.evaluate,
        index.index,
        keys.keys,
        migrate.migrate,
        backup.backup,
        backup.restore,
        doctor.doctor,
        config.config,
    ],
)
"""The root of all commands; tests call it through click's own runner."""


def main() -> Any:
    """The console script. Ends the process: 0 done, 1 the work failed, 2 wrong usage, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal's encoding lacks is shown escaped; it does not end the command.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        return commands.main(prog_name=PROGRAM)
    except KeyboardInterrupt:
        return QUIT
