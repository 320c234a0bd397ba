"""What the gateway does by itself between model calls.

framework      ServerTool, Situation, FollowUp: what a tool may do in a turn, and the plugin that asks them
gate           withholds what the client is not to see
pairs          calls of ours and their results, kept for the client's next request
stop_message   goes on by itself when the model stops
bd             whether the issue tracker beads still has work for it
clock          time and alarms for a session
vision         images in words, for models that cannot see
empty_reply    one more chance for an answer that is empty or was cut off
web_search     a search for models whose upstream has none
"""
