"""The answer to a request, from the first target to the last byte.

failover         Failover: tries targets in plan order, waits briefly when all are cooling down
attempt          Attempt: one attempt at one target
prepared_target  PreparedTarget: request parts that are constant for a target; BuiltinProvider
answer_stream    AnswerStream, RelayedStream, WholeAnswer: an opened answer
event_stream     EventStream, FirstContentBuffer: an answer as events
writer           ClientWriter, EventWriter: headers, chunks, end and errors of one answer
keep_alive       KeepAlives: comments on silent streams
turn             ServerToolTurn: a request that server tools answer in several rounds
"""
