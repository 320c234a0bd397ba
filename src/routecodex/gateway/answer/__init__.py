"""The answer to a request, from the first target to the last byte.

failover         Failover: tries targets in plan order, waits briefly when all are cooling down
attempt          Attempt: one attempt at one target
prepared_target  PreparedTarget: request parts that are constant for a target; BuiltinProvider
recorded_target  RecordedTarget, RecordedUpstream, RecordedResponse: the same with a record of what passes
recorded_events  built-in providers with a record of their events
answer_stream    AnswerStream, RelayedStream, WholeAnswer: an opened answer
captured_answer  CapturingPipe: keeps the content of an answer for traces
event_stream     EventStream, FirstContentBuffer: an answer as events
writer           ClientWriter, EventWriter: headers, chunks, end and errors of one answer
keep_alive       KeepAlives: comments on silent streams
turn             ServerToolTurn: a request that server tools answer in several rounds
"""
