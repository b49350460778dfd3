"""Nearest-vector search in SQLite for large spaces.

A scan compares every vector. For 100,000 vectors of 1.5 KB it takes a tenth of a second. Here, sketches (short codes of the
vectors, kept in memory) select candidates, and only these are compared exactly.

The sketches of a space are built in the reader thread during the space's first searches, which still scan. Afterwards a log of
changed vectors keeps the sketches up to date. Triggers write the log, so it contains the changes of all processes. The log is a
bounded list of ids, and not part of the schema: if it is dropped, the sketches are built again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import MissingExtra
from holdfast.stores.logic.index_rows import NO_FILTER
from holdfast.stores.logic.rows import ENDLESS, encode_array
from holdfast.stores.logic.steps import Row

if TYPE_CHECKING:
    from holdfast.recall.arrays import Sketches

LARGE: Final = 20_000
"""Minimum number of vectors in a space for a search with sketches. With fewer vectors, a scan is faster."""
CANDIDATES: Final = 3_000
"""Number of candidates that are compared exactly."""
SKETCHES: Final = 1_000_000
"""Maximum number of sketches in memory, over all spaces: about 104 MB for vectors of 384 numbers."""
LOG_CHANGES: Final = 20_000
"""Number of changes that the log keeps. A reader that has missed more changes than that builds its sketches again."""
_READ: Final = 5_000
"""Number of vectors that one search adds to the sketches, which takes about 0.2 s."""
LOG: Final = f"""
CREATE TABLE IF NOT EXISTS index_vector_changes (number INTEGER PRIMARY KEY AUTOINCREMENT, id INTEGER NOT NULL) STRICT;
CREATE TRIGGER IF NOT EXISTS index_vectors_inserted AFTER INSERT ON index_vectors BEGIN
    INSERT INTO index_vector_changes (id) VALUES (NEW.id);
END;
CREATE TRIGGER IF NOT EXISTS index_vectors_updated AFTER UPDATE ON index_vectors BEGIN
    INSERT INTO index_vector_changes (id) VALUES (NEW.id);
END;
CREATE TRIGGER IF NOT EXISTS index_vectors_deleted AFTER DELETE ON index_vectors BEGIN
    INSERT INTO index_vector_changes (id) VALUES (OLD.id);
END;
CREATE TRIGGER IF NOT EXISTS index_vector_changes_bounded AFTER INSERT ON index_vector_changes BEGIN
    DELETE FROM index_vector_changes WHERE number <= NEW.number - {LOG_CHANGES};
END;
"""  # noqa: S608 - a number
_MADE: Final = (
    "SELECT count(*) FROM sqlite_schema WHERE name IN ('index_vector_changes', 'index_vector_changes_bounded')"
)
_COUNT: Final = "SELECT count(*) FROM index_documents INDEXED BY index_documents_model WHERE model = ?1 AND space = ?2"
_LAST: Final = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'index_vector_changes'"
_CHANGES: Final = "SELECT DISTINCT id FROM index_vector_changes WHERE number > ?1"
_OF_SPACE: Final = """
SELECT d.id, v.data FROM index_documents AS d INDEXED BY index_documents_model CROSS JOIN index_vectors AS v ON v.id = d.id
WHERE d.model = ?1 AND d.space = ?2 AND d.id > ?3 ORDER BY d.id LIMIT ?4"""
_OF_IDS: Final = """
SELECT d.id, v.data FROM json_each(?3) AS wanted CROSS JOIN index_documents AS d ON d.id = wanted.value
     CROSS JOIN index_vectors AS v ON v.id = d.id
WHERE d.model = ?1 AND d.space = ?2"""
_COMPARE: Final = """
SELECT v.id, 1 - vec1_cos_distance(v.data, ?2) AS near
FROM json_each(?1) AS wanted CROSS JOIN index_vectors AS v ON v.id = wanted.value
ORDER BY near DESC, v.id DESC LIMIT ?3"""


class _SpaceSketches:
    """The sketches of a space, and the progress of building them.

    Attributes:
        sketches: the sketches of the space's vectors.
        last: number of the newest logged change that the sketches include.
        reached: the highest document id whose vector has been read.
        complete: True if the vectors of all documents have been read.
    """

    def __init__(self, sketches: Sketches, last: int) -> None:
        self.sketches = sketches
        self.last = last
        self.reached = -1
        self.complete = False


class NearestSearch:
    """Finds the nearest vectors of an index, on one connection and in the caller's transaction.

    Args:
        raw: the apsw connection.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._spaces: OrderedDict[tuple[int, int], _SpaceSketches] = OrderedDict()
        self._made = False

    def find(self, params: Row) -> list[Any] | None:
        """Return the nearest vectors, as rows of the statement `index_nearest` for these parameters.

        Return None if the caller must run that statement, which scans all vectors. A search with filters always scans, because few of the
        nearest vectors may pass the filters.
        """
        model, space, channel, *filters, vector, limit = params
        if tuple(filters) != NO_FILTER or channel or limit * 4 > CANDIDATES or not self.is_logged():
            return None
        if not LARGE <= self._ask(_COUNT, model, space)[0][0] <= SKETCHES:
            self._spaces.pop((model, space), None)
            return None
        try:
            known = self._load_sketches(model, space, len(vector) // 4)
        except MissingExtra:
            return None
        if not known.complete:
            return None
        ids = known.sketches.find_nearest(vector, CANDIDATES)
        return self._ask(_COMPARE, encode_array(sorted(ids)), vector, limit)

    def _load_sketches(self, model: int, space: int, dimension: int) -> _SpaceSketches:
        """Return the sketches of a space, updated from the log. If they are incomplete, first add up to `_READ` vectors to them."""
        from holdfast.recall.arrays import Sketches

        last = self._ask(_LAST)[0][0]
        known = self._spaces.pop((model, space), None)
        if known is None or not 0 <= last - known.last < LOG_CHANGES:
            known = _SpaceSketches(Sketches(dimension), last)
        elif known.last < last:
            changed = [row[0] for row in self._ask(_CHANGES, known.last) if row[0] <= known.reached]
            known.sketches.drop(changed)
            known.sketches.put(*_join_vectors(self._ask(_OF_IDS, model, space, encode_array(changed))))
            known.last = last
        if not known.complete:
            rows = self._ask(_OF_SPACE, model, space, known.reached, _READ)
            known.sketches.put(*_join_vectors(rows))
            known.complete = len(rows) < _READ
            # Documents that are added later arrive through the log.
            known.reached = ENDLESS if known.complete else rows[-1][0]
        self._spaces[model, space] = known
        while sum(len(one.sketches) for one in self._spaces.values()) > SKETCHES and len(self._spaces) > 1:
            self._spaces.popitem(last=False)
        return known

    def is_logged(self) -> bool:
        """Return True if changes of vectors are logged. Logging begins when a writer has created the log."""
        self._made = self._made or self._ask(_MADE)[0][0] == 2
        return self._made

    def _ask(self, sql: str, *params: Any) -> list[Any]:
        rows: list[Any] = self._raw.execute(sql, params).fetchall()
        return rows


def _join_vectors(rows: Sequence[Row]) -> tuple[list[int], bytes]:
    return [row[0] for row in rows], b"".join([row[1] for row in rows])
