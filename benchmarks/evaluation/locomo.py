"""Parse datasets in the published formats of LoCoMo and REALTALK. Errors in the published file of LoCoMo are tolerated.

LoCoMo (Maharana et al., "Evaluating Very Long-Term Conversational Memory of LLM Agents", 2024): a sample is an object with `sample_id`,
`conversation` and `qa`.

- `conversation` contains `session_N`, a list of turns, and `session_N_date_time`. A turn has `speaker`, `dia_id`, `text`, and for a shared
  photo a `blip_caption`.
- `qa` is a list of questions. A question has `question`, `evidence`, which lists the `dia_id`s of the turns that answer it, and a `category`
  from 1 to 5.
- All other fields, such as summaries and observations, are ignored.

REALTALK (Lee et al., "REALTALK: A 21-Day Real-World Dataset for Long-Term Conversation", 2025) differs as follows: the sample itself contains
the sessions, `name` contains the speakers, and each turn has its text in `clean_text` and its time in `date_time`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from benchmarks.evaluation.dataset import Query, Sample, Turn
from holdfast.errors import InvalidMessage

CATEGORIES: Final = {"1": "multi-hop", "2": "temporal", "3": "open-domain", "4": "single-hop", "5": "adversarial"}
ADVERSARIAL: Final = CATEGORIES["5"]
_SESSION = re.compile(r"session_(\d+)")
_EVIDENCE = re.compile(r"D:?\s*(\d+)\s*:\s*(\d+)", re.IGNORECASE)
"""Matches one id of a turn. A text may contain several ids ("D8:6; D9:17"). Some ids have an extra colon ("D:11:26") or leading zeros."""
_DATES: Final = (
    *("%I:%M %p on %d %B, %Y", "%I:%M %p on %d %B %Y", "%d %B, %Y", "%d %B %Y"),
    *("%d.%m.%Y, %H:%M:%S", "%d.%m.%Y, %H:%M", "%d.%m.%Y", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d"),
)
_APART = 60_000
"""Milliseconds between the assigned times of two turns. LoCoMo has a time for each session, but not for each turn."""
MOST_EVIDENCE = 1_000


def is_locomo(data: Any) -> bool:
    """Return True if decoded JSON is a sample of LoCoMo or REALTALK."""
    return isinstance(data, Mapping) and (
        isinstance(data.get("conversation"), Mapping) or ("qa" in data and any(map(_SESSION.fullmatch, data)))
    )


def parse_sample(data: Mapping[str, Any], where: str, *, captions: bool = True) -> tuple[Sample, int, int]:
    """Convert decoded JSON to a sample.

    Args:
        data: The decoded JSON.
        where: Position of the data, for errors.
        captions: True to append the caption of a shared photo to the text of its turn.

    Returns:
        The sample, the number of questions that were left out because they have no known evidence, and the number of unknown turn ids.

    Raises:
        InvalidMessage: The data has neither format. The error names the position.
    """
    conversation = data.get("conversation", data)
    second = conversation.get("speaker_b") or _get_second_name(data.get("name"))
    numbers = sorted(int(found[1]) for key in conversation if (found := _SESSION.fullmatch(str(key))))
    turns: list[Turn] = []
    places: dict[tuple[int, int], int] = {}
    sessions: list[str] = []
    for number in numbers:
        session = conversation[f"session_{number}"]
        if not isinstance(session, list):
            raise InvalidMessage(f"{where}: session_{number} must be a list of turns")
        if not session:
            continue
        at = _parse_date(conversation.get(f"session_{number}_date_time"), f"{where}: session_{number}_date_time")
        for count, turn in enumerate(session):
            place = f"{where}: session_{number}[{count}]"
            made = _parse_turn(turn, len(sessions), at + count * _APART, second, place, captions=captions)
            for key in _parse_ids(made.id):
                places.setdefault(key, len(turns))
            turns.append(made)
        sessions.append(f"session_{number}")
    if not turns:
        raise InvalidMessage(f"{where}: the conversation has no turns")
    queries, left_out, unknown = _parse_queries(data.get("qa"), places, where)
    return Sample(str(data.get("sample_id") or where), tuple(sessions), tuple(turns), queries), left_out, unknown


def _get_second_name(name: Any) -> Any:
    """Return the second speaker in REALTALK's `name`, which is a list or `{"speaker_1", "speaker_2"}`. None if there is no second one."""
    if isinstance(name, Mapping):
        return name.get("speaker_2")
    return name[1] if isinstance(name, list) and len(name) > 1 else None


def _parse_turn(turn: Any, session: int, at: int, second: Any, where: str, *, captions: bool) -> Turn:
    text = turn.get("clean_text", turn.get("text")) if isinstance(turn, Mapping) else None
    if not isinstance(text, str):
        raise InvalidMessage(f'{where} is not a turn: {{"speaker", "dia_id", "text"}}')
    speaker = str(turn.get("speaker", ""))
    if turn.get("date_time") is not None:
        at = _parse_date(turn["date_time"], f"{where}.date_time")
    caption = turn.get("blip_caption")
    if captions and isinstance(caption, str) and caption.strip():
        text = f"{text}\n[shared a photo: {caption.strip()}]"
    role = "assistant" if speaker and speaker == second else "user"
    return Turn(str(turn.get("dia_id", "")), session, role, speaker or None, text, at)


def _parse_queries(given: Any, places: Mapping[tuple[int, int], int], where: str) -> tuple[tuple[Query, ...], int, int]:
    if not isinstance(given, list):
        raise InvalidMessage(f"{where}: qa must be a list of questions")
    queries = []
    left_out = unknown = 0
    for count, one in enumerate(given):
        if not isinstance(one, Mapping) or not isinstance(one.get("question"), str):
            raise InvalidMessage(f'{where}: qa[{count}] is not a question: {{"question", "evidence", "category"}}')
        named = one.get("evidence") or []
        keys = [key for text in (named if isinstance(named, list) else [named]) for key in _parse_ids(text)][
            :MOST_EVIDENCE
        ]
        evidence = tuple(dict.fromkeys(places[key] for key in keys if key in places))
        unknown += sum(key not in places for key in keys)
        if not evidence:
            left_out += 1
            continue
        category = str(one.get("category", "")).strip()
        queries.append(Query(one["question"], evidence, CATEGORIES.get(category, category or "none")))
    return tuple(queries), left_out, unknown


def _parse_ids(text: Any) -> Iterator[tuple[int, int]]:
    if isinstance(text, str):
        for session, turn in _EVIDENCE.findall(text):
            yield int(session), int(turn)


def _parse_date(text: Any, where: str) -> int:
    if text is None:
        return 0
    for form in _DATES:
        try:
            return int(datetime.strptime(str(text).strip(), form).replace(tzinfo=UTC).timestamp()) * 1000
        except ValueError:
            continue
    raise InvalidMessage(f"{where} is not a time like 1:56 pm on 8 May, 2023: {str(text)[:60]!r}")
