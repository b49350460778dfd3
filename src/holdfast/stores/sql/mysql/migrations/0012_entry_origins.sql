-- Which entries of a session are copies, in ranges up to the next `first`: `source` is the identity of the session in which they
-- were written first, `source_first` the place there. A session that shares nothing has no row.
CREATE TABLE entry_origins (
    session      BIGINT         NOT NULL,
    first        BIGINT         NOT NULL,
    source       VARBINARY(512) NOT NULL,
    source_first BIGINT         NOT NULL,
    PRIMARY KEY (session, first),
    KEY entry_origins_source (source, session)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
