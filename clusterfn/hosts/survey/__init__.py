"""Survey what a host offers its users, in one round trip: file systems and their room, partitions, GPUs, modules."""

from clusterfn.hosts.survey.ask import survey as survey
from clusterfn.hosts.survey.site import Account, Partition, Site, SurveyedGpus, Volume

__all__ = ["Account", "SurveyedGpus", "Partition", "Site", "Volume", "survey"]
