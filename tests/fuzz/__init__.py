"""Fuzzing: inputs that nobody thought of, against what must hold for every input.

    python -m tests.fuzz --seconds 60            all targets, with a new seed, which is printed
    python -m tests.fuzz --seed 7 requests sse   some targets, with a seed again

mutate       changes a seed: bytes, JSON values, texts
corpus/      seeds that are kept, one directory per target; a finding becomes one
targets      what is fuzzed, and what must hold
processes    the same input in a process of the sources and in one of the build
translations answers of a provider as a client gets them
readings     how the HTTP readers read bytes, as values that can be compared
exchanges    a gateway with four providers, and what it does with one request
"""
