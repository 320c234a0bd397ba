"""The four protocols, each a codec: decode and encode of request, answer, stream and error.

codec         the contract: Codec, Inbound, Aim, Encoded, ReplyTo, Outcome, Pipe
chat · responses · messages · gemini
translation   a decoder and an encoder joined by events
foreign       parts of an answer that only its provider's protocol has
dialect       how one upstream deviates from its protocol, as data
tools         namespaced and custom tools told to protocols that have none
seals         signatures that cross protocols
failures      a provider's refusal as a typed error
repeats       the same frames, taken many at once for their texts
runs          texts that follow each other, told and written together
splice        a body with its model replaced and nothing else
notices       what could not be said in the other protocol
glance, words what the `look` of every codec is made of
codecs        CODECS: the codecs by name
"""
