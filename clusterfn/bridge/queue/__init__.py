"""The queue of a machine without a scheduler: who may start now, who waits, and who starts those whose turn has come.

    marks ← names, tickets     demand, keeping ← room ← plan     arrivals, cards, fairness, holds, words
                     all these ← admission, spool     status, showing: printed on request

It decides when a job runs, never how it ends: that is the supervisor's. Python 3.6 and the standard library.
"""
