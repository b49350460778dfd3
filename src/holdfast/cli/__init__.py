"""The command line: `holdfast serve | replay | chat | sessions | explain | state | transcripts | keys | migrate | backup | doctor | config | …`.

What all commands share:
frame      the outermost command: errors as one line, exit codes, colour
terminal   what reaches a terminal: cleaned text, JSON, tables, progress bars
stores     which store a command works on, and which session is meant

A command is in the file of its subject:
sessions   with all that one session can be asked for; transfer has `export`, `import` and `verify`
serve      `serve`, `config`          backup     `backup`, `restore`, `migrate`          index     `index`, `embeddings`
explain    `explain`, `facts`         doctor     checkup: what it looks at

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
    doctor,
    evaluate,
    explain,
    index,
    keys,
    memories,
    replay,
    search,
    serve,
    sessions,
    state,
    transcripts,
    workspace,
)
from holdfast.cli.errors import QUIT, Frame

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
        explain.explain,
        search.search,
        memories.memories,
        state.state,
        explain.facts,
        transcripts.transcripts,
        workspace.workspace,
        index.embeddings,
        evaluate.evaluate,
        index.index,
        keys.keys,
        backup.migrate,
        backup.backup,
        backup.restore,
        doctor.doctor,
        serve.config,
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
