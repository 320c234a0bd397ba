"""Work that the gateway does itself while it answers.

tool_set         ServerToolSet: the server tools of this gateway, and which a request needs
internal_calls   InternalCalls: requests that the gateway makes itself; ImageDescriber
search_backends  HttpSearch, RouteSearch: web searches over HTTP or a route
clock_service    ClockService: the clock's parts and background work
"""
