"""This node's disk copy of the versions that its engine uses, between the blob store and host memory.

Before the store stand the negative cache (:mod:`adapters.cache.failures`) and the queue of fetches
(:mod:`adapters.fair_semaphore`); what is on the disk is planned by :class:`adapters.residency.Residency`.
"""

from adapters.cache.disk import DiskCache
from adapters.cache.fetches import Lost
from adapters.cache.files import CONFIG_NAME, WEIGHTS_NAME
from adapters.cache.lease import Lease

__all__ = ["CONFIG_NAME", "WEIGHTS_NAME", "DiskCache", "Lease", "Lost"]
