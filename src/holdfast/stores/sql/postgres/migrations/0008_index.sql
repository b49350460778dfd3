-- An index of what was said: terms, where they stand, and vectors; see `holdfast.recall.base`. No text.

-- Whose documents, and how many. One that is taken away loses its name first, and then what it has; `kind` is `gone` meanwhile.
CREATE TABLE index_spaces (
    number         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant         bytea NOT NULL,
    kind           bytea NOT NULL,
    name           bytea NOT NULL,
    talk_documents bigint NOT NULL,
    talk_length    bigint NOT NULL,
    tool_documents bigint NOT NULL,
    tool_length    bigint NOT NULL
);
CREATE UNIQUE INDEX index_spaces_name ON index_spaces (tenant, kind, name);

CREATE TABLE index_sources (
    number    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    space     bigint NOT NULL,
    id        bytea NOT NULL,
    identity  bytea NOT NULL,
    version   bigint NOT NULL,
    next_seq  bigint NOT NULL,
    talk      bigint NOT NULL,
    tool      bigint NOT NULL,
    epoch     bigint NOT NULL,
    complete  bigint NOT NULL,
    documents bigint NOT NULL
);
CREATE UNIQUE INDEX index_sources_id ON index_sources (space, id);
CREATE INDEX index_sources_incomplete ON index_sources (space, id) WHERE complete = 0;

-- `id` is made of the source's number, the channel and the place: neighbours have neighbouring ids.
-- `model` is that of its vector, or the tenant's nameless one while it has none; NULL where it is to have none.
-- `terms` are the keys of its terms, those that stand there more than once behind a bar again with how often.
CREATE TABLE index_documents (
    id      bigint PRIMARY KEY,
    space   bigint NOT NULL,
    channel bigint NOT NULL,
    source  bigint NOT NULL,
    seq     bigint NOT NULL,
    at      bigint NOT NULL,
    length  bigint NOT NULL,
    traits  bigint NOT NULL,
    model   bigint,
    role    bytea NOT NULL,
    agent   bytea,
    name    bytea,
    digest  bytea NOT NULL,
    terms   bytea NOT NULL
);
CREATE UNIQUE INDEX index_documents_seq ON index_documents (source, seq);
CREATE INDEX index_documents_at ON index_documents (space, channel, at, id);
CREATE INDEX index_documents_model ON index_documents (model, space, id) WHERE model IS NOT NULL;

-- In how many documents of a space and channel a term stands.
CREATE TABLE index_frequencies (
    space     bigint NOT NULL,
    channel   bigint NOT NULL,
    term      bytea NOT NULL,
    documents bigint NOT NULL,
    PRIMARY KEY (space, channel, term)
) WITH (fillfactor = 80);

-- The engine's posting lists: words that begin with channel and space, so that no list is longer than what one space has.
CREATE TABLE index_postings (
    id     bigint   PRIMARY KEY,
    tokens tsvector NOT NULL
);
CREATE INDEX index_postings_tokens ON index_postings USING gin (tokens) WITH (fastupdate = off);

CREATE TABLE index_models (
    number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant     bytea NOT NULL,
    name       bytea NOT NULL,
    dimensions bigint NOT NULL
);
CREATE UNIQUE INDEX index_models_name ON index_models (tenant, name);

-- By document; float32, little-endian. `mark` is what the digest of the document begins with, as a number.
CREATE TABLE index_vectors (
    id   bigint PRIMARY KEY,
    mark bigint NOT NULL,
    data bytea NOT NULL
);
CREATE INDEX index_vectors_mark ON index_vectors (mark);

-- What a tenant keeps beside, like how far a rebuild is.
CREATE TABLE index_notes (
    tenant bytea NOT NULL,
    name   bytea NOT NULL,
    data   bytea NOT NULL,
    PRIMARY KEY (tenant, name)
);
