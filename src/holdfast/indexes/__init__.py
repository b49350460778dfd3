"""Keep search indexes up to date with the stored sessions, memories and searchable records, in the background.

An index has a *document* for each message, memory or record that can be found. A *source* is one session in the index, all memories of
one owner, or all searchable records of one owner; the index stores for each source up to which version it is indexed. A *space*
contains the sources of one user's conversations, the memories of one owner, or the records of a user and of the user's sessions. An *owner* of memories is a user, an agent, or an app. The *log* is the stored list
of a session's entries, that is messages and notes; the position of an entry in the log is its `seq`. A *walk* searches for changes that
were not reported to the index.

settings      the settings of an index, and its URL
tenants       manage the indexes of all tenants of a process
lazy_index    open an index on first use; its file
service       keep the index of one tenant up to date
indexed_store a store wrapper that reports each write to the index
source_queue  the queue of sources to index
sources       read from the store what has changed in a source
documents     convert entries, memories and records to documents of an index
updates       bring the documents of a source up to date
scan          find changes that were not reported; rebuild an index
report        what the index tells about itself
embeddings    make vectors for documents that have none
throttle      limit the speed of indexing; leases, so that only one process works on an index at a time
"""
