-- Which entries of a session are copies, in ranges up to the next `first`: `source` is the identity of the session in which they
-- were written first, `source_first` the place there. A session that shares nothing has no row.
CREATE TABLE entry_origins (
    session      bigint NOT NULL,
    first        bigint NOT NULL,
    source       bytea  NOT NULL,
    source_first bigint NOT NULL,
    PRIMARY KEY (session, first)
);
CREATE INDEX entry_origins_source ON entry_origins (source, session);
