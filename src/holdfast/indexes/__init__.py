"""The index service: an index that follows the log in the background and can be rebuilt at any time.

settings     which index, and where it is stored
tenants      the indexes of all tenants of a process
lazy_index   an index that opens on first use, and its file
service      the index of one tenant, and the store that reports every write to it
sources      sessions brought up to date with their logs; the queue of sessions; marks that survive a crash
memories     memories of an owner brought up to date with the store
documents    entries and memories as documents
tombstones   marks that tell other indexes about removals
backfill     walks that find changes nothing has reported
rebuild      rebuilds, and the report on an index
embeddings   vectors for documents that have none
throttle     speed limits, and leases between processes
"""
