"""Types that every layer shares; this package imports no other package of the project.

parts        content parts of messages: Text, Media, ToolCall, ToolResult, Reasoning, Refusal, Opaque
request      Request, Message, Tool, ToolChoice; RequestFeatures for routing
events       events of an answer stream, from Started to Finished or Failed; Usage
response     Response; `fold` (events → response) and `unfold` (response → events)
finish       finish reasons: maps, infers and traces them
errors       error tree; the type says whose fault an error is
agent_texts  texts that agents put into user messages, told from the user's own
model_names  names of models that nobody configured
notices      lines shown to the client, each once
"""
