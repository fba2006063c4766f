"""Python loads this in a server of the fault tests: its time of day is off by as many seconds as a file says.

The file may change while the server runs. The machine's clock stays, and so does the monotonic one, as when somebody
sets a clock.
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
