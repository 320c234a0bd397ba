"""The server: HTTP in, endpoints, admin API, logs and metrics.

http           the HTTP/1.1 server
app            the endpoints, from an HTTP request to the gateway and back
json_array_reply  streams for Gemini clients without SSE
error_replies  errors in the client's protocol, and records of responses without a provider
paths          the table of paths
serve          the server in one process: start, reload, drain, stop
process        runs it: signals, logs, memory
directories    where a server keeps its state
orphans        reaps dead processes where the gateway is process 1
workers        several processes on one port
descriptors    the limit of open files, and what it allows
admission      the queue for requests beyond the limit, with a fair turn for every client
access         client keys, Host names, callers of this machine
origins        web pages that may call the gateway, and their CORS headers
admin          the admin API
admin_calls    the table of its calls: least role, parameters, answer
admin_service  admits callers, makes calls, logs writes; admin_batch: several reads in one call
admin_access   the admin token, the console's cookie, roles, pages
admin_login    logins of the console
login_tokens   logins and one-time codes as signed texts; login_state: what the store keeps of them
openapi        describes the admin API
other_servers  calls for another server, or for all; server_directory: which there are
admin_forward  sends a call on to another server; admin_merge: merges the answers of all
events         the event stream of the console
console_pages  the files of the console at /ui/
admin_query    its query parameters
admin_clients  its calls on clients and teams
admin_requests its calls on requests; request_source, request_rows, request_details: where they come from
admin_series   figures over time
admin_sessions its calls on sessions; session_scopes: sessions as it names them
admin_providers  keys and trial requests; admin_routes: the routing table
admin_explain  plans of requests; admin_config: the configuration
admin_captures its calls on captured requests, replay and the playground
console_requests  requests that the console makes as a client
captured_calls handlers of endpoints whose requests may be captured
recorded_connection  the connection of a client whose response is captured
captures       captured requests on disk
capture_document  a capture as JSON
capture_redaction  removes secrets from captures
announce       the file by which a running server is found, and its admin token
reload         reloads a changed configuration while running
access_log     one log line per request
request_log    past requests, in files of bounded size
logs           logging set-up, and the fields of a request's line
log_numbers    times and durations in log lines
ledger_rows    rows of the usage ledger
usage_service  the usage ledger of a process
worker_peers   questions between the workers of a server
traces         traces of this process, and their metrics
request_spans  spans of finished requests
trace_content  messages of requests and answers as attributes of spans
metrics        counters and histograms for Prometheus
usage_metrics  metrics of tokens, costs and clients
limit_metrics  metrics of limits
state_metrics  metrics of keys in cooldown, breakers, the store and the usage ledger
"""
