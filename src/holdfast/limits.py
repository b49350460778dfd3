"""Every limit there is, with its number: how much of anything is taken before it is refused. One table, used everywhere.

What a server's owner may set is in `Limits`, by keys of `gateway` with `max_` before them; the rest is fixed, because a
database's schema, Python's stack or a log that anyone can read depends on it. docs/limits.md shows the same table, and a
test holds the two together.
"""

from __future__ import annotations

from typing import Final

import msgspec

MIB: Final = 1 << 20

# -- fixed, held by every store ----------------------------------------------

ID_BYTES: Final = 512
"""Longest identifier in UTF-8: tenant, user, session, agent, model, idempotency key, view key. None may be empty."""
MESSAGE_BYTES: Final = 32 * MIB
"""Largest message, as it is stored, without the media that are kept apart from it; and the largest of these."""
MEDIA_INLINE: Final = 1024
"""Characters of a text from which the data in it are kept apart from their message; shorter ones stay where they are."""
MEDIA_CACHE_BYTES: Final = 64 * MIB
"""Media that a process remembers, so that a turn does not read the same ones again."""
CACHE_BYTES: Final = 256 * MIB
"""All that a process remembers of sessions between turns, by estimate, unless it is set (`storage.sessions.cache_bytes`)."""
METADATA_BYTES: Final = 1 * MIB
"""Metadata of a session, or of one message, as JSON."""
PARTICIPANTS: Final = 100
"""Users who take part in a session, beside the one whose it is."""
STATE_BYTES: Final = 1 * MIB
"""State of one scope (a session's own, a user's, a tenant's) as JSON, after what was merged into it."""
STATE_KEYS: Final = 10_000
"""Keys of the state of one scope."""
STATE_KEY_BYTES: Final = 256
"""Longest key of the state in UTF-8, the prefix of its scope not counted."""
STATE_VALUE_BYTES: Final = 256 * 1024
"""Largest value under a key of the state as JSON."""
STATE_DEPTH: Final = 64
"""Objects and lists inside each other in such a value."""
STATE_CHANGES: Final = 1000
"""Operations of one request on the state (`changes`)."""
STATE_REMEMBERED: Final = 1000
"""Users of a tenant, and the tenant itself, whose shared state a process remembers."""
STATE_REMEMBERED_BYTES: Final = 4 * MIB
"""All of that together, as JSON."""
SYSTEM_BYTES: Final = 4 * MIB
"""A session's system messages as JSON."""
PAGE: Final = 1000
"""Most items of a page; also most entries rated at once."""
CALL_BUILD_BYTES: Final = 16 * 1024
"""How a model call's prompt was built, as it is recorded with the call."""
COMPACTION_BYTES: Final = 256 * 1024
"""Text of a summary or digest in UTF-8."""
COMPACTION_REPORT_BYTES: Final = 64 * 1024
"""Report on a summary as JSON."""
COMPACTION_ERROR_BYTES: Final = 2 * 1024
"""Why a summary failed, in UTF-8."""
CARRIED_TOKENS_LEAST: Final = 64
"""Fewest tokens that a session may be asked to carry over of another one."""
CARRIED_TOKENS: Final = 32_000
"""Most of them."""
CARRIED_PREFIX_CHARS: Final = 2000
"""Words that are put before what is carried over."""
CARRIED_READ_TOKENS: Final = 100_000
"""What is read of the other session's messages, the newest, to be summarized."""
CARRIED_READ_ENTRIES: Final = 5000
"""How many of them."""
CARRIED_SECONDS: Final = 60.0
"""How long a summary of them may take, before the digest takes its place."""
VIEWS_KEPT: Final = 16
"""Saved views of a session that a write of nothing but a view leaves; those saved longest ago go first."""
COMPACTIONS_KEPT: Final = 64
"""Compactions of a session that are kept when they are no longer live: superseded, dropped, dead. The oldest go first."""
FAILURES_KEPT: Final = 16
"""Failed attempts at a compaction that are kept of a session."""
TENANTS: Final = 100
"""Other tenants than its own whose memories a server keeps; one that is being served is never closed."""
HOOKS: Final = 64
"""Hooks that are told of the end of a session."""
SERVED: Final = 1000
"""Sessions of which hooks are told when the process ends: those that were written to last."""
CONFIG_BYTES: Final = 1 * MIB
"""A configuration file."""
CONFIG_DEPTH: Final = 32
"""Mappings and lists inside each other in it."""
CONFIG_VALUES: Final = 50_000
"""Values in it, counted after aliases are resolved: a few lines of aliases can stand for billions."""
DOTENV_BYTES: Final = 64 * 1024
"""A `.env` file."""
RECORDING_LINE_BYTES: Final = 64 * MIB
"""Longest line of a recording that `replay` plays, and of a transcript."""
HISTORY_TURNS: Final = 10_000
"""Most messages that `max_history_turns` may let a policy see: each working set is made from all of them."""
ENDING_ERROR_CHARS: Final = 500
"""Why a hook failed, as it is recorded: longer texts are cut."""
WEBHOOK_BYTES: Final = 16 * MIB
"""Messages in one call of a webhook as JSON: the newest that fit are sent."""
MARKS: Final = 1000
"""Digests that are looked for in the logs of a user at once."""
SIGHTINGS: Final = 64
"""Most places that one of them is told to stand at: the newest sessions first."""
COMPARED_SESSIONS: Final = 8
"""Sessions whose tool messages, state and artifacts are compared for a user that is not identified; more count as different."""
COMPARED_MESSAGES: Final = 1000
"""Messages, or artifacts, of each of them; a longer log counts as different."""
REMATCHES: Final = 8
"""Times that a request without `session_id` is matched again because another one was faster; then it gets a session of its own."""
RETRIES: Final = 10_000
"""Requests of official SDKs that a process remembers, to recognize them when they are sent again; the oldest go."""
RETRY_MILLISECONDS: Final = 600_000
"""For how long."""
INTERRUPTED_BEHIND: Final = 1000
"""Messages behind a reply that may still be interrupted: what stands behind it is written again."""
TURNS_WAITING: Final = 256
"""Turns of a session that wait for the one that runs, in a process; more are refused."""
LEASE_MILLISECONDS: Final = 86_400_000
"""Longest time that a lease may be taken for."""
FALLBACKS: Final = 16
"""Models that stand in for another."""
MODEL_EVENT_BYTES: Final = 16 * MIB
"""Longest event of a model's stream, or whole answer that is not streamed: a generated image in base64 fits."""
MODEL_STREAM_BYTES: Final = 128 * MIB
"""All that an upstream sends for one reply, the JSON around each piece included."""
MODEL_REPLY_BYTES: Final = 24 * MIB
"""What a reply says as JSON: text, reasoning and arguments of calls. A stored message may have `MESSAGE_BYTES`."""
MODEL_REPLY_PARTS: Final = 4_000
"""Choices, calls of tools and blocks of one reply, all together."""
MODEL_TRAILING_CHUNKS: Final = 1_000
"""Pieces of a reply before its first word and after its end, each."""
UPSTREAMS: Final = 1000
"""Upstreams of which a process remembers how they are doing."""
MODELS_LEARNED: Final = 1000
"""Models of which a process remembers what their providers' answers teach; the one asked for longest ago goes, and is read again."""
COOL_DOWN_FIRST_SECONDS: Final = 5.0
"""How long an upstream that failed is passed over where another stands in for it; doubled with each further failure in a row."""
COOL_DOWN_SECONDS: Final = 300.0
"""Longest such pause."""
COOL_DOWN_ASKED_SECONDS: Final = 3600.0
"""Longest such pause that an upstream may ask for."""
TRANSFERS: Final = 10
"""Times that a conversation is handed over from agent to agent in a turn; then whoever has it answers."""
AGENT_DEPTH: Final = 5
"""Agents that call each other like tools, one within the other; the last one has to answer by itself."""
SPEAKER_BEHIND: Final = 1000
"""Messages behind an agent's last one, among which it is found who answers next; further back, the session's own agent does."""
TOOL_THREADS: Final = 64
"""Tools that are plain functions, at work at once in a process; further ones wait, and their time limit runs."""
TOOL_GRACE_SECONDS: Final = 5.0
"""Seconds that a tool gets to end when whoever asked has gone."""
PYTHON_CODE_BYTES: Final = 1 * MIB
"""Code of one call of the tool `python`."""
PYTHON_CALLS_WAITING: Final = 16
"""Calls of it that wait in a session for the one that runs; further ones are told so."""
PYTHON_START_SECONDS: Final = 30.0
"""Longest time that its process may take to start, and files of earlier calls to be put back."""
PYTHON_KEEP_SECONDS: Final = 60.0
"""Longest time that the files of a call may take to be kept as artifacts."""
PYTHON_RESTORED: Final = 100
"""Files of earlier calls that are put back into the work folder of a fresh process: the newest."""
PYTHON_RESTORED_BYTES: Final = 64 * MIB
"""All of them together."""
PYTHON_LOOKED_BACK: Final = 1000
"""Messages of a session, the newest, in which earlier calls are looked for when a process starts."""
INSTRUCTED_ARTIFACT_BYTES: Final = 64 * 1024
"""Largest artifact whose text an instruction may name."""
LOADED_IMAGE_BYTES: Final = 4 * MIB
"""Largest picture that a model is shown which loads it."""
LISTED_ARTIFACTS: Final = 200
"""Artifacts that a model is told of at once."""
ARTIFACTS_NAMED: Final = 20
"""Names of artifacts in a reply that are looked up."""
ARTIFACTS_TOLD: Final = 200
"""Artifacts that a reply tells of, those that its turn saved included."""
MEMORY_BYTES: Final = 32 * 1024
"""A memory as JSON."""
MEMORY_TAGS: Final = 32
"""Tags of a memory."""
MEMORY_TAG_CHARS: Final = 64
"""Characters of a tag."""
MEMORY_SOURCES: Final = 50
"""Sources of a memory, the newest: sessions, each with the entries in it."""
MEMORY_CHARS: Final = 8_000
"""Characters of what a memory says."""
RECALLED_MEMORIES: Final = 100
"""Memories that one recall gives."""
MEMORIES_AT_HAND: Final = 20_000
"""Memories that a process keeps at hand: their terms, where it has no index, and those that are promoted."""
SIGNALS_WAITING: Final = 10_000
"""Recalls that wait to be written down, in a process; the oldest are let go."""
LOOKED_BACK: Final = 200
"""Entries of a session, the newest, in which the words of a new memory are looked for."""
LOOKED_OVER: Final = 2_000
"""Entries before these that are looked over for anything from elsewhere, where a memory's words are nobody's but the model's."""
MEMORIES: Final = 10_000
"""Memories of an owner, whatever their status."""
MEMORIES_AT_ONCE: Final = 200
"""Memories that one write puts or forgets."""
SIGNALS_KEPT: Final = 200
"""Recalls of a memory that are kept, the newest."""
DIARY_KEPT: Final = 400
"""Sweeps over an owner's memories that are kept in the diary, the newest."""
DIARY_PAGE: Final = 100
"""Sweeps of a diary that are told at once."""
MERGE_MEMORIES: Final = 100
"""Promoted memories that a model is asked about at once, the best."""
MERGE_CHARS: Final = 24_000
"""Characters of what these say."""
MERGES: Final = 20
"""Merges that one answer may propose; what it has beyond these is left."""
MERGES_ASKED: Final = 20
"""Owners about whom a model is asked in one pass of scheduled sweeps."""
MERGE_SECONDS: Final = 60.0
"""Time that the model has to answer."""
MERGE_PAUSE_SECONDS: Final = 600
"""Time for which a model is not asked again that failed to answer."""
INDEX_SECONDS: Final = 10.0
"""Time that an indexer has to end what it is at when a Holdfast closes."""
INDEX_DELAY_SECONDS: Final = 5.0
"""How long what was written may wait before it is indexed, so that turns come first and what comes together is written together."""
INDEX_WAIT_SECONDS: Final = 2.0
"""How long an erasure or deletion waits for the index; then it is taken out of that later."""
INDEX_FRESH_SECONDS: Final = 1.0
"""How long a search waits for what its user has just said to be in the index."""
INDEX_AT_ONCE: Final = 2
"""Sessions of a tenant that are indexed at once in a process; the others wait, by name only."""
INDEX_WAITING: Final = 100_000
"""How many wait, in a process; more are left to the next walk."""
INDEX_PAGE: Final = 64
"""Entries of a session that are read, and written to the index, at a time."""
INDEX_TERMS: Final = 20_000
"""Terms in one write to the index."""
INDEX_INLINE_CHARS: Final = 4_000
"""Longest text that is analysed on the event loop; a longer one is in a thread."""
INDEX_PAUSE_SECONDS: Final = 60.0
"""Longest time until what could not be indexed, or embedded, is tried again."""
INDEX_FIRST_WALK_SECONDS: Final = 1.0
"""Time after the start of a process until it looks for what was not indexed while none did."""
INDEX_WALK_SECONDS: Final = 300.0
"""Time between two such walks over what has changed since the last one."""
INDEX_MARGIN: Final = 600_000
"""Milliseconds by which the clocks of servers may differ: such a walk goes that much further back."""
INDEX_WHOLE_WALK: Final = 7 * 86_400_000
"""Milliseconds between two walks over all sessions and all sources."""
INDEX_DEPARTED_WALK: Final = 3_600_000
"""The same where something was erased or deleted meanwhile by a process without this index."""
EMBEDDED_AT_ONCE: Final = 64
"""Texts that are embedded in one round."""
EMBEDDING_TRIES: Final = 3
"""Times that a text is embedded in vain before it is left without a vector, until the process starts again."""
UNEMBEDDED: Final = 1000
"""Texts that are left so; with more of them a process stops embedding."""
VECTOR_NUMBERS: Final = 8192
"""Most numbers in a vector."""
EMBEDDING_BATCH_BYTES: Final = 512 * 1024
"""Texts in one call of an embeddings endpoint, in UTF-8; a longer one goes alone."""
EMBEDDING_ANSWER_BYTES: Final = 64 * MIB
"""Its answer."""
EMBEDDINGS_REMEMBERED_BYTES: Final = 16 * MIB
"""Vectors that an embedder remembers, so that no text is embedded twice in a row."""
WORKSPACE_FILE_BYTES: Final = 1 * MIB
"""Largest file of a workspace that is committed; a larger one is left out, and named."""
WORKSPACE_FILES: Final = 10_000
"""Files of a workspace that are not ignored."""
WORKSPACE_COMMIT_BYTES: Final = 256 * MIB
"""What has changed in a commit, all files together."""
WORKSPACE_SUBJECT_CHARS: Final = 200
"""Subject of a commit; a longer one is cut."""
WORKSPACE_BODY_CHARS: Final = 8_000
"""Body of a commit; a longer one is cut."""
WORKSPACE_NAMED: Final = 20
"""Files that a commit names which are not in it."""
WORKSPACE_HISTORY: Final = 100
"""Commits that are told at once."""
WORKSPACE_DIFF_BYTES: Final = 256 * 1024
"""What is told of a diff; how much more there is, is said."""
GIT_SECONDS: Final = 20.0
"""Longest time that the git program may take."""
WORKSPACE_WAIT_SECONDS: Final = 20.0
"""Longest time that a commit waits for another one of the same workspace, in whichever process."""
QUERY_CHARS: Final = 8_000
"""What is searched for. Of a message that is searched for by itself, for what it recalls, so much is read."""
SEARCH_RESULTS: Final = 100
"""Hits of a page."""
SEARCH_NEIGHBOURS: Final = 10
"""Messages before a hit, and as many behind it, that are given with it."""
SEARCH_SNIPPET_CHARS: Final = 240
"""What is shown of a hit; of one that a model is given, `RECALLED_CHARS`."""
SEARCH_VECTOR_SECONDS: Final = 5.0
"""How long a search waits for the vector of its query; then it is one by words, where that may be."""
RERANK_TEXTS: Final = 100
"""Hits of a search that a reranker may be given; their order is in the cursor of each hit."""
RERANK_CHARS: Final = 2_000
"""Characters of each of them, around what answers best."""
RERANK_QUERY_CHARS: Final = 1_000
"""Characters of the query, the first ones, that a reranker is given."""
RERANK_ANSWER_BYTES: Final = 4 * MIB
"""Answer of an HTTP reranker."""
RERANK_PROMPT_SECONDS: Final = 0.25
"""How long a prompt waits for the reranker, of `RECALL_SECONDS`; a search waits for `rerank.timeout`."""
RECALLED_CHARS: Final = 1_200
"""Characters of a hit that a model is given, before it is cut to its budget."""
RECALL_SECONDS: Final = 1.0
"""How long a turn waits for what might be recalled in its prompt; then it goes on without."""
RECALL_VECTOR_SECONDS: Final = 0.6
"""How much of that the vector of the query may take."""
RECALL_FRESH_SECONDS: Final = 0.1
"""The same of what the user has just said in other sessions, and the index has not yet."""
SESSION_RECALL_SECONDS: Final = 0.02
"""How long a prompt waits for what is recalled of its own session; then it goes on without."""
SESSION_RECALL_ENTRIES: Final = 512
"""Entries that are analysed at once for that, the newest; older ones are found by the index."""
SESSION_RECALL_CHARS: Final = 400_000
"""Characters of entries after which no further ones are analysed at once."""
SESSION_RECALL_WAITS: Final = 32
"""Entries up to which a prompt waits for that; for more of them the index is asked meanwhile, if there is one."""
SESSION_RECALL_INLINE: Final = 1_000
"""Sentences of a table that is searched on the event loop (1 to 2 ms); a larger one is searched in a thread."""
ANALYSIS_CACHE_BYTES: Final = 33_554_432
"""Bytes of the analyses of messages that a process keeps for digests and standing facts: of some 80 sessions of 50,000 tokens each."""
SNIPPET_CHARS: Final = 200_000
"""Characters of a hit that are looked through for its snippet: of a longer one the head and the tail."""
SNIPPET_WORDS: Final = 1_000
"""Words of a hit that are stemmed for its snippet where it has more than `SNIPPET_WHOLE_CHARS`."""
SNIPPET_WHOLE_CHARS: Final = 8_000
"""Characters up to which every word of a hit is stemmed; of a longer one those that begin like a word of the query."""
SEARCH_CHARS: Final = 2_000_000
"""Characters that one search looks through for all its snippets; hits after that are shown by their beginning."""
SEARCH_WORDS: Final = 20_000
"""Words that one search stems for all its snippets."""
SEARCH_INLINE_CHARS: Final = 4_000
"""Characters of hits, all together, that are analysed on the event loop; more are analysed in a thread."""
INLINE_MESSAGES: Final = 500
"""Messages that are read, converted or written on the event loop; more are in a thread."""
INLINE_BODY_BYTES: Final = 16 * 1024
"""Body of a request whose messages are read on the event loop; those of a larger one are in a thread."""
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
"""One message of such a server, a result with its media in base64 above all; over a larger one the connection ends."""
MCP_MEDIA: Final = 20
"""Images, recordings and files in one result that are kept as artifacts."""
PATTERN_CHARS: Final = 10_000
"""Longest pattern of the user's own that secrets are looked for with."""
PATTERNS: Final = 100
"""Most of them."""
PATTERN_PROBE_SECONDS: Final = 0.5
"""How long such a pattern may take for a simple text of 1,000 characters; a slower one is refused at the start."""
PATTERN_SECONDS: Final = 1.0
PATTERN_SECONDS_A_MIB: Final = 2.0
"""How long it may take for any text: so much, and so much a MiB on top. Longer, and all of the text counts as a hit."""
LEARNED_BYTES: Final = 64 * 1024
"""What is kept of a model, for a tenant."""
LEARNED_MODELS: Final = 1000
"""Models of which a tenant keeps something; the one that was written longest ago goes first."""
ARTIFACT_NAME_BYTES: Final = 255
"""Longest name of an artifact in UTF-8, `user:` before it not counted."""
ARTIFACT_NAMES: Final = 1000
"""Names of artifacts in a session, and as many that a user's sessions share."""
ARTIFACT_VERSIONS: Final = 1000
"""Versions of an artifact."""
ARTIFACTS: Final = 10_000
"""Versions of all artifacts of a session together, and as many of those that a user's sessions share."""
ARTIFACT_METADATA_BYTES: Final = 16 * 1024
"""Metadata of a version of an artifact as JSON."""
ARTIFACT_BYTES: Final = 64 * MIB
"""Largest artifact, unless `storage.artifacts.max_bytes` says otherwise."""
ARTIFACTS_BYTES: Final = 1024 * MIB
"""All artifacts of a session together, and those that a user's sessions share, unless `storage.artifacts.max_total` does."""
BLOB_PART_BYTES: Final = 1 * MIB
"""Content of an artifact in one row, where the database keeps it."""

# -- fixed, held by the command line ------------------------------------------

IMPORT_LINE_BYTES: Final = 256 * MIB
"""Longest line of a file that is imported: one session. A longer one is not read to its end."""
IMPORT_VALUES: Final = 8_000_000
"""Values and keys' values in such a line."""
EVALUATION_FILE_BYTES: Final = 512 * MIB
"""Largest file of questions and conversations that recall is measured on."""

# -- fixed, held by the server -----------------------------------------------

DEPTH: Final = 64
"""Objects and lists inside each other in a request body."""
VALUES: Final = 1_000_000
"""Values and keys' values in a request body: a few bytes of JSON can stand for hundreds in memory."""
HEAD_BYTES: Final = 64 * 1024
"""A request's line and headers together."""
UNREAD_BYTES: Final = 256 * 1024
"""What waits in the server for a client that reads slowly, beside the system's own buffers; then its reply waits for it."""
READ_BYTES: Final = 64 * 1024
"""What such a client has to read of it in `gateway.send_timeout`, unless less is left."""
UNHEARD: Final = 10_000
"""Replies of which a process remembers that their client had gone before their end; the oldest go."""
TOKEN_CHARS: Final = 16_384
"""Longest token of `auth.jwt`, and longest upstream key that is handed on."""
JWKS_BYTES: Final = 1 * MIB
"""Largest key set that tokens are checked with."""
KEYS_REMEMBERED: Final = 10_000
"""API keys that a server remembers for some seconds, and callers whose requests it counts."""
PARAMETERS: Final = 50
"""Query parameters of a request."""
BODIES: Final = 4
"""How many bodies of the largest size are held in memory at once; further ones wait. A principal may hold half of that room."""
BODY_STALL_SECONDS: Final = 5.0
"""How long a body of more than 64 KiB may bring less than `BODY_STALL_BYTES`; then it is refused."""
BODY_STALL_BYTES: Final = 16 * 1024
"""See `BODY_STALL_SECONDS`."""
DRAIN_BYTES: Final = 8 * MIB
"""What is read of a body after its response was sent, before the connection is closed."""
DRAIN_SECONDS: Final = 5.0
"""How long that is read."""
CALL_LOOKBACK: Final = 256
"""Messages in which the call is looked for that a late result answers."""
CLIENTS_REMEMBERED: Final = 8
"""Client programs of which a session remembers that they send whole conversations; the oldest is forgotten first."""
TURN_WARNINGS: Final = 20
"""Warnings that the response to a turn has at most; further ones are neither returned nor logged."""
REFUSED_A_TURN: Final = 8
"""Messages that one turn finds out to be refused by its upstream; with more of them the client gets the error."""
SYSTEM_IN_FORCE: Final = 16
"""System messages in a row, inside a log, that stay in its prompts together; the newest of them."""
VIDEO_FRAMES: Final = 8
"""Frames of a video that are sent as images to a model that takes images and no videos, evenly chosen."""
LEFT_OUT_EXPLAINED: Final = 100
"""Newest messages of a view that no prompt has, whose reason `explain` knows; an older one counts as evicted or compacted."""
EXPLAIN_MATCHES: Final = 50
"""Messages that one explanation explains."""
EXPLAIN_QUERY_CHARS: Final = 200
"""The text that explained messages contain."""
EXPLAIN_SCANNED: Final = 10_000
"""Messages of a session that one explanation searches for its text; the next page goes on."""
EXPLAIN_REBUILT: Final = 5_000
"""Messages of a session up to which an explanation rebuilds its prompts; of a longer one it knows the recorded frontiers."""
EXPLAIN_REBUILT_TOKENS: Final = 1_000_000
"""Tokens of a session up to which it does that."""
EXPLAIN_BUDGETED: Final = 2_000
"""Messages of a session up to which an explanation tries which budget would keep a message."""
EXPLAIN_BUDGETED_TOKENS: Final = 300_000
"""Tokens of a session up to which it does that."""
EXPLAIN_CHARS: Final = 200_000
"""Characters of a message, the first ones, whose sentences are looked for in digests and other blocks."""
EXPLAIN_PHRASES: Final = 500
"""Sentences or values of a message that are looked for there."""
EXPLAIN_EXCERPTS: Final = 20
"""Pieces of a message that were found in a prompt, and are returned."""
EXPLAIN_TEXT_CHARS: Final = 200
"""Characters of an explained message that are returned with it."""
FACT_PINS: Final = 100
"""Pinned standing facts of a session."""
FACT_DROPS: Final = 500
"""Dropped standing facts of a session."""
ERROR_CHARS: Final = 2000
"""Longest text of an error: it may quote what was sent."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a request may bring; each is a key of `gateway`, with `max_` before it but for the time."""

    body: int = 32 * MIB
    """Bytes of a request's body."""
    message: int = 16 * MIB
    """Bytes of one message in it, its media not counted; the store takes no more than `MESSAGE_BYTES`, whatever is set here."""
    messages: int = 100_000
    """Messages in it: of a transcript, an append, an import."""
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
    """How many of them."""
    speech: int = 512
    """Bytes in UTF-8 of a text that is spoken from outside, as at Agora."""
    pixels: int = 100_000_000
    """Width times height of an image, by its header: nothing is decoded."""
