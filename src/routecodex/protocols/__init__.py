"""The four protocols, each with a codec: requests, answers, streams and errors, in both directions.

codec              the contract of a codec, and the types that pass through it
codecs             CODECS: the four codecs by name
chat, responses, messages, gemini
relay              skeleton of a relay: the stream of an upstream for a client of the same protocol
translation        converts a stream between protocols: decoder, events, encoder
text_batches       reads and writes many text frames at once
dialect            deviations of one upstream from its protocol, as data
tool_mapping       maps namespaced and custom tools to protocols that lack them
tool_schemas       rewrites tool schemas with anyOf, oneOf or allOf at their root
billing_header     removes Claude Code's billing header from system text
sealed_signatures  seals a signature with its provider's name, so that it returns only there
upstream_errors    maps a provider's error response to a typed error
lost_fields        fields that another protocol does not have
loss_samples       sample requests with every field that another protocol may lack
reference          writes the tables of lost fields in docs/protocols.md
message_features   reads author, user text, images and searches from messages
grammar            rules for every stream, body and error that a client is served
user_text          finds and replaces user-written texts in a request
requested_output   the most output that a request asks for
control_fields     control fields of a body: session, conversation, route hints
large_body         edits a large body without decoding it
"""
