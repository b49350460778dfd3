"""A request that gets no further: by its key, its headers, its body's size or pace, or what the caller may do."""

from __future__ import annotations


class Refused(Exception):
    """A request that is answered before anybody has looked at what it says."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
