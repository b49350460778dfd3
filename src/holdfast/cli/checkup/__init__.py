"""What `holdfast doctor` looks at: each check gives findings, and a finding that is not well says what to do.

machine   Python, libraries, tokenizer, open files, clock, sandbox     store   the database and what it lies on
installation  other distributions that provide the package `holdfast`
upstream  the models that are configured                               config  the file, and where the server listens
index     what search looks things up in                               embedder  what makes its vectors
workspaces  git, where agents have workspaces
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.cli.checkup import config, embedder, index, installation, machine, store, upstream, workspaces
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.cli.checkup.finding import Finding


def findings(flags: Mapping[str, Any], env: Mapping[str, str]) -> Iterator[Finding]:
    """Everything that can be checked, in order; without a configuration that holds, what needs none.

    Args:
        flags: `store` and `config`, as for the other commands.
        env: the environment.
    """
    from holdfast.config import load_settings
    from holdfast.config.build import build_python_settings

    yield machine.python()
    yield installation.check_distribution()
    yield machine.libraries()
    yield from config.file(flags.get("config"), env)
    yield machine.tokenizer()
    yield machine.open_files()
    yield machine.clock()
    try:
        settings = load_settings(flags, env)
    except ConfigError as error:
        yield config.unusable(error)
        return
    yield config.host(settings)
    yield config.limits(settings)
    yield machine.sandbox(build_python_settings(settings.config))
    about_store = list(store.findings(settings.store))
    yield from about_store
    if not any(one.check == "store" and one.level == "fail" for one in about_store):
        yield from index.findings(settings.config, settings.store)
    yield from embedder.findings(settings.config)
    yield from workspaces.findings(settings.config)
    yield from upstream.findings(settings.config)
