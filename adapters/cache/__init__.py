"""Disk cache of one node: versions that its engine uses, between the blob store and host memory.

A negative cache (:mod:`adapters.cache.failures`) and a fair queue of fetches (:mod:`adapters.fair_semaphore`) protect
the store. :class:`adapters.residency.Residency` plans admission and eviction.
"""

from adapters.cache.disk import DiskCache
from adapters.cache.fetches import Lost
from adapters.cache.files import CONFIG_NAME, WEIGHTS_NAME
from adapters.cache.lease import Lease

__all__ = ["CONFIG_NAME", "WEIGHTS_NAME", "DiskCache", "Lease", "Lost"]
