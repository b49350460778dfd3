"""Warnings of a turn: what went through, and is probably not what the client meant."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.domain.session import SessionRef
from holdfast.limits import TURN_WARNINGS

_log = logging.getLogger("holdfast.turn")


class TurnWarning(msgspec.Struct, frozen=True):
    """One warning, as `session.warnings` of a response has it."""

    code: str
    """A word for programs, for example `unknown_field`."""
    message: str
    """What happened, and what to do about it."""
    param: str | None = None
    """The field or header of the request that it is about."""

    def to_wire(self) -> dict[str, Any]:
        """Return the warning as JSON data."""
        found = {"code": self.code, "message": self.message}
        return found if self.param is None else {**found, "param": self.param}


class TurnWarnings:
    """The warnings of one turn, each logged as it is added; at most `limits.TURN_WARNINGS` are kept.

    Args:
        ref: the session of the turn.
        warnings: those that are known from the beginning.
    """

    def __init__(self, ref: SessionRef, warnings: Iterable[TurnWarning] = ()) -> None:
        self._ref = ref
        self._kept: list[TurnWarning] = []
        for warning in warnings:
            self.add(warning)

    def add(self, warning: TurnWarning) -> None:
        """Keep a warning for the response and log it. The same warning again, or one over the limit, is dropped."""
        if warning in self._kept or len(self._kept) >= TURN_WARNINGS:
            return
        self._kept.append(warning)
        fields = {"session": self._ref.id, "user": self._ref.user_id, "code": warning.code}
        _log.warning("%s", warning.message, extra={"fields": fields})

    def to_wire(self) -> list[dict[str, Any]]:
        """Return the warnings in the order in which they were added."""
        return [warning.to_wire() for warning in self._kept]
