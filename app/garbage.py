"""Python's garbage collector in a process that lives long and answers requests."""

import gc

#: Objects that come, beyond those that go, until Python looks for those that only refer to each other.
_NEW_OBJECTS = 10_000


def collect_rarely() -> None:
    """Take all that there is now for good, and look for garbage among what comes later only now and then."""
    # torch, vLLM and the rest are a million objects for life: a full collection that walks them stops every stream
    # for most of a second.
    gc.collect()
    gc.freeze()
    # What comes and goes with requests is freed without it: by default it looked at them every five requests, in
    # vain, for a twentieth of the API process's time.
    gc.set_threshold(_NEW_OBJECTS)
