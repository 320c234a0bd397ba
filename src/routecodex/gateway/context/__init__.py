"""The context of a request: its session, its instructions to the gateway, and its routing query.

identity             Scope, identify: the session of a request, by headers and control fields
instructions         ChatInstructions: chat instructions, extracted and stripped
instruction_applier  InstructionApplier: applies instructions to a session, once
message_files        texts for stopMessage, read from files
message_marks        MessageMark: identifies a message with instructions
gateway_replies      replies that the gateway writes itself: confirmation, status, help
routing_context      RoutingContext, RoutingContextBuilder: session, state and query of one request
"""
