"""The queue of a machine without a scheduler: decide which jobs may start now, and start waiting ones in their turn.

`admission` lets a job start or wait; `spooler` starts those that wait; `plan` decides for both. It decides when a job
runs, and the supervisor how it ends. Python 3.6 and the standard library.
"""
