"""LiteLLM's proxy as a peer of the gateway: one worker, no database, no keys."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.peer_environments import find_program, format_missing, read_version
from benchmarks.timing import report

SYSTEM = "litellm"
START_SECONDS = 120.0


def describe_version() -> str:
    """Return the name and version of the proxy."""
    return f"LiteLLM's proxy {read_version(SYSTEM, 'litellm')}"


@asynccontextmanager
async def start_proxy(folder: Path, upstream: str) -> AsyncIterator[str | None]:
    """Start the proxy in front of an upstream; yield its URL, or None if it is not installed."""
    program = find_program(SYSTEM, "litellm")
    if program is None:
        report(format_missing(SYSTEM))
        yield None
        return
    file = folder / "gateway-litellm.yaml"
    file.write_text(_format_configuration(upstream), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # The price list is read from the package, not from the network. Otherwise the environment is the user's.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "LITELLM_"))}
    environment["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    environment.pop("PYTHONPATH", None)
    arguments = ("--config", str(file), "--host", "127.0.0.1", "--port", str(port))
    with (folder / "gateway-litellm.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            str(program), *arguments, stdout=log, stderr=log, env=environment, cwd=folder
        )
        try:
            await _wait_for_port(port, process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            await process.wait()


def _format_configuration(upstream: str) -> str:
    model = f"{{model: openai/gpt-4o, api_base: '{upstream}/v1', api_key: unused}}"
    return (
        f"model_list: [{{model_name: default, litellm_params: {model}}}]\n"
        "general_settings: {dangerously_permit_weak_or_unset_master_key: true}\n"
    )


async def _wait_for_port(port: int, process: asyncio.subprocess.Process) -> None:
    """Wait until the proxy accepts connections, which it does when it has loaded its configuration."""
    async with asyncio.timeout(START_SECONDS):
        while process.returncode is None:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.2)
            else:
                writer.close()
                return
    raise RuntimeError("LiteLLM's proxy stopped while it was starting; its log is gateway-litellm.log")
