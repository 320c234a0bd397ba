"""The event stream of the console, `GET /admin/events`: what happens, in batches, of all workers.

frames        frames of server-sent events; EventRing: the last of them, to resume
subscriber    Subscriber: the queue of one stream, which drops what a slow reader cannot take
tap           EventTap: collects what happens in one worker, between two reports; WorkerReport: one of them
hub           EventHub: merges the reports of all workers into frames for all subscribers
state_watch   StateWatch: changes of health, sessions and routing, as the store shows them
fan_in        Unix sockets between workers: reports to the hub, frames from it
event_service EventService: the stream in one worker; opens all of this for the first subscriber

One worker is the hub while somebody subscribes, whichever was asked first; it holds a lock. The others send
it their reports, and pass on its frames to their own subscribers: a stream can be resumed at any worker.
Some seconds after the last subscriber has left everything is closed again: then a request costs the check of
one attribute.
"""

from __future__ import annotations
