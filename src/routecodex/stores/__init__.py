"""State that outlives a request: one small interface, several homes.

store    Store, Stored, Conflict, Full: the interface and what its calls mean
memory   MemoryStore: gone when the process ends
file     FileStore: readable JSON files, safe with several processes
open     `open_store(url, …)`: the store a configuration names
"""
