-- What a tenant keeps of names that were dropped with all they had: no version and no number of theirs was above this, so those of
-- who comes next, under whatever name, go on above it.
CREATE TABLE floors (
    tenant TEXT    NOT NULL PRIMARY KEY,
    number INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
