"""All limits with their values: how much of anything is accepted before it is refused. One table, used everywhere.

A server's owner can set the values in `Limits`, with keys of `gateway` that begin with `max_`. All others are fixed,
because a database's schema, Python's stack or logs that others read depend on them. docs/limits.md shows the same
table, and a test compares the two.
"""

from __future__ import annotations

from typing import Final

import msgspec

MIB: Final = 1 << 20

# -- fixed, enforced by every store -------------------------------------------

ID_BYTES: Final = 512
"""Longest identifier in UTF-8: tenant, user, session, agent, model, idempotency key, view key. None may be empty."""
MESSAGE_BYTES: Final = 32 * MIB
"""Largest stored message, without detached media; also the largest medium."""
MEDIA_INLINE: Final = 1024
"""Characters of a text from which data in it are stored apart from their message; shorter ones stay in place."""
MEDIA_CACHE_BYTES: Final = 64 * MIB
"""Media that a process caches, so that a turn does not read the same ones again."""
CACHE_BYTES: Final = 256 * MIB
"""Estimated size of everything that a process caches of sessions between turns, unless `storage.sessions.cache_bytes` is set."""
METADATA_BYTES: Final = 1 * MIB
"""Metadata of a session, or of one message, as JSON."""
PARTICIPANTS: Final = 100
"""Users who take part in a session, in addition to its owner."""
STATE_BYTES: Final = 1 * MIB
"""State of one scope (a session's own, a user's, a tenant's) as JSON, after a change."""
STATE_KEYS: Final = 10_000
"""Keys of the state of one scope."""
STATE_KEY_BYTES: Final = 256
"""Longest key of the state in UTF-8, without the prefix of its scope."""
STATE_VALUE_BYTES: Final = 256 * 1024
"""Largest value of a key of the state as JSON."""
STATE_DEPTH: Final = 64
"""Nesting depth of objects and lists in such a value."""
STATE_CHANGES: Final = 1000
"""Operations on the state in one request (`changes`)."""
STATE_REMEMBERED: Final = 1000
"""Scopes (users of a tenant, and the tenant itself) whose shared state a process caches."""
STATE_REMEMBERED_BYTES: Final = 4 * MIB
"""All of that together, as JSON."""
SYSTEM_BYTES: Final = 4 * MIB
"""A session's system messages as JSON."""
PAGE: Final = 1000
"""Most items of a page; also most entries rated at once."""
CALL_BUILD_BYTES: Final = 16 * 1024
"""Record of how a model call's prompt was built."""
COMPACTION_BYTES: Final = 256 * 1024
"""Text of a summary or digest in UTF-8."""
COMPACTION_REPORT_BYTES: Final = 64 * 1024
"""Report on a summary as JSON."""
COMPACTION_ERROR_BYTES: Final = 2 * 1024
"""Reason why a summary failed, in UTF-8."""
CARRIED_TOKENS_LEAST: Final = 64
"""Fewest tokens of another session that can be requested for carry-over."""
CARRIED_TOKENS: Final = 32_000
"""Most tokens that can be requested for carry-over."""
CARRIED_PREFIX_CHARS: Final = 2000
"""Text before the content that is carried over."""
CARRIED_READ_TOKENS: Final = 100_000
"""Tokens of the other session's newest messages that are read for a summary."""
CARRIED_READ_ENTRIES: Final = 5000
"""Number of these messages."""
CARRIED_SECONDS: Final = 60.0
"""Longest time for that summary, before a digest replaces it."""
VIEWS_KEPT: Final = 16
"""Saved views of a session that remain after a write that only saves a view; those saved longest ago are deleted first."""
COMPACTIONS_KEPT: Final = 64
"""Stored compactions of a session that are no longer live: superseded, dropped, dead. The oldest are deleted first."""
FAILURES_KEPT: Final = 16
"""Stored failed attempts at a compaction of a session."""
TENANTS: Final = 100
"""Tenants other than its own whose caches a server keeps; a tenant in use is never closed."""
HOOKS: Final = 64
"""Hooks that are notified of the end of a session."""
SERVED: Final = 1000
"""Sessions of which hooks are notified when the process ends: those written to last."""
CONFIG_BYTES: Final = 1 * MIB
"""A configuration file."""
CONFIG_DEPTH: Final = 32
"""Nesting depth of mappings and lists in it."""
CONFIG_VALUES: Final = 50_000
"""Values in it after aliases are resolved: a few lines of aliases can expand to billions."""
DOTENV_BYTES: Final = 64 * 1024
"""A `.env` file."""
RECORDING_LINE_BYTES: Final = 64 * MIB
"""Longest line of a recording that `replay` plays, and of a transcript."""
HISTORY_TURNS: Final = 10_000
"""Largest `max_history_turns`, because each working set is built from that many messages."""
ENDING_ERROR_CHARS: Final = 500
"""Recorded reason why a hook failed; longer texts are cut."""
WEBHOOK_BYTES: Final = 16 * MIB
"""Messages in one call of a webhook as JSON: the newest that fit are sent."""
MARKS: Final = 1000
"""Digests that are looked up in the logs of a user at once."""
SIGHTINGS: Final = 64
"""Positions that are returned for one of them, of the newest sessions first."""
COMPARED_SESSIONS: Final = 8
"""Sessions whose tool messages, state and artifacts are compared for an unidentified user; more count as different."""
COMPARED_MESSAGES: Final = 1000
"""Messages, or artifacts, of each of them; a longer log counts as different."""
REMATCHES: Final = 8
"""Times that a request without `session_id` is matched again because another one was faster; then it gets a new session."""
RETRIES: Final = 10_000
"""Requests of official SDKs that a process remembers, to recognise them when they are sent again; the oldest are dropped."""
RETRY_MILLISECONDS: Final = 600_000
"""How long they are remembered."""
INTERRUPTED_BEHIND: Final = 1000
"""Messages after a reply that can still be interrupted: they are written again."""
TURNS_WAITING: Final = 256
"""Turns of a session that wait for the running one, in a process; more are refused."""
LEASE_MILLISECONDS: Final = 86_400_000
"""Longest duration of a lease."""
FALLBACKS: Final = 16
"""Fallbacks of a model."""
MODEL_EVENT_BYTES: Final = 16 * MIB
"""Longest event of a model's stream, or whole answer without streaming: a generated image in base64 fits."""
MODEL_STREAM_BYTES: Final = 128 * MIB
"""Everything that an upstream sends for one reply, including the JSON around each piece."""
MODEL_REPLY_BYTES: Final = 24 * MIB
"""Content of a reply as JSON: text, reasoning and arguments of calls. A stored message may have `MESSAGE_BYTES`."""
MODEL_REPLY_PARTS: Final = 4_000
"""Choices, tool calls and blocks of one reply together."""
MODEL_TRAILING_CHUNKS: Final = 1_000
"""Pieces of a reply before its first word, and after its end."""
UPSTREAMS: Final = 1000
"""Upstreams whose health a process records."""
MODELS_LEARNED: Final = 1000
"""Models whose calibration a process caches; the least recently used is evicted, and read again if needed."""
COOL_DOWN_FIRST_SECONDS: Final = 5.0
"""How long an upstream that failed is skipped if it has a fallback; doubled with each further failure in a row."""
COOL_DOWN_SECONDS: Final = 300.0
"""Longest such pause."""
COOL_DOWN_ASKED_SECONDS: Final = 3600.0
"""Longest such pause that an upstream may ask for."""
TRANSFERS: Final = 10
"""Transfers of a conversation between agents in a turn; after that, the current agent answers."""
AGENT_DEPTH: Final = 5
"""Nesting depth of agents that call each other like tools; the last one must answer itself."""
SPEAKER_BEHIND: Final = 1000
"""Messages after an agent's last one, in which the next answering agent is looked up; beyond that, the session's own agent answers."""
TOOL_THREADS: Final = 64
"""Plain functions that run as tools at once in a process; others wait, and their time limit runs."""
TOOL_GRACE_SECONDS: Final = 5.0
"""Seconds that a tool gets to end after its caller has disconnected."""
PYTHON_CODE_BYTES: Final = 1 * MIB
"""Code of one call of the tool `python`."""
PYTHON_CALLS_WAITING: Final = 16
"""Calls of it in a session that wait for the running one; further ones get an error."""
PYTHON_START_SECONDS: Final = 30.0
"""Longest time for its process to start, and for restoring files of earlier calls."""
PYTHON_KEEP_SECONDS: Final = 60.0
"""Longest time for storing the files of a call as artifacts."""
PYTHON_RESTORED: Final = 100
"""Files of earlier calls, the newest, that are restored in the work folder of a new process."""
PYTHON_RESTORED_BYTES: Final = 64 * MIB
"""Total size of these files."""
PYTHON_LOOKED_BACK: Final = 1000
"""Newest messages of a session that are searched for earlier calls when a process starts."""
INSTRUCTED_ARTIFACT_BYTES: Final = 64 * 1024
"""Largest artifact whose text an instruction may include."""
LOADED_IMAGE_BYTES: Final = 4 * MIB
"""Largest image that a model sees when it loads an artifact."""
LISTED_ARTIFACTS: Final = 200
"""Artifacts in one list for a model."""
ARTIFACTS_NAMED: Final = 20
"""Names of artifacts in a reply that are looked up."""
ARTIFACTS_TOLD: Final = 200
"""Artifacts that a reply reports, including those that its turn saved."""
MEMORY_BYTES: Final = 32 * 1024
"""A memory as JSON."""
MEMORY_TAGS: Final = 32
"""Tags of a memory."""
MEMORY_TAG_CHARS: Final = 64
"""Characters of a tag."""
MEMORY_SOURCES: Final = 50
"""Newest sources of a memory: sessions, each with the entries in it."""
MEMORY_CHARS: Final = 8_000
"""Characters of the content of a memory."""
RECALLED_MEMORIES: Final = 100
"""Memories that one recall returns."""
MEMORIES_AT_HAND: Final = 20_000
"""Memories that a process caches: their terms if it has no index, and promoted ones."""
SIGNALS_WAITING: Final = 10_000
"""Recalls that wait to be stored, in a process; the oldest are dropped."""
LOOKED_BACK: Final = 200
"""Newest entries of a session that are searched for the words of a new memory."""
LOOKED_OVER: Final = 2_000
"""Entries before these that are searched for content from elsewhere, if only the model used a memory's words."""
MEMORIES: Final = 10_000
"""Memories of an owner, whatever their status."""
MEMORIES_AT_ONCE: Final = 200
"""Memories that one write puts or forgets."""
SIGNALS_KEPT: Final = 200
"""Newest recalls of a memory that are stored."""
DIARY_KEPT: Final = 400
"""Newest sweeps over an owner's memories that are stored in the diary."""
DIARY_PAGE: Final = 100
"""Sweeps of a diary that are returned at once."""
MERGE_MEMORIES: Final = 100
"""Promoted memories, the best ones, that a model is asked about at once."""
MERGE_CHARS: Final = 24_000
"""Characters of these memories."""
MERGES: Final = 20
"""Merges that one answer may propose; the rest is ignored."""
MERGES_ASKED: Final = 20
"""Owners about whose memories a model is asked in one pass of scheduled sweeps."""
MERGE_SECONDS: Final = 60.0
"""Time for the model's answer."""
MERGE_PAUSE_SECONDS: Final = 600
"""Pause before a model that failed to answer is asked again."""
INDEX_SECONDS: Final = 10.0
"""Time that an indexer has to finish when a Holdfast closes."""
INDEX_DELAY_SECONDS: Final = 5.0
"""How long messages may wait before they are indexed, so that turns come first and several messages are written together."""
INDEX_WAIT_SECONDS: Final = 2.0
"""How long an erasure or deletion waits for the index, from which it is otherwise removed later."""
INDEX_FRESH_SECONDS: Final = 1.0
"""How long a search waits until its user's newest messages are indexed."""
INDEX_AT_ONCE: Final = 2
"""Sessions of a tenant that are indexed at once in a process; only the names of others are queued."""
INDEX_WAITING: Final = 100_000
"""Queued sessions of a process; more are left to the next backfill."""
INDEX_PAGE: Final = 64
"""Entries of a session that are read and indexed at a time."""
INDEX_TERMS: Final = 20_000
"""Terms in one write to the index."""
INDEX_INLINE_CHARS: Final = 4_000
"""Longest text that is analysed on the event loop; a longer one is analysed in a thread."""
INDEX_PAUSE_SECONDS: Final = 60.0
"""Longest pause before failed indexing or embedding is tried again."""
INDEX_FIRST_WALK_SECONDS: Final = 1.0
"""Time after the start of a process until it searches for sessions that were not indexed while no process did so."""
INDEX_WALK_SECONDS: Final = 300.0
"""Time between two such backfills of what has changed since the last one."""
INDEX_MARGIN: Final = 600_000
"""Milliseconds by which the clocks of servers may differ; a backfill starts that much earlier."""
INDEX_WHOLE_WALK: Final = 7 * 86_400_000
"""Milliseconds between two backfills of all sessions and all sources."""
INDEX_DEPARTED_WALK: Final = 3_600_000
"""The same if a process without this index erased or deleted something meanwhile."""
EMBEDDED_AT_ONCE: Final = 64
"""Texts that are embedded in one round."""
EMBEDDING_TRIES: Final = 3
"""Failed attempts to embed a text before it stays without a vector until the process starts again."""
UNEMBEDDED: Final = 1000
"""Number of such texts; with more of them, a process stops embedding."""
VECTOR_NUMBERS: Final = 8192
"""Most numbers in a vector."""
EMBEDDING_BATCH_BYTES: Final = 512 * 1024
"""Texts in one call of an embeddings endpoint, in UTF-8; a longer text is sent alone."""
EMBEDDING_ANSWER_BYTES: Final = 64 * MIB
"""The answer of an embeddings endpoint."""
EMBEDDINGS_REMEMBERED_BYTES: Final = 16 * MIB
"""Vectors that an embedder caches, so that no text is embedded twice in a row."""
WORKSPACE_FILE_BYTES: Final = 1 * MIB
"""Largest file of a workspace that is committed; larger ones are left out, and named."""
WORKSPACE_FILES: Final = 10_000
"""Files of a workspace that are not ignored."""
WORKSPACE_COMMIT_BYTES: Final = 256 * MIB
"""Changed content in a commit, of all files together."""
WORKSPACE_SUBJECT_CHARS: Final = 200
"""Subject of a commit; a longer one is cut."""
WORKSPACE_BODY_CHARS: Final = 8_000
"""Body of a commit; a longer one is cut."""
WORKSPACE_NAMED: Final = 20
"""Files left out of a commit that it names."""
WORKSPACE_HISTORY: Final = 100
"""Commits that are returned at once."""
WORKSPACE_DIFF_BYTES: Final = 256 * 1024
"""Returned part of a diff; the rest is only counted."""
GIT_SECONDS: Final = 20.0
"""Longest run time of the git program."""
WORKSPACE_WAIT_SECONDS: Final = 20.0
"""How long a commit waits for another one of the same workspace, in any process."""
QUERY_CHARS: Final = 8_000
"""Characters of a query. Automatic recall reads this much of a message."""
SEARCH_RESULTS: Final = 100
"""Hits of a page."""
SEARCH_NEIGHBOURS: Final = 10
"""Messages before a hit, and after it, that are returned with it."""
SEARCH_SNIPPET_CHARS: Final = 240
"""Characters shown of a hit; a hit for a model has `RECALLED_CHARS`."""
SEARCH_VECTOR_SECONDS: Final = 5.0
"""How long a search waits for the vector of its query; after that, it searches by words if allowed."""
RERANK_TEXTS: Final = 100
"""Hits of a search for a reranker; their order is in the cursor of each hit."""
RERANK_CHARS: Final = 2_000
"""Characters of each of them, around the best answer."""
RERANK_QUERY_CHARS: Final = 1_000
"""First characters of the query for a reranker."""
RERANK_ANSWER_BYTES: Final = 4 * MIB
"""Answer of an HTTP reranker."""
RERANK_PROMPT_SECONDS: Final = 0.25
"""How long a prompt waits for the reranker, within `RECALL_SECONDS`; a search waits for `rerank.timeout`."""
RECALLED_CHARS: Final = 1_200
"""Characters of a hit for a model, before it is cut to its budget."""
RECALL_SECONDS: Final = 1.0
"""How long a turn waits for recall; then it continues without."""
RECALL_VECTOR_SECONDS: Final = 0.6
"""How much of that the vector of the query may take."""
RECALL_FRESH_SECONDS: Final = 0.1
"""How much of that to wait for messages of the user in other sessions that are not indexed yet."""
SESSION_RECALL_SECONDS: Final = 0.02
"""How long a prompt waits for recall from its own session; then it continues without."""
SESSION_RECALL_ENTRIES: Final = 512
"""Newest entries that are analysed at once for that; older ones are found with the index."""
SESSION_RECALL_CHARS: Final = 400_000
"""Characters of entries after which no more are analysed at once."""
SESSION_RECALL_WAITS: Final = 32
"""Entries for which a prompt waits; for more of them, the index is searched meanwhile, if there is one."""
SESSION_RECALL_INLINE: Final = 1_000
"""Sentences of a table that is searched on the event loop (1 to 2 ms); a larger one is searched in a thread."""
ANALYSIS_CACHE_BYTES: Final = 33_554_432
"""Cached analyses of messages for digests and standing facts, enough for some 80 sessions of 50,000 tokens each."""
SNIPPET_CHARS: Final = 200_000
"""Characters of a hit that are searched for its snippet: the head and the tail of a longer one."""
SNIPPET_WORDS: Final = 1_000
"""Words of a hit that are stemmed for its snippet if it has more than `SNIPPET_WHOLE_CHARS`."""
SNIPPET_WHOLE_CHARS: Final = 8_000
"""Characters up to which every word of a hit is stemmed; of a longer one, only words that begin like a word of the query."""
SEARCH_CHARS: Final = 2_000_000
"""Characters that one search reads for all its snippets; later hits show their beginning."""
SEARCH_WORDS: Final = 20_000
"""Words that one search stems for all its snippets."""
SEARCH_INLINE_CHARS: Final = 4_000
"""Total characters of hits that are analysed on the event loop; more are analysed in a thread."""
INLINE_MESSAGES: Final = 500
"""Messages that are read, converted or written on the event loop; more are processed in a thread."""
INLINE_BODY_BYTES: Final = 16 * 1024
"""Request body whose messages are read on the event loop; those of a larger one are read in a thread."""
CPU_THREADS: Final = 4
"""Threads for CPU work (counting, building prompts, analysing texts, reading large bodies), shared by all principals."""
CPU_THREADS_OF_TENANT: Final = 3
"""How many of them the principals of one tenant use together."""
CPU_THREADS_OF_PRINCIPAL: Final = 2
"""How many of them one principal uses."""
MCP_TOOLS: Final = 500
"""Tools of an MCP server that are offered."""
MCP_SCHEMA_BYTES: Final = 64 * 1024
"""Schema of such a tool's arguments as JSON; one with a larger schema is left out."""
MCP_DESCRIPTION_CHARS: Final = 8_000
"""Its description; a longer one is cut."""
MCP_MESSAGE_BYTES: Final = 16 * MIB
"""One message of such a server, usually a result with media in base64; a larger one closes the connection."""
MCP_MEDIA: Final = 20
"""Images, recordings and files in one result that are stored as artifacts."""
PATTERN_CHARS: Final = 10_000
"""Longest custom pattern for finding secrets."""
PATTERNS: Final = 100
"""Number of custom patterns."""
PATTERN_PROBE_SECONDS: Final = 0.5
"""How long such a pattern may take for a simple text of 1,000 characters; a slower one is refused at startup."""
PATTERN_SECONDS: Final = 1.0
PATTERN_SECONDS_A_MIB: Final = 2.0
"""How long it may take for any text: the first value, plus the second per MiB. After that, the whole text counts as a hit."""
LEARNED_BYTES: Final = 64 * 1024
"""Stored calibration of a model, per tenant."""
LEARNED_MODELS: Final = 1000
"""Models whose calibration a tenant stores; the one written longest ago is deleted first."""
ARTIFACT_NAME_BYTES: Final = 255
"""Longest name of an artifact in UTF-8, without `user:`."""
ARTIFACT_NAMES: Final = 1000
"""Names of artifacts in a session, and as many that a user's sessions share."""
ARTIFACT_VERSIONS: Final = 1000
"""Versions of an artifact."""
ARTIFACTS: Final = 10_000
"""Versions of all artifacts of a session together, and as many of those that a user's sessions share."""
ARTIFACT_METADATA_BYTES: Final = 16 * 1024
"""Metadata of a version of an artifact as JSON."""
ARTIFACT_BYTES: Final = 64 * MIB
"""Largest artifact, unless `storage.artifacts.max_bytes` is set."""
ARTIFACTS_BYTES: Final = 1024 * MIB
"""All artifacts of a session together, or those that a user's sessions share, unless `storage.artifacts.max_total` is set."""
BLOB_PART_BYTES: Final = 1 * MIB
"""Content of an artifact per row, if the database stores it."""

# -- fixed, enforced by the command line ---------------------------------------

IMPORT_LINE_BYTES: Final = 256 * MIB
"""Longest line of an imported file: one session. Longer lines are not read to their end."""
IMPORT_VALUES: Final = 8_000_000
"""Keys and values in such a line."""
EVALUATION_FILE_BYTES: Final = 512 * MIB
"""Largest file of questions and conversations for measuring recall."""

# -- fixed, enforced by the server --------------------------------------------

DEPTH: Final = 64
"""Nesting depth of objects and lists in a request body."""
VALUES: Final = 1_000_000
"""Keys and values in a request body: a few bytes of JSON can take hundreds in memory."""
HEAD_BYTES: Final = 64 * 1024
"""A request's line and headers together."""
UNREAD_BYTES: Final = 256 * 1024
"""Data that wait in the server for a slow client, in addition to the system's own buffers; then its reply waits."""
READ_BYTES: Final = 64 * 1024
"""How much of it such a client must read in `gateway.send_timeout`, unless less is left."""
UNHEARD: Final = 10_000
"""Undelivered replies that a process remembers; the oldest are dropped."""
TOKEN_CHARS: Final = 16_384
"""Longest token of `auth.jwt`, and longest upstream key that is forwarded."""
JWKS_BYTES: Final = 1 * MIB
"""Largest key set for checking tokens."""
KEYS_REMEMBERED: Final = 10_000
"""API keys that a server caches for some seconds, and callers whose requests it counts."""
PARAMETERS: Final = 50
"""Query parameters of a request."""
BODIES: Final = 4
"""Bodies of the largest size that are held in memory at once; further ones wait. A principal may use half of that room."""
BODY_STALL_SECONDS: Final = 5.0
"""How long a body of more than 64 KiB may deliver less than `BODY_STALL_BYTES`; then it is refused."""
BODY_STALL_BYTES: Final = 16 * 1024
"""How much such a body must deliver in `BODY_STALL_SECONDS`."""
DRAIN_BYTES: Final = 8 * MIB
"""How much of a body is read after its response was sent, before the connection is closed."""
DRAIN_SECONDS: Final = 5.0
"""How long it is read."""
CALL_LOOKBACK: Final = 256
"""Messages that are searched for the call of a late result."""
CLIENTS_REMEMBERED: Final = 8
"""Client programs per session that are remembered to send whole conversations; the oldest is forgotten first."""
TURN_WARNINGS: Final = 20
"""Warnings in the response to a turn; further ones are neither returned nor logged."""
REFUSED_A_TURN: Final = 8
"""Refused messages that one turn detects; after that, the client gets the error."""
SYSTEM_IN_FORCE: Final = 16
"""Newest of several consecutive system messages inside a log that stay in prompts together."""
VIDEO_FRAMES: Final = 8
"""Frames of a video that are sent as images, evenly chosen, to a model that accepts images but not videos."""
LEFT_OUT_EXPLAINED: Final = 100
"""Newest messages of a view left out of every prompt whose reason `explain` knows; older ones count as evicted or compacted."""
EXPLAIN_MATCHES: Final = 50
"""Messages in one explanation."""
EXPLAIN_QUERY_CHARS: Final = 200
"""The text to search for in explained messages."""
EXPLAIN_SCANNED: Final = 10_000
"""Messages of a session that one explanation searches for its text; the next page continues."""
EXPLAIN_REBUILT: Final = 5_000
"""Messages of a session up to which an explanation rebuilds its prompts; for a longer one it uses the recorded frontiers."""
EXPLAIN_REBUILT_TOKENS: Final = 1_000_000
"""Tokens of a session up to which it does that."""
EXPLAIN_BUDGETED: Final = 2_000
"""Messages of a session up to which an explanation tries which budget would keep a message."""
EXPLAIN_BUDGETED_TOKENS: Final = 300_000
"""Tokens of a session up to which it does that."""
EXPLAIN_CHARS: Final = 200_000
"""First characters of a message whose sentences are searched for in digests and other blocks."""
EXPLAIN_PHRASES: Final = 500
"""Sentences or values of a message that are searched for there."""
EXPLAIN_EXCERPTS: Final = 20
"""Pieces of a message found in a prompt that are returned."""
EXPLAIN_TEXT_CHARS: Final = 200
"""Characters of an explained message that are returned with it."""
FACT_PINS: Final = 100
"""Pinned standing facts of a session."""
FACT_DROPS: Final = 500
"""Dropped standing facts of a session."""
ERROR_CHARS: Final = 2000
"""Longest text of an error, which may quote the request."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a request; each is a key of `gateway`, with the prefix `max_` except for the time."""

    body: int = 32 * MIB
    """Bytes of a request's body."""
    message: int = 16 * MIB
    """Bytes of one message in it, without its media; the store never accepts more than `MESSAGE_BYTES`."""
    messages: int = 100_000
    """Messages in it: a transcript, an append, an import."""
    parts: int = 1000
    """Parts of one message's content."""
    tool_calls: int = 1000
    """Tool calls of one message."""
    tools: int = 1000
    """Tools in it."""
    body_timeout: float = 60.0
    """Seconds a body may take to arrive."""
    media: int = 20 * MIB
    """Bytes of one image, recording, video or file in it."""
    media_count: int = 100
    """Number of these."""
    speech: int = 512
    """Bytes in UTF-8 of a text that is spoken from outside, as in Agora's API."""
    pixels: int = 100_000_000
    """Width times height of an image according to its header; nothing is decoded."""
