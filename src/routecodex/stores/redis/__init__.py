"""A store in Redis or Valkey; imported only where a URL asks for it, because redis-py is an optional package.

store         RedisStore: the store; every change is one script
scripts       the scripts, in Lua
key_names     KeyNames, Stripe: names of the keys, spread over a cluster
options       RedisOptions: where the store is and how it is used
clients       makes the clients of redis-py
call_batches  CallBatches: sends calls of one turn of the event loop together
link          RedisLink: calls with a time limit, and the server's clock
circuit       Circuit: judges whether Redis can be used
failures      translates the errors of redis-py
stamp_table   StampTable: the stamps that this process knows
change_watch  ChangeWatch: hears of changes, and checks that none was missed
listing       lists and trims a space
kept_values   KeptValues, KeyLocks: what makes a change one call
groups        RedisGroups: changes several values at once
process_rows  RedisProcessRows: one row of every process, for figures that people look at
undo_list     UndoList: writes whose fate is not known
"""
