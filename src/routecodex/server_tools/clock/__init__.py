"""The clock: time and scheduled tasks for a session.

task          Task, SessionTasks: the stored format
due_rules     when a task is due, expired or repeated; pure functions
edits         changes to the tasks of a session; pure functions
arguments     ClockCommand: the arguments of the tool, its results and refusals
actions       ClockActions: the declaration and the actions of the tool
clock_tool    ClockTool: the clock as a server tool; time tag, reminders, held answers
task_store    TaskStore: the tasks of every session, in the store; TaskOverview: for operators
reservations  expiry of reservations, independent of the time of day
declared_tools  DeclaredTools: the tools that a session declared last
deliveries    Deliveries: reserve, commit, roll back
due_timer     DueTimer, Holds: wait for due tasks; ExpirySweep: deletes expired tasks
timestamps    ISO 8601 parsing and formatting, time zones
ntp           SNTP packets, and the query of one server over UDP
network_time  NetworkTime: corrected time, saved across restarts
"""
