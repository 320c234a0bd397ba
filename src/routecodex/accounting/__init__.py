"""Who uses the gateway, and what it costs: clients and teams, prices and costs, the usage ledger.

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
ledger_schema    the tables, and the statements that fill them
ledger_query     figures by any name, over any time
figures          `Figures`: sums of requests, tokens and costs
usage_report     questions about usage and their answers, for the command line and the admin API
prices.json      the price file of the package, with source and date of every row
"""
