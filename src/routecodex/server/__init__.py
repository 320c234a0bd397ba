"""The server: HTTP in, endpoints, admin API, logs and metrics.

http           the HTTP/1.1 server
app            the endpoints, from an HTTP request to the gateway and back
error_replies  errors in the client's protocol, and records of responses without a provider
paths          the table of paths
serve          one server process: start, drain, stop
directories    where a server keeps its state
workers        several processes on one port
descriptors    the limit of open files, and what it allows
admission      the queue for requests beyond the limit, with a fair turn for every client
access         client keys, admin token, Host names
origins        web pages that may call the gateway, and their CORS headers
admin          the admin API
admin_query    its query parameters
admin_clients  its calls on clients and teams
announce       the file by which a running server is found, and its admin token
reload         reloads a changed configuration while running
access_log     one log line per request
request_log    past requests, in files of bounded size
logs           logging set-up, and the fields of a request's line
log_numbers    times and durations in log lines
ledger_rows    rows of the usage ledger
metrics        counters and histograms for Prometheus
usage_metrics  metrics of tokens, costs and clients
state_metrics  metrics of keys in cooldown, breakers, the store and the usage ledger
"""
