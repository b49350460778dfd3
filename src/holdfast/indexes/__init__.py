"""Keep search indexes up to date with the stored sessions and memories, in the background.

settings     the settings of an index, and its URL
tenants      manage the indexes of all tenants of a process
lazy_index   open an index on first use; its file
service      keep the index of one tenant up to date; a store wrapper that reports each write to it
sources      index a session from its log; the queue of sessions to index; marks that survive a crash
memories     index an owner's memories from the store
documents    convert entries and memories to documents of an index
tombstones   announce removals of data to the indexes of other processes
backfill     find and index changes that were not reported
rebuild      rebuild an index, and report on its state
embeddings   make vectors for documents that have none
throttle     limit the speed of indexing; leases, so that only one process does it
"""
