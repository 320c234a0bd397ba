"""The other side: who is reached, how, and with which quirks.

catalog    presets of well-known providers: rows of data
upstream   Upstream: one configured provider, ready to send to
veil       Veil: hides what is secret of a provider in what is told of it
http       the HTTP client all of them share
demo       the built-in scripted provider
"""
