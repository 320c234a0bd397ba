"""Server tools: work of the gateway between model calls.

framework      ServerTool, TurnContext, FollowUp: the interface of a tool, and the plugin that runs the tools
round_merger   RoundMerger: merges the rounds of a turn into one answer, without server-tool calls
hidden_calls   HiddenToolCalls: server-tool calls and results, restored in the client's next request
stop_message   StopMessageTool: sends the user's message again when the model stops
beads          BeadsWork: whether the issue tracker beads (bd) has work left
clock          time and scheduled tasks for a session
vision         ImageDescriptions: replaces images by descriptions for models without vision
empty_reply    EmptyReplyTool: one follow-up to an empty or cut-off answer
web_search     WebSearchTool: a web search for upstreams without one
"""
