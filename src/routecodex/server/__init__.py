"""HTTP in.

http        the HTTP/1.1 server itself
app         the endpoints: which path is what, who may call it, how errors look
paths       the table of paths, prefixes allowed
serve       a gateway on a socket: start, drain, stop; several workers on one port
metrics     counters and histograms for Prometheus
logs        logging set-up and the line per request
"""
