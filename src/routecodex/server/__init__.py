"""HTTP in.

http        the HTTP/1.1 server itself
app         the endpoints: which path is what, who may call it, how errors look
paths       the table of paths, prefixes allowed
call        one call as the endpoints see it
arrays      streams of Gemini that are one JSON array
serve       a gateway on a socket: start, drain, stop; several workers on one port
heap        memory of large requests, kept for the next ones
workers     several processes that share one port
access      who may call: client keys, the operator's token, Host names
admin       the admin API: what an operator sees and changes of a running server
announce    how a running server is found, and its admin token
reload      a changed configuration, taken up while running
access_log  the line per request
figures     moments and durations in the digits of a log line
request_log the requests of the past, in files of bounded size
metrics     counters and histograms for Prometheus
logs        logging set-up, and what is told of a request
"""
