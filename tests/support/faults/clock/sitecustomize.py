"""Clock fault: Python loads this module in a server of the fault tests and shifts its time of day.

A file contains the offset in seconds and may change while the server runs. The machine's clock and the monotonic clock
stay unchanged, as when an administrator sets the clock.
"""

import os
import time
from datetime import datetime, timedelta
from pathlib import Path

import app.domain.clock

_FILE = Path(os.environ.get("FAULTS_CLOCK", os.devnull))
_real_now, _real_time = app.domain.clock.utc_now, time.time


def _offset_s() -> float:
    return float(_FILE.read_text() or 0)


def _now() -> datetime:
    return _real_now() + timedelta(seconds=_offset_s())


def _time() -> float:
    return _real_time() + _offset_s()


app.domain.clock.utc_now = _now
time.time = _time
