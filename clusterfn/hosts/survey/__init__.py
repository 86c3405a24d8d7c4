"""What a host offers its users: file systems and how full they are, queues, cards, modules; asked in one round trip.

`site.py` says in dataclasses what was found, `ask.py` asks (a POSIX sh program, one request) and reads the answer.
Decides nothing and prints nothing: that is the part of `clusterfn check` and `clusterfn init`, which call it.
"""

from clusterfn.hosts.survey.ask import survey as survey
from clusterfn.hosts.survey.site import Account, Partition, Site, SurveyedGpus, Volume

__all__ = ["Account", "SurveyedGpus", "Partition", "Site", "Volume", "survey"]
