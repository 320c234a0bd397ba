"""Cost of answers, in integers of 10⁻⁹ USD, from token counts and prices.

cost          `TargetPrice`: prices of one model, ready for arithmetic; `Cost`: an amount, its kind and source
prices        `PriceTable`: finds the price of every configured model, in the order of sources
price_file    `PriceFile`, `PriceRow`: the format of price files; reads, checks and writes them
price_report  rows and problems as the command line and the admin API show them
litellm       converts LiteLLM's price table
prices.json   the price file of the package, with source and date of every row
"""
