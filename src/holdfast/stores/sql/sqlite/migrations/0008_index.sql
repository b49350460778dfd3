-- An index of what was said: terms, where they stand, and vectors; see `holdfast.recall.base`. No text.

-- Whose documents, and how many. One that is taken away loses its name first, and then what it has; `kind` is `gone` meanwhile.
CREATE TABLE index_spaces (
    number         INTEGER PRIMARY KEY,
    tenant         TEXT    NOT NULL,
    kind           TEXT    NOT NULL,
    name           TEXT    NOT NULL,
    talk_documents INTEGER NOT NULL,
    talk_length    INTEGER NOT NULL,
    tool_documents INTEGER NOT NULL,
    tool_length    INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX index_spaces_name ON index_spaces (tenant, kind, name);

CREATE TABLE index_sources (
    number    INTEGER PRIMARY KEY,
    space     INTEGER NOT NULL,
    id        TEXT    NOT NULL,
    identity  TEXT    NOT NULL,
    version   INTEGER NOT NULL,
    next_seq  INTEGER NOT NULL,
    talk      INTEGER NOT NULL,
    tool      INTEGER NOT NULL,
    epoch     INTEGER NOT NULL,
    complete  INTEGER NOT NULL,
    documents INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX index_sources_id ON index_sources (space, id);
CREATE INDEX index_sources_incomplete ON index_sources (space, id) WHERE complete = 0;

-- `id` is made of the source's number, the channel and the place: neighbours have neighbouring ids.
-- `model` is that of its vector, or the tenant's nameless one while it has none; NULL where it is to have none.
-- `terms` are the keys of its terms, those that stand there more than once behind a bar again with how often.
CREATE TABLE index_documents (
    id      INTEGER PRIMARY KEY,
    space   INTEGER NOT NULL,
    channel INTEGER NOT NULL,
    source  INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    length  INTEGER NOT NULL,
    traits  INTEGER NOT NULL,
    model   INTEGER,
    role    TEXT    NOT NULL,
    agent   TEXT,
    name    TEXT,
    digest  BLOB    NOT NULL,
    terms   TEXT    NOT NULL
) STRICT;
CREATE UNIQUE INDEX index_documents_seq ON index_documents (source, seq);
CREATE INDEX index_documents_at ON index_documents (space, channel, at);
CREATE INDEX index_documents_model ON index_documents (model, space) WHERE model IS NOT NULL;

-- In how many documents of a space and channel a term stands.
CREATE TABLE index_frequencies (
    space     INTEGER NOT NULL,
    channel   INTEGER NOT NULL,
    term      TEXT    NOT NULL,
    documents INTEGER NOT NULL,
    PRIMARY KEY (space, channel, term)
) STRICT, WITHOUT ROWID;

-- The engine's posting lists: words that begin with channel and space, so that no list is longer than what one space has.
CREATE VIRTUAL TABLE index_postings USING fts5 (
    tokens, content = '', columnsize = 0, detail = none, tokenize = "ascii tokenchars '_'"
);
INSERT INTO index_postings (index_postings, rank) VALUES ('secure-delete', 1);

-- `dimensions` below 0: vectors are kept as float16.
CREATE TABLE index_models (
    number     INTEGER PRIMARY KEY,
    tenant     TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    dimensions INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX index_models_name ON index_models (tenant, name);

-- By document; float32, little-endian. `mark` is what the digest of the document begins with, as a number.
CREATE TABLE index_vectors (
    id   INTEGER PRIMARY KEY,
    mark INTEGER NOT NULL,
    data BLOB    NOT NULL
) STRICT;
CREATE INDEX index_vectors_mark ON index_vectors (mark);

-- What a tenant keeps beside, like how far a rebuild is.
CREATE TABLE index_notes (
    tenant TEXT NOT NULL,
    name   TEXT NOT NULL,
    data   BLOB NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;
