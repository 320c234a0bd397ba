"""State that outlives a request: one small interface, several homes.

store    Store, Stored, StoreError, Conflict: the interface and what its calls mean
memory   MemoryStore: gone when the process ends
file     FileStore: readable JSON files, safe with several processes
folder   Folder: one space of a FileStore on disk, its lock and its damaged files
names    file names for hostile keys, and the time stamps that order and expire the files
open     `open_store(url, …)`: the store a configuration names
"""
