"""The context of a request: its session, its instructions to the gateway, and its routing query.

identity         Scope, identify: the session of a request, by headers and control fields
instructions     ChatInstructions, InstructionApplier: chat instructions, extracted, applied once, stripped
message_marks    MessageMark: identifies a message with instructions
gateway_replies  replies that the gateway writes itself: confirmation, status, help
routing_context  RoutingContext, RoutingContextBuilder: session, state and query of one request
"""
