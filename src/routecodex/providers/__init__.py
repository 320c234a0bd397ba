"""Providers: presets, configured upstreams, the HTTP client to reach them, the built-in demo.

catalog       presets of well-known providers, from the rows of presets.json
known_models  models of presets, with their sizes
recommended_models  models to start with at each preset
model_facts   sizes and abilities of models by name, from the rows of model_facts.json
model_listing list_models: the models that a provider lists itself
deviations    deviations of presets from their protocols
upstream      Upstream: one configured provider; SecretRedactor: keeps its keys out of errors
rate_limit_headers  what providers say is left of the limits of a key
http          the HTTP/1.1 client that all upstreams share
demo          the built-in scripted provider
"""
