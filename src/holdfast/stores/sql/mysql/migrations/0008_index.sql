-- An index of what was said: terms, where they stand, and vectors; see `holdfast.recall.base`. No text.

-- Whose documents, and how many. One that is taken away loses its name first, and then what it has; `kind` is `gone` meanwhile.
CREATE TABLE index_spaces (
    number         BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tenant         VARBINARY(512) NOT NULL,
    kind           VARBINARY(16) NOT NULL,
    name           VARBINARY(512) NOT NULL,
    talk_documents BIGINT NOT NULL,
    talk_length    BIGINT NOT NULL,
    tool_documents BIGINT NOT NULL,
    tool_length    BIGINT NOT NULL,
    UNIQUE KEY index_spaces_name (tenant, kind, name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE TABLE index_sources (
    number    BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    space     BIGINT NOT NULL,
    id        VARBINARY(512) NOT NULL,
    identity  VARBINARY(512) NOT NULL,
    version   BIGINT NOT NULL,
    next_seq  BIGINT NOT NULL,
    talk      BIGINT NOT NULL,
    tool      BIGINT NOT NULL,
    epoch     BIGINT NOT NULL,
    complete  BIGINT NOT NULL,
    documents BIGINT NOT NULL,
    UNIQUE KEY index_sources_id (space, id),
    KEY index_sources_incomplete (complete, space, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- `id` is made of the source's number, the channel and the place: neighbours have neighbouring ids.
-- `model` is that of its vector, or the tenant's nameless one while it has none; NULL where it is to have none.
-- `terms` are the keys of its terms, those that stand there more than once behind a bar again with how often.
CREATE TABLE index_documents (
    id      BIGINT NOT NULL PRIMARY KEY,
    space   BIGINT NOT NULL,
    channel BIGINT NOT NULL,
    source  BIGINT NOT NULL,
    seq     BIGINT NOT NULL,
    at      BIGINT NOT NULL,
    length  BIGINT NOT NULL,
    traits  BIGINT NOT NULL,
    model   BIGINT,
    role    VARBINARY(512) NOT NULL,
    agent   VARBINARY(512),
    name    VARBINARY(512),
    digest  VARBINARY(16) NOT NULL,
    terms   MEDIUMBLOB NOT NULL,
    UNIQUE KEY index_documents_seq (source, seq),
    KEY index_documents_at (space, channel, at, id),
    KEY index_documents_model (model, space, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- In how many documents of a space and channel a term stands.
CREATE TABLE index_frequencies (
    space     BIGINT NOT NULL,
    channel   BIGINT NOT NULL,
    term      VARBINARY(64) NOT NULL,
    documents BIGINT NOT NULL,
    PRIMARY KEY (space, channel, term)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Posting lists: words begin with channel and space, so that no list is longer than what one space has. Not a FULLTEXT key:
-- that one is no part of a transaction's view, so a lookup beside a write would miss what is replaced, and it keeps the words of
-- what was erased until the table is rebuilt.
CREATE TABLE index_postings (
    word VARBINARY(64) NOT NULL,
    id   BIGINT NOT NULL,
    PRIMARY KEY (word, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE TABLE index_models (
    number     BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tenant     VARBINARY(512) NOT NULL,
    name       VARBINARY(512) NOT NULL,
    dimensions BIGINT NOT NULL,
    UNIQUE KEY index_models_name (tenant, name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- By document; float32, little-endian. `mark` is what the digest of the document begins with, as a number.
CREATE TABLE index_vectors (
    id   BIGINT NOT NULL PRIMARY KEY,
    mark BIGINT NOT NULL,
    data MEDIUMBLOB NOT NULL,
    KEY index_vectors_mark (mark)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- What a tenant keeps beside, like how far a rebuild is.
CREATE TABLE index_notes (
    tenant VARBINARY(512) NOT NULL,
    name   VARBINARY(512) NOT NULL,
    data   MEDIUMBLOB NOT NULL,
    PRIMARY KEY (tenant, name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
