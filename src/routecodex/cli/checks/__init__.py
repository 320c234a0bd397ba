"""The checks of `routecodex doctor`.

result            CheckResult: id, status, message and fix of one check
configuration     the configuration file, and the targets that it names
machine           port, disk and clock of this machine
secret_files      permissions of files that hold keys
proxy_variables   variables that send requests through a proxy
providers         reachability of providers
provider_keys     one small request with every key
gateway_in_use    the gateway that checks send to: one that runs, or one for their duration
agent_program     whether an agent is installed, and in which version
agent_settings    settings of a person that send an agent elsewhere or keep it from starting
shapes            requests as agents send them
served_answer     reads the answer to a shape: text, tool calls, finish
shape_runs        sends the shapes of an agent to a target
verdicts          judges an answer, and says what to change
"""
