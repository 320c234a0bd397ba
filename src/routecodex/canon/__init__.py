"""The vocabulary every layer shares; it imports nothing of ours.

parts      what messages are made of: Text, Media, ToolCall, ToolResult, Reasoning, Refusal, Opaque
request    Request, Message, Tool, ToolChoice and what else a client may ask for
events     what happens while an answer arrives: Started … Finished or Failed
response   Response and Usage; `fold` (events → response) and `unfold` (response → events)
finish     finish reasons: the one place that maps, infers and traces them
errors     the error tree: the type says whose fault it is
"""
