"""Drivers that load an HTTP server: wrk if it is installed, otherwise coroutines."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from benchmarks.timing import Samples, clock

PATH = "/v1/chat/completions"
Drive = Callable[[str, int, range, int, float], Awaitable["Report"]]
"""Sends requests to a URL; the arguments after it are session length, session numbers, clients and seconds."""

SCRIPT = """
local length, first, count, at
function init(arguments)
  length, first, count, at = arguments[1], tonumber(arguments[2]), tonumber(arguments[3]), 0
  wrk.method, wrk.headers["content-type"] = "POST", "application/json"
end
function request()
  at = at + 1
  local number = first + at % count
  local body = '{"model":"default","user":"bench","session_id":"n' .. length .. "-" .. number
    .. '","messages":[{"role":"user","content":"Question ' .. first .. "." .. at .. ': where is my order now?"}]}'
  return wrk.format(nil, nil, nil, body)
end
function done(summary, latency)
  local errors, failed = summary.errors, 0
  for _, kind in ipairs({"connect", "read", "write", "status", "timeout"}) do failed = failed + errors[kind] end
  io.write(string.format('{"requests":%d,"seconds":%f,"p50":%f,"p99":%f,"errors":%d}\\n', summary.requests,
    summary.duration / 1e6, latency:percentile(50) / 1e6, latency:percentile(99) / 1e6, failed))
end
"""


class Report(NamedTuple):
    """Result of one run of a driver; times in seconds."""

    requests: int
    seconds: float
    p50: float
    p99: float
    errors: int


def choose_driver(folder: Path) -> tuple[Drive, str]:
    """Return the best driver available, and its name."""
    if shutil.which("wrk") is None:
        return _drive_with_coroutines, "coroutines (wrk is not installed)"
    script = folder / "drive.lua"
    script.write_text(SCRIPT, encoding="utf-8")

    async def drive(url: str, length: int, numbers: range, clients: int, seconds: float) -> Report:
        options = ["-t1", f"-c{clients}", f"-d{max(1, round(seconds))}s", "-s", str(script), url + PATH]
        arguments = ["--", str(length), str(numbers.start), str(len(numbers))]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec("wrk", *options, *arguments, stdout=pipe)
        out, _ = await process.communicate()
        return Report(**json.loads(out.decode().splitlines()[-1]))

    return drive, "wrk"


async def _drive_with_coroutines(url: str, length: int, numbers: range, clients: int, seconds: float) -> Report:
    """Drive a URL with coroutines, which are much slower than wrk."""
    times, errors, end = list[float](), 0, clock() + seconds
    started = clock()

    async def client(number: int) -> None:
        nonlocal errors
        reader, writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)
        at = number
        while (begun := clock()) < end:
            at += clients
            errors += not await _send_request(reader, writer, _make_body(length, numbers[at % len(numbers)], at))
            times.append(clock() - begun)
        writer.close()

    await asyncio.gather(*map(client, range(clients)))
    samples = Samples(times)
    return Report(len(times), clock() - started, samples.median, samples.quantile(0.99), errors)


def _make_body(length: int, number: int, at: int) -> bytes:
    message = {"role": "user", "content": f"Question {number}.{at}: where is my order now?"}
    body = {"model": "default", "user": "bench", "session_id": f"n{length}-{number}", "messages": [message]}
    return json.dumps(body).encode()


async def _send_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> bool:
    """Send one request; return True if the status is 200."""
    head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    lengths = [line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    if not lengths:  # without a length, the rest of the body would be read as the next response
        raise RuntimeError(f"The response has no content-length, which this driver needs: {answer.decode()}")
    await reader.readexactly(int(lengths[0].partition(b":")[2]))
    return b" 200 " in answer.split(b"\r\n", 1)[0]
