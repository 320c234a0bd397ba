"""A trial of several nodes behind a balancer, with real processes that are killed, frozen and cut off.

timeline       Timeline: what was broken, where and when
redis_path     RedisPath: a TCP proxy between one node and Redis, where there can be no wire
nodes          GatewayNode, Balancer: processes of the gateway behind nginx
deployments    single Redis, Sentinel, Cluster: the store of a stage and what can happen to it
model          TrialModel: the provider, which follows rules and records every call
exchanges      Exchange, TrialClient: paced requests through the balancer, each with its outcome
conversations  what clients do: stateless requests, sticky targets, stopMessage, reminders, responses
stop_messages  the rules about uses of a stopMessage
faults         what happens to nodes and providers meanwhile
store_faults   what happens to Redis; the faults of each stage, in turn
record         Record: the rules, how often each was judged and broken, and the figures
rules          judgement of every exchange and cooldown
trial          run_stage: all of these together
"""
