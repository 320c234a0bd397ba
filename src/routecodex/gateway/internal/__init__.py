"""Work of the gateway itself: server tools, internal calls, the clock.

tool_set         ServerToolSet: the server tools of this gateway, and which a request needs
installed_tools  InstalledTool: server tools of other packages, loaded or left out
tool_turn        ToolTurn, GatewayTurn: the server tools of one turn, and its state between rounds
trial_request    tries one target with a small request
internal_calls   InternalCalls: requests that the gateway makes itself; ImageDescriber
search_backends  HttpSearch, RouteSearch: web searches over HTTP or a route
clock_service    ClockService: the clock's parts and background work
"""
