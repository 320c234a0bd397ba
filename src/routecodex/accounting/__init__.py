"""Clients and teams, prices and costs, the usage ledger, limits.

clients          `Client`, `Team`, `ClientTable`: whose a key is and what its client may do; pure
client_store     `ClientDirectory`: clients of file and store, kept up to date; makes and changes them
client_settings  `ClientSettings`: checks and applies settings of run-time clients
client_calls     `ClientCalls`: the calls of the admin API on clients, from JSON to JSON
client_report    clients and teams as they are shown; `LimitUse` supplies what is used of limits
client_use       `ClientUse`: last use and running requests of clients
litellm_keys     converts LiteLLM's list of keys
timestamps       times and durations, as they are written and shown
cost             `TargetPrice`: prices of one model for arithmetic; `Cost`: an amount, its kind and source
prices           `PriceTable`: finds the price of every configured model, in the order of sources
price_file       `PriceFile`, `PriceRow`: the format of price files; reads, checks and writes them
price_report     rows and problems as the command line and the admin API show them
litellm          converts LiteLLM's price table
ledger           `Ledger`: collects the requests of one worker and writes them, many at once
ledger_file      `LedgerFile`: the SQLite file, its totals, and what happens if it is damaged or locked
ledger_process   `LedgerProcess`: a process that writes the batches of a flood
ledger_schema    the tables
ledger_totals    the statements that fill the tables of totals
ledger_query     figures by any name, over any time
local_days       `DayOffsets`: days of a time zone in terms of UTC
limits           `Limit`: a limit of a client, team or provider key, ready for counting
limit_table      `LimitTable`: finds the limits of clients and teams; `CountedUse`: their use, for people
windows          arithmetic of calendar periods and rolling windows; time is an argument
counters         `LimitCounters`: the contract of counters; reservations, refusals, figures
shared_counters  `SharedCounters`: counters in a file that all processes of a machine share
stored_counters  `StoredCounters`: counters in a store that several machines share
limit_changes    `LimitChanges`: atomic changes of limits in that store, joined while one is under way
stored_limit     `LimitState`, `StoredLimit`: a limit in that store, and what a step does with it; pure
counter_file     `CounterFile`: that file: its lock, its slots, a row for each process
limit_packing    `PreparedLimits`: limits of the usual request, packed for limit_steps, which C replaces
limit_slot       `LimitSlot`: the place of a limit in the file
running_requests `RunningRequests`: how many requests of a client run in all workers
ledger_use       `LedgerUse`: what the usage ledger knows of a limit
ledger_requests  pages of requests, groups by session; ledger_filter: `RequestFilter`
ledger_series    figures over time; first_bytes: times to the first byte in buckets
ledger_keys      figures of keys; ledger_shares: shares of targets
figures          `Figures`: sums of requests, tokens and costs
usage_report     questions about usage and their answers, for the command line and the admin API
prices.json      the price file of the package, with source and date of every row
"""
