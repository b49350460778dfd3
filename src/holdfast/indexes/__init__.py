"""The index service: an index that follows what is written, off every turn's path, and can be rebuilt at any time.

settings     which index, and where it is stored
tenants      the indexes of all tenants of a process
lazy_index   an index that opens on first use, and its file
service      the index of one tenant, and the store that reports every write to it
sources      a session, brought up to its log; sessions that wait; marks that survive a crash
memories     an owner's memories, brought up to the store
documents    entries and memories as documents
tombstones   what tells other indexes that something was removed
backfill     find what was not reported
rebuild      all of it again, and the report on an index
embeddings   vectors for what has none
throttle     how fast, and which process
"""
