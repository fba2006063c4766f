"""Python's garbage collector in a process that lives long and answers requests."""

import gc

#: After so many new objects, less those that went, Python looks among them for some that only refer to each other;
#: after so many such looks, among those that were there at one; after so many of these, everywhere. A thousand objects
#: take a millisecond, in which every stream stands still, and a long queue has a hundred thousand. (Python's own 700
#: come with five requests, its 10 and 10 are soon there; 2,000 come and go with the 64 that a server may answer at a
#: time, which cost each of them as much as its authentication.)
_YOUNG, _MIDDLE, _ALL = 5_000, 2, 100


def collect_rarely() -> None:
    """Take all that there is now for good, and look for garbage among what comes later only now and then."""
    # torch, vLLM and the rest are a million objects for life: a full collection that walks them stops every stream
    # for most of a second.
    gc.collect()
    gc.freeze()
    # What comes and goes with requests is freed without it.
    gc.set_threshold(_YOUNG, _MIDDLE, _ALL)
