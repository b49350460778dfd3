"""The index service: an index that follows the log in the background and can be rebuilt at any time.

settings     which index, and where it is stored
tenants      the indexes of all tenants of a process
lazy_index   an index that opens on first use, and its file
service      the index of one tenant, and the store that reports every write to it
sources      updates of sessions from their logs; the queue of sessions; marks that survive a crash
memories     updates of an owner's memories from the store
documents    entries and memories as documents
tombstones   marks that announce removals to other indexes
backfill     walks over all sessions that find unreported changes
rebuild      rebuilds, and the report on an index
embeddings   vectors for documents that have none
throttle     speed limits, and leases between processes
"""
