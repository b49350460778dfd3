-- Which entries of a session are copies, in ranges up to the next `first`: `source` is the identity of the session in which they
-- were written first, `source_first` the place there. A session that shares nothing has no row.
CREATE TABLE entry_origins (
    session      INTEGER NOT NULL,
    first        INTEGER NOT NULL,
    source       TEXT    NOT NULL,
    source_first INTEGER NOT NULL,
    PRIMARY KEY (session, first)
) STRICT, WITHOUT ROWID;
CREATE INDEX entry_origins_source ON entry_origins (source, session);
