"""State that outlives a request: one small interface, several homes.

store     Store, Stored, StoreError, Conflict: the interface and what its calls mean
memory    MemoryStore: gone when the process ends
file      FileStore: readable JSON files, safe with several processes
folder    Folder: one space of a FileStore on disk, its lock and its damaged files
disk      what the operating system does for it, and its errors with the way out
envelope  what a file holds: the value with its version, expiry and key
names     file names for hostile keys, and the time stamps that order and expire the files
open      `open_store(url, …)`: the store a configuration names
"""
