"""The other side: who is reached, how, and with which quirks.

catalog    presets of well-known providers: rows of data
upstream   Upstream: one configured provider, ready to send to
http       the HTTP client all of them share
demo       the built-in scripted provider
"""
