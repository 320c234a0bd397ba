"""The clock: time and alarms for a session.

task         Task, SessionState: what is stored, in the shape a person finds on disk
rules        when a task is due, expired, delivered, and when to look again
repeats      tasks that come again
edits        what may happen to the tasks of a session, as pure functions
arguments    what a model may ask of the tool, and what it is told when it asks badly
results      what the tool answers
tool         ClockTool: the declaration and the actions
shelf        Shelf: the tasks of every session, in the store
leases       how long a reservation lasts, whatever becomes of the time of day
deliveries   Deliveries: reserve, commit, roll back
waker        Waker: one timer for every session that is held; Holds: waiting until a task is due
overview     Overview: the tasks of all sessions, for people
upkeep       Upkeep: the scan at the start and the tick
moments      ISO 8601 in and out, time zones
texts        what the model is told of the time and of due tasks
sntp         the packets of network time and what they are worth
ntp          one server asked over UDP
timekeeper   Timekeeper: corrected time, kept over restarts
"""
