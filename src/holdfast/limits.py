"""Limits and their values, in one table for the whole program. `holdfast.server.limits` has those that only the server uses.

Operators can set `gateway.max_body` and `gateway.max_media`. All others are fixed, because schemas, Python's stack, or readers of existing
logs depend on them. docs/limits.md lists those that users meet, and a test compares it with both tables.
"""

from __future__ import annotations

from typing import Final

MIB: Final = 1 << 20

# -- fixed, enforced by every store -------------------------------------------

ID_BYTES: Final = 512
"""Longest identifier in UTF-8: tenant, user, session, agent, model, idempotency key or view key. No identifier may be empty."""
MESSAGE_BYTES: Final = 32 * MIB
"""Largest stored message, not counting media that are stored apart from it; also the largest stored medium."""
MEDIA_INLINE: Final = 1024
"""Base64 data of at least this many characters is stored apart from its message; shorter data stays in the message."""
MEDIA_CACHE_BYTES: Final = 64 * MIB
"""Media that a process caches, so that a turn does not read the same media again."""
CACHE_BYTES: Final = 256 * MIB
"""Estimated size of all session data that a process caches between turns, unless `storage.sessions.cache_bytes` is set."""
METADATA_BYTES: Final = 1 * MIB
"""Metadata of a session, or of one message, as JSON."""
STATE_BYTES: Final = 1 * MIB
"""State of one scope (a session's own, a user's, a tenant's) as JSON, after a change."""
STATE_KEYS: Final = 10_000
"""Keys in the state of one scope."""
STATE_KEY_BYTES: Final = 256
"""Longest state key in UTF-8, without the prefix of its scope."""
STATE_VALUE_BYTES: Final = 256 * 1024
"""Largest value of a state key, as JSON."""
STATE_DEPTH: Final = 64
"""Nesting depth of objects and lists in the value of a state key."""
STATE_REMEMBERED: Final = 1000
"""Scopes whose shared state a process caches: users of a tenant, and the tenant itself."""
STATE_REMEMBERED_BYTES: Final = 4 * MIB
"""Total size of the cached shared state, as JSON."""
NAMESPACE_LABELS: Final = 16
"""Labels of a record's namespace."""
NAMESPACE_BYTES: Final = 512
"""All labels of a record's namespace in UTF-8."""
RECORD_KEY_BYTES: Final = 512
"""Longest key of a record in UTF-8."""
RECORD_TEXT_BYTES: Final = 64 * 1024
"""Longest searchable text of a record in UTF-8."""
RECORD_CHANGES: Final = 100
"""Records that one write changes, or one call reads by name."""
RECORDS_BYTES: Final = 64 * MIB
"""Values and searchable texts of the records that one write changes, that one call reads by name, or that an export contains."""
RECORD_PAGE_BYTES: Final = 4 * MIB
"""Values and searchable texts of records on one page of a list, or deleted in one transaction. The first record is always included."""
RECORD_INLINE_BYTES: Final = 64 * 1024
"""Value of a record that is encoded or decoded on the event loop; larger ones are processed in a thread."""
MEMORY_FILE_BYTES: Final = 100 * 1024
"""Longest file of an agent's memory in UTF-8."""
MEMORY_FILES: Final = 1_000
"""Files of an agent's memory for one user."""
MEMORY_FILES_MEASURED_BYTES: Final = MIB
"""Bytes of memory files that a list of a folder reads to give their exact sizes; the sizes of further files are estimated."""
MEMORY_FILE_DEPTH: Final = 20
"""Segments of the path of a memory file below `/memories`."""
MEMORY_PATH_BYTES: Final = 500
"""Longest path of a memory file below `/memories`, in UTF-8."""
MEMORY_FILE_VERSIONS: Final = 10
"""Versions of a memory file that are kept."""
EDITED_ARTIFACT_BYTES: Final = MIB
"""Longest text artifact that the tool `text_editor` shows or edits."""
MEMORY_FILES_NAMED: Final = 50
"""Memory files that a prompt names after older messages were evicted."""
MEMORY_LIST_TOKENS: Final = 200
"""Tokens of a prompt that are reserved for these names."""
MEMORY_FILES_HELD: Final = 100
"""Changes of an agent's memory files for one user that wait for a review."""
SYSTEM_BYTES: Final = 4 * MIB
"""A session's system messages as JSON."""
PAGE: Final = 1000
"""Maximum number of items on a page; also the maximum number of entries that can be rated at once."""
CALL_BUILD_BYTES: Final = 16 * 1024
"""The record of how one model call's prompt was built."""
COMPACTION_BYTES: Final = 256 * 1024
"""Text of a summary or digest in UTF-8."""
COMPACTION_REPORT_BYTES: Final = 64 * 1024
"""Report on a summary as JSON."""
COMPACTION_ERROR_BYTES: Final = 2 * 1024
"""The stored reason why a summary failed, in UTF-8."""
CARRIED_TOKENS_LEAST: Final = 64
"""Minimum number of tokens of another session that a request can carry over."""
CARRIED_TOKENS: Final = 32_000
"""Maximum tokens of another session that a request can carry over."""
CARRIED_PREFIX_CHARS: Final = 2000
"""The text placed before carried-over content."""
CARRIED_READ_TOKENS: Final = 100_000
"""Tokens that are read of the other session's newest messages, to summarize them for carry-over."""
CARRIED_READ_ENTRIES: Final = 5000
"""Messages that are read of the other session, to summarize them for carry-over."""
CARRIED_SECONDS: Final = 60.0
"""Longest time for a carry-over summary; after that, a digest is used instead."""
VIEWS_KEPT: Final = 16
"""Saved views (cached states of prompts) of a session that are kept when another view is saved. The oldest ones are deleted first."""
COMPACTIONS_KEPT: Final = 64
"""Stored compactions of a session that are no longer used: superseded, dropped or dead ones. The oldest are deleted first."""
FAILURES_KEPT: Final = 16
"""Stored failed attempts to compact a session."""
TENANTS: Final = 100
"""Other tenants whose caches a server keeps open in addition to its own tenant's. A tenant in use is never closed."""
HOOKS: Final = 64
"""Hooks that are notified of the end of a session."""
NOTIFIED_SESSIONS: Final = 1000
"""Sessions that hooks are notified of when the process ends: the sessions to which the process wrote last."""
CONFIG_BYTES: Final = 1 * MIB
"""A configuration file."""
CONFIG_DEPTH: Final = 32
"""Nesting depth of mappings and lists in a configuration file."""
CONFIG_VALUES: Final = 50_000
"""Values in a configuration file after its aliases are resolved: a few lines of aliases can expand to billions of values."""
DOTENV_BYTES: Final = 64 * 1024
"""A `.env` file."""
RECORDING_LINE_BYTES: Final = 64 * MIB
"""Longest line of a recording that `replay` plays."""
HISTORY_TURNS: Final = 10_000
"""Largest `max_history_turns`. Each working set is built from up to this many messages."""
ENDING_ERROR_CHARS: Final = 500
"""The recorded reason why a hook failed; longer texts are cut."""
WEBHOOK_BYTES: Final = 16 * MIB
"""Messages in one webhook call, as JSON. If a session has more, its newest messages that fit are sent."""
MARKS: Final = 1000
"""Message hashes that are looked up at once in the logs of a user's sessions."""
SIGHTINGS: Final = 64
"""Positions that are returned for one message hash, newest sessions first."""
COMPARED_SESSIONS: Final = 8
"""Sessions with equal messages that are searched for a request with an idempotency key."""
RETRY_MILLISECONDS: Final = 600_000
"""Milliseconds for which the repetition of a request without a key is known, if its client says that it repeats it."""
KEY_MILLISECONDS: Final = 7 * 86_400_000
"""Milliseconds for which the key of a turn stays known after its session is gone."""
INTERRUPTED_BEHIND: Final = 1000
"""Maximum number of messages that may follow a reply that is still to be interrupted: the interruption writes them again."""
REPLACED_BEHIND: Final = 1000
"""Entries that may follow a message that is replaced: the replacement writes them again."""
REPLACED_BEHIND_BYTES: Final = 32 * MIB
"""Their messages, as JSON."""
TURNS_WAITING: Final = 256
"""Turns of a session that wait in one process for the running turn; further turns are refused."""
FALLBACKS: Final = 16
"""Fallback models of a model."""
MODEL_EVENT_BYTES: Final = 16 * MIB
"""One event of a model's stream, or a whole reply that is not streamed. A generated image in base64 fits."""
HOSTED_ITEM_BYTES: Final = MIB // 4
"""Call of a tool that ran at the provider, with its result. Of a larger one, only type, id and status are stored."""
MODEL_STREAM_BYTES: Final = 128 * MIB
"""Everything that an upstream sends for one reply, including the JSON around each chunk."""
MODEL_REPLY_BYTES: Final = 24 * MIB
"""Content of a reply as JSON: its text, its reasoning and the arguments of its calls. A stored message may have `MESSAGE_BYTES`."""
MODEL_REPLY_PARTS: Final = 4_000
"""Choices, tool calls and blocks of one reply, counted together."""
MODEL_TRAILING_CHUNKS: Final = 1_000
"""Chunks of a reply that may arrive before its first word, and as many after its end."""
UPSTREAMS: Final = 1000
"""Upstreams whose health a process records."""
MODELS_LEARNED: Final = 1000
"""Models whose calibration a process caches. The least recently used one is evicted, and read again when needed."""
MEDIA_LEARNED_SECONDS: Final = 3600
"""Seconds for which a process remembers from a refusal that a model takes no media of a kind, or fewer of them."""
COOL_DOWN_FIRST_SECONDS: Final = 5.0
"""Seconds for which a failed upstream is skipped, if it has a fallback. Each further failure in a row doubles the time."""
COOL_DOWN_SECONDS: Final = 300.0
"""Longest time for which a failed upstream is skipped, unless the upstream itself asks for more."""
COOL_DOWN_ASKED_SECONDS: Final = 3600.0
"""Longest time to be skipped that an upstream may ask for."""
TRANSFERS: Final = 10
"""Times that a conversation may be transferred between agents in one turn. After that, the current agent answers."""
AGENT_DEPTH: Final = 5
"""Nesting depth of agents that call each other as tools. An agent at this depth must answer itself."""
SPEAKER_BEHIND: Final = 1000
"""Newest messages that are searched for the last agent's message, to decide which agent answers next.

If none has one, the session's own agent answers.
"""
TOOL_THREADS: Final = 64
"""Plain functions that run as tools at the same time in a process. Others wait, and their waiting counts toward their time limit."""
TOOL_GRACE_SECONDS: Final = 5.0
"""Seconds that a tool gets to end after its client has disconnected."""
PYTHON_CODE_BYTES: Final = 1 * MIB
"""Code of one call of the `python` tool."""
PYTHON_CALLS_WAITING: Final = 16
"""Calls of the `python` tool in a session that wait for the running call; further calls get an error."""
PYTHON_START_SECONDS: Final = 30.0
"""Longest time for the process of the `python` tool to start and to restore files of earlier calls."""
PYTHON_KEEP_SECONDS: Final = 60.0
"""Longest time for storing the files of one call of the `python` tool as artifacts."""
PYTHON_RESTORED: Final = 100
"""Files of earlier calls that are restored in the work folder of a new `python` process, newest first."""
PYTHON_RESTORED_BYTES: Final = 64 * MIB
"""Total size of the files that are restored for a new `python` process."""
PYTHON_LOOKED_BACK: Final = 1000
"""Newest messages of a session that are searched for earlier `python` calls when the process starts."""
INSTRUCTED_ARTIFACT_BYTES: Final = 64 * 1024
"""Largest artifact whose text an instruction may include."""
LOADED_IMAGE_BYTES: Final = 4 * MIB
"""Largest image that a model sees when it loads an artifact."""
LISTED_ARTIFACTS: Final = 200
"""Artifacts in one list for a model."""
ARTIFACTS_NAMED: Final = 20
"""Artifact names in a reply that are looked up."""
ARTIFACTS_TOLD: Final = 200
"""Artifacts that the response to a turn lists, including those that the turn saved."""
MEMORY_BYTES: Final = 32 * 1024
"""A memory as JSON."""
MEMORY_TAGS: Final = 32
"""Tags of one memory."""
MEMORY_TAG_CHARS: Final = 64
"""Characters of one tag."""
MEMORY_SOURCES: Final = 50
"""Sources that are kept of a memory, the newest ones. A source is a session with the entries in it."""
MEMORY_CHARS: Final = 8_000
"""Characters of the content of a memory."""
RECALLED_MEMORIES: Final = 100
"""Memories that one recall returns."""
MEMORIES_AT_HAND: Final = 20_000
"""Memories that a process caches: promoted ones, and, without an index, the terms of all."""
SIGNALS_WAITING: Final = 10_000
"""Recall events that wait in a process to be stored; the oldest are dropped."""
LOOKED_BACK: Final = 2_000
"""Newest entries of a session in which the origin of a new memory is looked for."""
MEMORIES: Final = 10_000
"""Memories of one owner, whatever their status."""
MEMORIES_AT_ONCE: Final = 200
"""Memories that one write stores or forgets."""
SIGNALS_KEPT: Final = 200
"""Recall events that are stored per memory, the newest ones."""
DIARY_KEPT: Final = 400
"""Consolidation sweeps per owner that the diary keeps, the newest ones."""
INDEX_SECONDS: Final = 10.0
"""Seconds that an indexer has to finish when a `Holdfast` closes."""
INDEX_DELAY_SECONDS: Final = 5.0
"""Longest wait before new messages are indexed. Turns come first, and several messages are written together."""
INDEX_WAIT_SECONDS: Final = 2.0
"""Longest wait of an erasure or deletion for the index. After that, the index removes the text later."""
INDEX_FRESH_SECONDS: Final = 1.0
"""Longest wait of a search until its user's newest messages are indexed."""
INDEX_AT_ONCE: Final = 2
"""Sessions of a tenant that a process indexes at the same time. Of other sessions, only the names are queued."""
INDEX_WAITING: Final = 100_000
"""Sessions that a process queues for indexing, and as many owners of searchable records; the next backfill finds the others."""
INDEX_PAGE: Final = 64
"""Entries of a session that are read and indexed at a time."""
INDEX_TERMS: Final = 20_000
"""Terms in one write to the index."""
INDEX_INLINE_CHARS: Final = 4_000
"""Longest text that is analysed on the event loop; a longer one is analysed in a thread."""
INDEX_PAUSE_SECONDS: Final = 60.0
"""Longest pause before failed indexing or embedding is tried again."""
INDEX_FIRST_WALK_SECONDS: Final = 1.0
"""Seconds after a process starts until its first backfill, which finds sessions that changed while no process was indexing."""
INDEX_WALK_SECONDS: Final = 300.0
"""Seconds between two backfills of what changed since the last one."""
INDEX_MARGIN: Final = 600_000
"""Milliseconds by which the clocks of servers may differ. A backfill starts that much earlier than the end of the last one."""
INDEX_WHOLE_WALK: Final = 7 * 86_400_000
"""Milliseconds between two full backfills, which look at all sessions and at everything that is indexed."""
EMBEDDED_AT_ONCE: Final = 64
"""Texts that are embedded in one round."""
EMBEDDING_TRIES: Final = 3
"""Failed attempts to embed a text, after which it has no vector until the process restarts."""
EMBEDDING_FAILURES: Final = 1000
"""Texts without a vector because of failed attempts. When a process has this many, it stops embedding."""
VECTOR_NUMBERS: Final = 8192
"""Maximum number of dimensions of a vector."""
EMBEDDING_BATCH_BYTES: Final = 512 * 1024
"""Texts in one call of an embeddings endpoint, in UTF-8. A single text above this size is sent alone."""
EMBEDDING_ANSWER_BYTES: Final = 64 * MIB
"""Response of an embeddings endpoint."""
EMBEDDINGS_REMEMBERED_BYTES: Final = 16 * MIB
"""Vectors that an embedder caches, so that the same text is not embedded again soon after."""
WORKSPACE_FILE_BYTES: Final = 1 * MIB
"""Largest workspace file that is committed. Larger files are left out, and the commit message names them."""
WORKSPACE_FILES: Final = 10_000
"""Files in a workspace that are not ignored by git."""
WORKSPACE_COMMIT_BYTES: Final = 256 * MIB
"""Total changed content in one commit."""
WORKSPACE_SUBJECT_CHARS: Final = 200
"""Subject of a commit; longer ones are cut."""
WORKSPACE_BODY_CHARS: Final = 8_000
"""Body of a commit; longer ones are cut."""
WORKSPACE_NAMED: Final = 20
"""Left-out files that a commit message names."""
WORKSPACE_HISTORY: Final = 100
"""Commits on one page of a workspace's history."""
WORKSPACE_DIFF_BYTES: Final = 256 * 1024
"""The part of a diff that is returned; of the rest, only the size is returned."""
GIT_SECONDS: Final = 20.0
"""Longest run time of the git program."""
WORKSPACE_WAIT_SECONDS: Final = 20.0
"""Longest wait of a commit for another commit of the same workspace, in any process."""
QUERY_CHARS: Final = 8_000
"""Characters of a query. If a message is the query of an automatic recall, this many of its characters are used."""
SEARCH_RESULTS: Final = 100
"""Hits on one page."""
SEARCH_NEIGHBOURS: Final = 10
"""Messages before a hit, and after it, that are returned with it."""
SEARCH_SNIPPET_CHARS: Final = 240
"""Characters of a snippet that people see; a model sees up to `RECALLED_CHARS` of a hit."""
SEARCH_VECTOR_SECONDS: Final = 5.0
"""Longest wait of a search for the vector of its query. After that, it searches by words, if it may."""
RERANK_TEXTS: Final = 50
"""Hits of a search that a reranker receives. The resulting order is stored in the cursor of each hit."""
RERANK_CHARS: Final = 2_000
"""Characters of each hit that a reranker receives, around the best match."""
RERANK_QUERY_CHARS: Final = 1_000
"""Characters of the query that a reranker receives, from its beginning."""
RERANK_ANSWER_BYTES: Final = 4 * MIB
"""Response of an HTTP reranker."""
RECALLED_CHARS: Final = 1_200
"""Characters of a hit that a model receives, before the hit is cut to its token budget."""
RECALL_SECONDS: Final = 1.0
"""Longest wait of a turn for recall; after that, the turn continues without recalled content."""
RECALL_TOKENS: Final = 500_000
"""Stored tokens of the newest messages of a session that recall ranks. After a restart, analysing them takes seconds."""
RECALL_VECTOR_SECONDS: Final = 0.6
"""The part of `RECALL_SECONDS` that the vector of the query may take."""
RECALL_FRESH_SECONDS: Final = 0.1
"""The part of `RECALL_SECONDS` for which recall waits until the user's newest messages in other sessions are indexed."""
ANALYSIS_CACHE_BYTES: Final = 33_554_432
"""Cached analyses of messages for digests and standing facts: enough for some 80 sessions of 50,000 tokens each."""
SNIPPET_CHARS: Final = 200_000
"""Characters of a hit that are searched for its snippet. Of a longer hit, the head and the tail are searched."""
SNIPPET_WORDS: Final = 1_000
"""Words that are stemmed of a hit longer than `SNIPPET_WHOLE_CHARS`."""
SNIPPET_WHOLE_CHARS: Final = 8_000
"""Characters of a hit up to which every word is stemmed. Of a longer hit, only words that begin like a word of the query are stemmed."""
SEARCH_CHARS: Final = 2_000_000
"""Characters that one search reads for all its snippets. The hits after that show their beginning."""
SEARCH_WORDS: Final = 20_000
"""Words that one search stems for all its snippets."""
SEARCH_INLINE_CHARS: Final = 4_000
"""Total characters of hits that are analysed on the event loop; if there are more, they are analysed in a thread."""
INLINE_MESSAGES: Final = 500
"""Messages that are read, converted or written on the event loop; larger numbers are processed in a thread."""
INLINE_BODY_BYTES: Final = 16 * 1024
"""Largest request body whose messages are read on the event loop; those of a larger body are read in a thread."""
CPU_THREADS: Final = 4
"""Threads for CPU work, shared by all principals.

CPU work is counting tokens, building prompts, analysing texts and reading large bodies.
"""
CPU_THREADS_OF_TENANT: Final = 3
"""CPU threads that all principals of one tenant use together."""
CPU_THREADS_OF_PRINCIPAL: Final = 2
"""CPU threads that one principal uses."""
MCP_TOOLS: Final = 500
"""Tools that are offered of one MCP server."""
MCP_SCHEMA_BYTES: Final = 64 * 1024
"""Argument schema of an MCP tool, as JSON; a tool with a larger schema is left out."""
MCP_DESCRIPTION_CHARS: Final = 8_000
"""Description of an MCP tool; longer ones are cut."""
MCP_MESSAGE_BYTES: Final = 16 * MIB
"""One message of an MCP server, usually a result with media in base64. A larger message closes the connection."""
MCP_MEDIA: Final = 20
"""Images, recordings and files of one MCP result that are stored as artifacts."""
MCP_CALLS: Final = 8
"""Calls of the MCP server that run for one principal at the same time. More calls wait."""
MCP_CALLS_WAITING: Final = 64
"""Calls of the MCP server that wait for one principal. More are refused."""
MCP_CALL_SECONDS: Final = 60.0
"""Seconds that one call of the MCP server may take, without the time that it waits for others."""
MCP_READ_TOKENS: Final = 32_000
"""Maximum tokens of a session that one call of the MCP server returns."""
MCP_RESULTS: Final = 20
"""Memories or hits that one call of the MCP server returns."""
MCP_SNIPPET_CHARS: Final = 600
"""The part of a message that a search over MCP shows."""
MCP_NOTE_CHARS: Final = 8_000
"""Characters of a note that an assistant appends over MCP."""
MCP_PAGE: Final = 50
"""Sessions or resources on one page of the MCP server."""
PATTERN_CHARS: Final = 10_000
"""Longest custom pattern for finding secrets."""
PATTERNS: Final = 100
"""Number of custom patterns."""
PATTERN_PROBE_SECONDS: Final = 0.5
"""Seconds that a custom pattern may take for a simple text of 1,000 characters; a slower pattern is refused at startup."""
PATTERN_SECONDS: Final = 1.0
PATTERN_SECONDS_A_MIB: Final = 2.0
"""Seconds per MiB that a custom pattern may take for any text, in addition to `PATTERN_SECONDS`.

After that, the whole text counts as a match.
"""
LEARNED_BYTES: Final = 64 * 1024
"""Stored calibration of one model, per tenant."""
ACTIVITY_STEPS: Final = 300
"""Steps of time whose activity a process keeps while the store cannot be written. The oldest ones are dropped first."""
SORTED_SESSIONS: Final = 500
"""Newest sessions among which a list sorts by another column than the last use."""
COMPACTION_TEXT_CHARS: Final = 48 * 1024
"""Longest text of a compaction item. Of a longer one, the middle is left out."""
COMPACTION_TEXT_ENTRIES: Final = 200
"""Newest messages after the summary whose text a compaction item has."""
LEARNED_MODELS: Final = 1000
"""Models whose calibration a tenant stores. The one written longest ago is deleted first."""
ARTIFACT_NAME_BYTES: Final = 255
"""Longest artifact name in UTF-8, without the prefix `user:`."""
ARTIFACT_NAMES: Final = 1000
"""Artifact names in a session; the same limit applies to the artifacts that a user's sessions share."""
ARTIFACT_VERSIONS: Final = 1000
"""Versions of one artifact."""
ARTIFACTS: Final = 10_000
"""Versions of all artifacts in a session; the same limit applies to the artifacts that a user's sessions share."""
ARTIFACT_METADATA_BYTES: Final = 16 * 1024
"""Metadata of one artifact version, as JSON."""
ARTIFACT_BYTES: Final = 64 * MIB
"""Largest artifact, unless `storage.artifacts.max_bytes` is set."""
ARTIFACTS_BYTES: Final = 1024 * MIB
"""Total size of a session's artifacts, and of those that a user's sessions share, unless `storage.artifacts.max_total` is set."""
BLOB_PART_BYTES: Final = 1 * MIB
"""The part of an artifact's content in one row, if the database stores the content."""

# -- fixed, enforced by `holdfast.connect` --------------------------------------

CONNECT_SECONDS: Final = 5.0
"""Longest wait for a connection to the server."""
CONNECT_CALL_SECONDS: Final = 120.0
"""Longest time of a call with all its tries and pauses, unless `timeout` is set."""
CONNECT_RETRIES: Final = 4
"""Retries of a call, unless `max_retries` is set."""
CONNECT_ANSWER_BYTES: Final = 256 * MIB
"""Largest answer of the server that is read."""
CONNECT_PAGE: Final = 200
"""Messages, versions or artifacts that one request of `holdfast.connect` reads; longer lists take several requests."""

# -- fixed, enforced by the command line ---------------------------------------

IMPORT_LINE_BYTES: Final = 256 * MIB
"""Longest line of an imported file. A line is one session; longer lines are not read to their end."""
IMPORT_VALUES: Final = 8_000_000
"""Keys and values in one line of an imported file."""

# -- fixed, of requests, explanations and views of sessions -------------------

DEPTH: Final = 64
"""Nesting depth of objects and lists in a request body."""
VALUES: Final = 1_000_000
"""Keys and values in a request body: a few bytes of JSON can take hundreds in memory."""
PREVIEWED_SESSIONS: Final = 1_000
"""Sessions that a dry run of such a request counts, and expired and closed sessions that a preview of the retention examines."""
DELETIONS: Final = 10_000
"""Deletions of each kind that the journal of a tenant keeps. The oldest are dropped."""
CALL_LOOKBACK: Final = 256
"""Newest messages that are searched for the call that a late tool result answers."""
TURN_WARNINGS: Final = 20
"""Warnings in the response to a turn; further warnings are neither returned nor logged."""
REFUSED_A_TURN: Final = 8
"""Messages that one turn leaves out because the provider refused them. After that, the client gets the error."""
SYSTEM_IN_FORCE: Final = 16
"""Consecutive system messages inside a log that stay in prompts together. Of a longer series, the newest stay."""
VIDEO_FRAMES: Final = 8
"""Frames that are sent of a video as images, at even distances, to a model that accepts images but not videos."""
LEFT_OUT_EXPLAINED: Final = 100
"""Newest messages, per agent and its settings, for which `explain` knows why they are left out of every prompt.

It reports older ones as evicted or compacted.
"""
EXPLAIN_MATCHES: Final = 50
"""Messages in one explanation."""
EXPLAIN_QUERY_CHARS: Final = 200
"""The text that explained messages must contain."""
EXPLAIN_SCANNED: Final = 10_000
"""Messages of a session that one explanation searches for the text of its query. The next page continues the search."""
EXPLAIN_REBUILT: Final = 5_000
"""Messages of a session up to which other settings are tried for its prompts, because that reads the whole log."""
EXPLAIN_REBUILT_TOKENS: Final = 1_000_000
"""Tokens of a session up to which other settings are tried for its prompts."""
EXPLAIN_CHARS: Final = 200_000
"""Characters of a message, from its beginning, whose sentences are searched for in digests and other generated blocks."""
EXPLAIN_PHRASES: Final = 500
"""Sentences or values of a message that are searched for in digests and other generated blocks."""
EXPLAIN_EXCERPTS: Final = 20
"""Excerpts of a message, found in a prompt, that are returned."""
EXPLAIN_TEXT_CHARS: Final = 200
"""Characters of an explained message that are returned."""
PROMPT_LOG: Final = 200
"""Messages of the log that one view of a prompt marks."""
PROMPT_TEXT_CHARS: Final = 4_000
"""Characters of a marked message that are returned."""
PROMPT_CHANGES: Final = 200
"""Messages that differ from the previous prompt and are listed in one view of a prompt."""
FACT_PINS: Final = 100
"""Pinned standing facts of a session."""
FACT_DROPS: Final = 500
"""Dropped standing facts of a session."""
ERROR_CHARS: Final = 2000
"""Longest error message, which may quote the request."""
BODY_BYTES: Final = 32 * MIB
"""Default of `gateway.max_body`: a request body."""
MEDIA_BYTES: Final = 20 * MIB
"""Default of `gateway.max_media`: one image, recording, video or file in a request."""
REQUEST_MESSAGE_BYTES: Final = 16 * MIB
"""One message in a request, without its media. The store never accepts more than `MESSAGE_BYTES`."""
REQUEST_MESSAGES: Final = 100_000
"""Messages in one request: a transcript, an append or an import."""
REQUEST_TOOLS: Final = 1000
"""Tools in one request."""
REQUEST_MEDIA: Final = 100
"""Images, recordings, videos and files in one request."""
MESSAGE_PARTS: Final = 1000
"""Parts of one message's content."""
MESSAGE_CALLS: Final = 1000
"""Tool calls of one message."""
IMAGE_PIXELS: Final = 100_000_000
"""Width times height of an image, read from its header; nothing is decoded."""
SPEECH_BYTES: Final = 16 * 1024
"""Text in UTF-8 that the client asks an agent to speak."""
UPSTREAM_CONNECT_SECONDS: Final = 10.0
"""Seconds for connecting to a model."""
UPSTREAM_CALL_SECONDS: Final = 1800.0
"""Seconds of a whole model call, unless the model's `timeout` is longer."""
